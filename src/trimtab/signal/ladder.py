"""Where to start: the only place that says which recipe comes first, and which one when that is no longer enough."""

from trimtab.signal.composition import Recipe
from trimtab.signal.ingredient import Stage
from trimtab.signal.parts import part


def start_on_policy() -> Recipe:
    return Recipe(
        name="start_on_policy",
        summary="Start here, step 1: sampler and trainer agree and every batch is used once.",
        source="Zheng et al. 2025, Stabilizing RL with LLMs, arXiv:2512.01374: "
        "on-policy, plain policy gradient is the most stable",
        loss=Stage(part("policy_loss.reinforce")),
        normalize=part("normalize.mean_std", mean="group", std="group"),
        weighting=part("weighting.token_mean"),
        old="current",
    )


def start_engine_mismatch() -> Recipe:
    return Recipe(
        name="start_engine_mismatch",
        summary="Start here, step 2: another engine samples (vLLM, quantised weights), batches are fresh.",
        source="Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.2)), anchor="old"),
        normalize=part("normalize.mean_std", mean="group", std="group"),
        weighting=part("weighting.token_mean"),
        correction=(Stage(part("importance.truncated", level="token", band=(0.0, 2.0)), ratio="engine"),),
    )


def start_async() -> Recipe:
    return Recipe(
        name="start_async",
        summary="Start here, step 3: rollouts are stale, the sampler may be quantised. "
        "One length-normalised ratio per sequence, current against the sampler, clipped as one.",
        source="Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 5, anchored at the sampler instead of the old policy; "
        "band (0.98, 1.02) chosen in docs/studies.md",
        loss=Stage(part("policy_loss.geometric_clipped", band=(0.98, 1.02)), anchor="rollout"),
        normalize=part("normalize.mean_std", mean="group", std="group"),
        weighting=part("weighting.token_mean"),
        old="absent",
    )


LADDER = (start_on_policy, start_engine_mismatch, start_async)
"""From the simplest run upwards."""
