"""Recipes of frameworks: what each computes with its own defaults, at the version that its source names.

Defaults change: TRL 1.16 and OpenRLHF 0.11.2 changed some. A test holds each recipe to what `trimtab convert` makes of
an empty configuration of that framework. No arithmetic here.
"""

from collections.abc import Callable

from trimtab.signal.composition import Recipe
from trimtab.signal.ingredient import KL, Stage, Term
from trimtab.signal.parts import part
from trimtab.signal.usual import group, group_mean, ppo, token_mean, unclipped

DEFAULTS: list[Callable[[], Recipe]] = []
"""Every recipe of this file, in its order."""


def _recipe(build: Callable[[], Recipe]) -> Callable[[], Recipe]:
    DEFAULTS.append(build)
    return build


@_recipe
def trl_defaults() -> Recipe:
    return Recipe(
        name="trl_defaults",
        summary="TRL's GRPOTrainer as it comes: DAPO's loss, no KL.",
        source="TRL 1.16.0, GRPOConfig: epsilon 0.2, beta 0 (with beta, the KL is importance-weighted since 1.16)",
        loss=ppo(),
        normalize=part("normalize.mean_std", mean="group", std="group", eps=1e-4),
        weighting=token_mean(),
    )


@_recipe
def verl_defaults() -> Recipe:
    return Recipe(
        name="verl_defaults",
        summary="verl's PPO as it comes: a critic, a dual clip, no KL.",
        source="verl 0.9.1, ppo_trainer.yaml: clip_ratio 0.2, clip_ratio_c 3, cliprange_value 0.5, gamma and lam 1",
        loss=Stage(part("policy_loss.dual_clipped", band=(0.8, 1.2), cap=3.0), anchor="old"),
        normalize=part("normalize.raw"),
        advantage=part("advantage.gae", gamma=1.0, lam=1.0),
        whiten=True,
        weighting=token_mean(),
        value=Term(coef=1.0, part=part("value_loss.squared_clipped", reach=0.5)),
    )


@_recipe
def openrlhf_defaults() -> Recipe:
    return Recipe(
        name="openrlhf_defaults",
        summary="OpenRLHF's PPO as it comes: a critic, KL in the token reward.",
        source="OpenRLHF 0.11.2, train_ppo_ray: eps_clip 0.2, value_clip 0.5, init_kl_coef 0.01 (k1), gamma and lam 1; "
        "its correction for vLLM is off",
        loss=ppo(),
        normalize=part("normalize.raw"),
        advantage=part("advantage.gae", gamma=1.0, lam=1.0),
        whiten=True,
        weighting=token_mean(),
        kl=KL(part("kl.k1"), coef=0.01, into="token_reward"),
        value=Term(coef=1.0, part=part("value_loss.squared_clipped", reach=0.5)),
    )


@_recipe
def skyrl_defaults() -> Recipe:
    return Recipe(
        name="skyrl_defaults",
        summary="SkyRL's GRPO as it comes: token mean, a small k3 in the loss.",
        source="SkyRL 0.3.0, ppo_base_config: eps_clip 0.2, kl_loss_coef 0.001",
        loss=ppo(),
        normalize=group(),
        weighting=token_mean(),
        kl=KL(part("kl.k3"), coef=0.001, into="loss"),
    )


@_recipe
def slime_defaults() -> Recipe:
    return Recipe(
        name="slime_defaults",
        summary="slime's GRPO as it comes: the mean of each episode, no KL.",
        source="slime main (624b824a8), arguments: eps_clip 0.2",
        loss=ppo(),
        normalize=group(),
        weighting=part("weighting.episode_mean"),
    )


@_recipe
def nemo_rl_defaults() -> Recipe:
    return Recipe(
        name="nemo_rl_defaults",
        summary="NeMo-RL's GRPO as it comes: mean and spread of the other answers, a KL with the gradient of k2.",
        source="NeMo-RL main (7ea279abf), grpo: ratio_clip 0.2, reference_policy_kl_penalty 0.01 (k3, and a "
        "score-function term)",
        loss=ppo(),
        normalize=part("normalize.leave_one_out", std="others", eps=1e-6),
        weighting=token_mean(),
        kl=KL(part("kl.k2_gradient", value="k3"), coef=0.01, into="loss"),
    )


@_recipe
def prime_rl_defaults() -> Recipe:
    return Recipe(
        name="prime_rl_defaults",
        summary="prime-rl as it comes: DPPO against the sampler, and a square that holds the policy near it.",
        source="prime-rl main (559b44772), default_loss_fn: dppo_mask 0.2, kl_tau 1e-3 on every token, no std",
        loss=unclipped(),
        normalize=group_mean(),
        weighting=token_mean(),
        correction=(Stage(part("keep.probability_band", low=0.2, high=0.2, by_sign=True), ratio="total"),),
        kl=KL(part("kl.anchor_square"), coef=1e-3, into="loss", anchor="rollout"),
        filter_constant_groups=True,
        old="absent",
    )
