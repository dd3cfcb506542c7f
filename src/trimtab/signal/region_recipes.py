"""Recipes of papers that change the loss, and how far a token may drift before it no longer trains.

No arithmetic here. A number that its authors did not publish is named in the source, with where it comes from.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from trimtab.signal.composition import Recipe
from trimtab.signal.ingredient import Stage
from trimtab.signal.parts import part
from trimtab.signal.recipes import dapo, decoupled_ppo
from trimtab.signal.usual import group, group_mean, ppo, reinforce, token_mean, unclipped

BOUNDED: list[Callable[[], Recipe]] = []
"""Every recipe of this file, in its order."""


def _recipe(build: Callable[[], Recipe]) -> Callable[[], Recipe]:
    BOUNDED.append(build)
    return build


@_recipe
def clip_cov() -> Recipe:
    return Recipe(
        name="clip_cov",
        summary="A wide PPO clip; a few tokens whose log-prob and advantage vary together get no gradient.",
        source="Cui et al. 2025, The Entropy Mechanism of RL, arXiv:2505.22617, eq. 11 and 12: 2e-4 of the tokens, "
        "covariance 1 to 5; clip 1 both ways as in its authors' scripts",
        loss=Stage(
            part("policy_loss.covariance_clipped", band=(0.0, 2.0), covariance_low=1.0, covariance_high=5.0,
                 fraction=2e-4),
            anchor="old",
        ),
        normalize=group(),
        weighting=token_mean(),
        filter_constant_groups=True,
    )  # fmt: skip


@_recipe
def kl_cov() -> Recipe:
    return Recipe(
        name="kl_cov",
        summary="A KL on the few tokens whose log-prob and advantage vary together the most.",
        source="Cui et al. 2025, The Entropy Mechanism of RL, arXiv:2505.22617, eq. 13 and 14: 2e-3 of the tokens for "
        "7B (2e-4 for 32B), coefficient 1",
        loss=Stage(part("policy_loss.covariance_penalised", fraction=2e-3, coef=1.0), anchor="old"),
        normalize=group(),
        weighting=token_mean(),
        filter_constant_groups=True,
    )


@_recipe
def high_entropy_tokens() -> Recipe:
    return replace(
        dapo(),
        name="high_entropy_tokens",
        summary="DAPO on the fifth of the tokens at which the policy is least certain.",
        source="Wang et al. 2025, Beyond the 80/20 Rule, arXiv:2506.01939, eq. 6: 0.2, on DAPO; the mean is over "
        "these tokens",
        weighting=part("weighting.token_mean", over="kept"),
        correction=(Stage(part("keep.high_entropy", fraction=0.2)),),
    )


@_recipe
def gmpo() -> Recipe:
    return Recipe(
        name="gmpo",
        summary="The geometric mean of clipped ratios: one outlier moves a sequence little.",
        source="Zhao et al. 2025, GMPO, arXiv:2507.20673: clip 0.4 both ways in log-ratios",
        loss=Stage(part("policy_loss.geometric_of_clipped", band=(math.exp(-0.4), math.exp(0.4))), anchor="old"),
        normalize=group(),
        weighting=part("weighting.sequence_mean_token_mean"),
    )


@_recipe
def kimi_k15() -> Recipe:
    return Recipe(
        name="kimi_k15",
        summary="REINFORCE against the group's mean, and a square that holds the policy near the one that sampled.",
        source="Kimi Team 2025, Kimi k1.5, arXiv:2501.12599, eq. 3; its coefficient is unpublished, 0.1 as in ROLL; "
        "the square is per token here, of the sequence in the paper",
        loss=Stage(part("policy_loss.quadratic", coef=0.1), anchor="old"),
        normalize=group_mean(),
        weighting=part("weighting.sequence_mean_token_sum"),
    )


@_recipe
def topr() -> Recipe:
    return Recipe(
        name="topr",
        summary="Right answers in full, wrong ones under a bounded ratio; rewards 0 and 1 become -1 and 1.",
        source="Le Roux et al. 2025, Tapered Off-Policy REINFORCE (TOPR), arXiv:2503.14286, eq. 7 and 8; the mean "
        "over a sequence's tokens as in its experiments",
        reward=(part("reward.affine", bias=-0.5, scale=2.0),),
        loss=Stage(part("policy_loss.tapered", band=(0.0, 1.0), level="sequence"), anchor="rollout"),
        normalize=part("normalize.raw"),
        weighting=part("weighting.sequence_mean_token_mean"),
        old="absent",
    )


@_recipe
def vespo() -> Recipe:
    return Recipe(
        name="vespo",
        summary="The product of a sequence's ratios, reshaped so that neither far nor rare sequences rule.",
        source="Shen et al. 2026, VESPO, arXiv:2602.10693: (2, 3) where the advantage is positive, (3, 2) elsewhere; "
        "the spread and the mean over tokens as in its authors' scripts",
        loss=Stage(
            part("policy_loss.gamma_weighted", power_positive=2.0, rate_positive=3.0, power_negative=3.0,
                 rate_negative=2.0),
            anchor="rollout",
        ),
        normalize=group(),
        weighting=token_mean(),
        old="absent",
    )  # fmt: skip


@_recipe
def scale_rl() -> Recipe:
    return Recipe(
        name="scale_rl",
        summary="CISPO against the sampler, spread of the batch, every prompt counts the same.",
        source="Khatri et al. 2025, ScaleRL, arXiv:2510.13786: groups without variance dropped; upper bound 5 as in "
        "TRL; prompts that are solved already are not left out here",
        loss=Stage(part("policy_loss.clipped_importance", band=(0.0, 5.0)), anchor="rollout"),
        normalize=part("normalize.mean_std", mean="group", std="batch"),
        weighting=part("weighting.prompt_mean"),
        filter_constant_groups=True,
        old="absent",
    )


@_recipe
def icepop() -> Recipe:
    return Recipe(
        name="icepop",
        summary="PPO clip with the engine ratio of each token, which is dropped where the ratio is far.",
        source="Ling Team 2025, Ring-1T, arXiv:2510.18855 (IcePop), eq. 1 to 3: 0.5 to 5, no KL; clip 0.2 and GRPO's "
        "advantage are assumed",
        loss=ppo(),
        normalize=group(),
        weighting=part("weighting.sequence_mean_token_mean"),
        correction=(
            Stage(part("importance.truncated", level="token", band=(0.0, math.inf)), ratio="engine"),
            Stage(part("keep.token_band", band=(0.5, 5.0)), ratio="engine"),
        ),
    )


@_recipe
def trust_region_masking() -> Recipe:
    return Recipe(
        name="trust_region_masking",
        summary="No clip: only sequences whose mean KL between sampler and current policy is small.",
        source="Li et al. 2025, Trust Region Masking, arXiv:2512.23075: a mean KL of 0.001, all sequences counted; "
        "the KL is of all tokens there, its k3 estimate here; GRPO's advantage is assumed",
        loss=unclipped(),
        normalize=group(),
        weighting=part("weighting.sequence_mean_token_sum"),
        correction=(Stage(part("keep.divergence", limit=1e-3, measure="k3", total="mean"), ratio="total"),),
        old="absent",
    )


@_recipe
def dppo() -> Recipe:
    return Recipe(
        name="dppo",
        summary="A token whose probability moved too far to where its advantage pulls is dropped; none is clipped.",
        source="Qi et al. 2026, Rethinking the Trust Region in LLM RL (DPPO), arXiv:2602.04879, eq. 12, 13 and 23: "
        "0.2 both ways, weights up to 5, against the sampler, no spread, answers of 16384 tokens",
        loss=Stage(part("policy_loss.clipped_importance", band=(0.0, 5.0)), anchor="rollout"),
        normalize=group_mean(),
        weighting=part("weighting.constant_divisor", divisor=16384),
        correction=(Stage(part("keep.probability_band", low=0.2, high=0.2, by_sign=True), ratio="total"),),
        old="absent",
    )


@_recipe
def dppo_kl() -> Recipe:
    return replace(
        dppo(),
        name="dppo_kl",
        summary="As dppo, with the KL of two coins that show the sampled token in place of the difference.",
        source="Qi et al. 2026, Rethinking the Trust Region in LLM RL (DPPO), arXiv:2602.04879, eq. 14: 0.05",
        correction=(Stage(part("keep.binary_kl", limit=0.05, direction="earlier_to_later"), ratio="total"),),
    )


@_recipe
def cppo() -> Recipe:
    return Recipe(
        name="cppo",
        summary="As dppo; a token's limit shrinks once the tokens before it moved too far in sum.",
        source="Mao et al. 2026, CPPO, arXiv:2606.10968, table 3: 0.2 and answers of 16384 tokens for mixtures of "
        "experts (0.15 and 8192 for dense models), weights down to 0.8, a budget of 0.02 to 0.04; no spread and "
        "ratios up to 20 as in its authors' script; its main runs look at the likeliest tokens, here at the sampled "
        "one",
        loss=Stage(part("policy_loss.clipped_importance", band=(0.0, 20.0)), anchor="rollout"),
        normalize=group_mean(),
        weighting=part("weighting.constant_divisor", divisor=16384),
        filter_constant_groups=True,
        correction=(Stage(part("keep.prefix_budget", limit=0.2), ratio="total"),),
        old="absent",
    )


@_recipe
def kpop() -> Recipe:
    near = part("keep.binary_kl", limit=0.1, direction="larger", by_sign=False)
    return replace(
        icepop(),
        name="kpop",
        summary="As icepop, with the KL of two coins that show the sampled token, the larger of both ways.",
        source="Ling Team 2026, Ring-2.6, arXiv:2606.15079 (KPop), eq. 5; 0.1 is one of the limits that its authors' "
        "blog tries, up to 2 (AReaL's example); the ratio as weight is assumed",
        correction=(icepop().correction[0], Stage(near, ratio="engine")),
    )


@_recipe
def flash_reinforce() -> Recipe:
    near = part("keep.binary_kl", limit=5e-3, level="sequence", direction="earlier_to_later", by_sign=False)
    return Recipe(
        name="flash_reinforce",
        summary="One answer per prompt against the batch's mean, on sequences that the trainer finds as likely.",
        source="Hu et al. 2026, FlashREINFORCE (NVIDIA): the token's own weight; a mean binary KL of 5e-3 as in "
        "slime's example, the paper has 1e-3 to 1e-2",
        loss=reinforce(),
        normalize=part("normalize.mean_std", mean="batch", std="none"),
        weighting=part("weighting.sequence_mean_token_mean"),
        correction=(
            Stage(part("importance.truncated", level="token", band=(0.0, math.inf)), ratio="engine"),
            Stage(near, ratio="engine"),
        ),
        old="current",
    )


@_recipe
def m2po() -> Recipe:
    return Recipe(
        name="m2po",
        summary="No clip: of tokens that moved outward, the farthest go until their mean squared log-ratio is small.",
        source="Zheng et al. 2025, M2PO, arXiv:2510.01161, algorithm 1 and eq. 5: 0.04, the mean over all tokens",
        loss=unclipped(),
        normalize=group(),
        weighting=token_mean(),
        correction=(Stage(part("keep.second_moment_by_sign", limit=0.04), ratio="total"),),
        old="absent",
    )


@_recipe
def a3po() -> Recipe:
    return replace(
        decoupled_ppo(),
        name="a3po",
        summary="Decoupled PPO whose old policy lies between sampler and trainer, by the age of each token.",
        source="A-3PO 2025, arXiv:2512.06547; clip 0.4, 5 and both normalisations as in AReaL's example of it",
        loss=Stage(part("policy_loss.clipped", band=(0.6, 1.4)), anchor="old"),
        normalize=group(),
        whiten=True,
        old="interpolated",
    )
