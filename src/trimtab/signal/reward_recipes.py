"""Recipes of papers that change what an answer is credited with: baselines, several rewards, critics, teachers.

No arithmetic here. A number that its authors did not publish is named in the source, with where it comes from.
"""

from collections.abc import Callable

from trimtab.signal.composition import Recipe
from trimtab.signal.ingredient import KL, Stage, Term
from trimtab.signal.parts import part
from trimtab.signal.usual import group, group_mean, ppo, reinforce, token_mean, unclipped

CREDITED: list[Callable[[], Recipe]] = []
"""Every recipe of this file, in its order."""


def _recipe(build: Callable[[], Recipe]) -> Callable[[], Recipe]:
    CREDITED.append(build)
    return build


@_recipe
def lite_ppo() -> Recipe:
    return Recipe(
        name="lite_ppo",
        summary="The group's mean and the batch's spread, PPO clip, token mean.",
        source="Liu et al. 2025, Tricks or Traps (Lite PPO), arXiv:2508.08221",
        loss=ppo(),
        normalize=part("normalize.mean_std", mean="group", std="batch"),
        weighting=token_mean(),
    )


@_recipe
def reinforce_plus_plus_baseline() -> Recipe:
    return Recipe(
        name="reinforce_plus_plus_baseline",
        summary="Rewards around the group's mean, whitened over the batch, PPO clip.",
        source="Hu et al. 2025, REINFORCE++, arXiv:2501.03262 (with baseline); the KL of 1e-5 as in its authors' "
        "example",
        loss=ppo(),
        normalize=group_mean(),
        whiten=True,
        weighting=token_mean(),
        kl=KL(part("kl.k2"), coef=1e-5, into="loss"),
    )


@_recipe
def remax() -> Recipe:
    return Recipe(
        name="remax",
        summary="REINFORCE against the reward of the greedy answer to the same prompt.",
        source="Li et al. 2023, ReMax, arXiv:2310.10505, eq. 5; its authors' code has the mean over tokens, a KL of "
        "0.05 in the reward and a discount of 0.99 besides",
        loss=reinforce(),
        normalize=part("normalize.minus_given"),
        weighting=part("weighting.sequence_mean_token_sum"),
        old="current",
    )


@_recipe
def opo() -> Recipe:
    return Recipe(
        name="opo",
        summary="Exactly on-policy, against a mean in which each answer counts for its length.",
        source="Hao et al. 2025, OPO, arXiv:2505.23585: no clip, no KL, no entropy bonus; the mean over tokens as in "
        "verl",
        loss=reinforce(),
        normalize=part("normalize.length_weighted_mean"),
        weighting=token_mean(),
        old="current",
    )


@_recipe
def gpg() -> Recipe:
    return Recipe(
        name="gpg",
        summary="The policy gradient against the group's mean, scaled up for groups that teach nothing.",
        source="Chu et al. 2025, GPG, arXiv:2504.02546: no clip, no KL; groups are not sampled anew",
        loss=reinforce(),
        normalize=part("normalize.rescaled_mean", counted="varied_groups"),
        weighting=token_mean(),
        old="current",
    )


@_recipe
def asymre() -> Recipe:
    return Recipe(
        name="asymre",
        summary="Off-policy data without importance: the baseline lies a little below the mean.",
        source="Arnal et al. 2025, AsymRE, arXiv:2506.20520: shift -0.1; the mean over tokens as in Trinity-RFT",
        loss=reinforce(),
        normalize=part("normalize.mean_std", mean="group", std="none", shift=-0.1),
        weighting=token_mean(),
        old="current",
    )


@_recipe
def maxrl() -> Recipe:
    return Recipe(
        name="maxrl",
        summary="The policy gradient with rewards over the group's mean: a rare success counts for more.",
        source="Tajwar et al. 2026, MaxRL, arXiv:2602.02710",
        loss=reinforce(),
        normalize=part("normalize.over_mean"),
        weighting=token_mean(),
        old="current",
    )


@_recipe
def pass_at_k() -> Recipe:
    return Recipe(
        name="pass_at_k",
        summary="Only the best answer of a group learns, by its lead over the second.",
        source="Walder and Karkhanis 2025, Pass@K policy optimisation, arXiv:2503.19595, as verl has it: k is the "
        "size of a group; spread, clip and weighting are verl's",
        loss=ppo(),
        normalize=part("normalize.best_minus_second", std="group"),
        weighting=token_mean(),
    )


@_recipe
def gdpo() -> Recipe:
    return Recipe(
        name="gdpo",
        summary="Each of several rewards compared in its group, then summed: for two rewards; name a weight for each.",
        source="Liu et al. 2026, GDPO, arXiv:2601.05242: weight 1 for each",
        loss=ppo(),
        normalize=part("normalize.each_key", weights=(1.0, 1.0)),
        weighting=token_mean(),
    )


@_recipe
def optimal_token_baseline() -> Recipe:
    return Recipe(
        name="optimal_token_baseline",
        summary="A baseline per step, over the group, weighted by the size of the gradients so far.",
        source="Li et al. 2026, optimal token baseline, arXiv:2602.07078, as verl has it, loss included",
        loss=ppo(),
        normalize=part("normalize.raw"),
        advantage=part("advantage.optimal_token_baseline"),
        weighting=token_mean(),
    )


@_recipe
def on_policy_distillation() -> Recipe:
    return Recipe(
        name="on_policy_distillation",
        summary="No reward: each token is paid by how much likelier the teacher finds it than the student.",
        source="Lu et al. 2025, On-Policy Distillation (Thinking Machines): coefficient 1, no discount; the student "
        "is logp_old here, the sampler there",
        loss=unclipped(),
        normalize=part("normalize.raw"),
        advantage=part("advantage.plus_teacher", coef=1.0, outcome_coef=0.0),
        weighting=part("weighting.token_sum"),
    )


@_recipe
def rlsd() -> Recipe:
    return Recipe(
        name="rlsd",
        summary="GRPO whose credit is larger at tokens that the teacher would have pushed the same way.",
        source="RLSD 2026, arXiv:2604.03128: share 0.5, band 0.8 to 1.2, clip 0.2 / 0.28 and 3 as in its authors' "
        "script, which lets the share fall to 0 over 60 steps",
        loss=Stage(part("policy_loss.dual_clipped", band=(0.8, 1.28), cap=3.0), anchor="old"),
        normalize=group(),
        advantage=part("advantage.scaled_by_teacher", share=0.5, band=(0.8, 1.2)),
        weighting=token_mean(),
    )


@_recipe
def vapo() -> Recipe:
    return Recipe(
        name="vapo",
        summary="A critic, lambda by length, clip higher, token mean, and a likelihood on right answers.",
        source="Yue et al. 2025, VAPO, arXiv:2504.05118: alpha 0.05, lambda 1 for the critic, clip 0.2 / 0.28, NLL "
        "0.1; the critic's coefficient and clip are unpublished, 0.5 and 0.2 as in ppo",
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.28)), anchor="old"),
        normalize=part("normalize.raw"),
        advantage=part("advantage.gae_by_length", alpha=0.05, gamma=1.0, lam_value=1.0),
        weighting=token_mean(),
        value=Term(coef=0.5, part=part("value_loss.squared_clipped", reach=0.2)),
        nll=Term(coef=0.1, on="rewarded"),
    )


@_recipe
def gigpo() -> Recipe:
    return Recipe(
        name="gigpo",
        summary="Episodes compared in their group, and turns with the turns that began in the same state.",
        source="Feng et al. 2025, GiGPO, arXiv:2505.10978: discount 0.95, weight 1 for both, KL 0.01; the mean over "
        "tokens is assumed",
        loss=ppo(),
        normalize=part("normalize.raw"),
        advantage=part("advantage.turns_by_state", gamma=0.95, coef=1.0),
        weighting=token_mean(),
        kl=KL(part("kl.k3"), coef=0.01, into="loss"),
    )


@_recipe
def role_average() -> Recipe:
    return Recipe(
        name="role_average",
        summary="PPO clip against a moving average of each role's rewards, for games with several roles.",
        source="Liu et al. 2025, SPIRAL (RAE), arXiv:2506.24119, eq. 3 and table 6: decay 0.95, clip 0.2, no length "
        "normalisation",
        loss=ppo(),
        normalize=part("normalize.minus_role_average", decay=0.95),
        weighting=part("weighting.sequence_mean_token_sum"),
    )
