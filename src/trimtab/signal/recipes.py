"""Names of papers: the only place where one stands for a composition of formulas with the paper's values.

No arithmetic here. cookbook.py finds a recipe by its name.
"""

import math
from collections.abc import Callable

from trimtab.signal.composition import Recipe
from trimtab.signal.ingredient import KL, Stage, Term
from trimtab.signal.parts import part
from trimtab.signal.usual import group, group_mean, token_mean
from trimtab.signal.usual import ppo as ppo_clip
from trimtab.signal.usual import reinforce as policy_gradient

PAPERS: list[Callable[[], Recipe]] = []
"""Every recipe of this file, in its order."""


def _recipe(build: Callable[[], Recipe]) -> Callable[[], Recipe]:
    PAPERS.append(build)
    return build


@_recipe
def reinforce() -> Recipe:
    return Recipe(
        name="reinforce",
        summary="The policy gradient without baseline or correction.",
        source="Williams 1992, Machine Learning 8",
        loss=policy_gradient(),
        normalize=part("normalize.raw"),
        weighting=part("weighting.sequence_mean_token_sum"),
        old="current",
    )


@_recipe
def grpo() -> Recipe:
    return Recipe(
        name="grpo",
        summary="Group mean and std as baseline, PPO clip, k3 to a reference in the loss.",
        source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3, beta 0.04; the clip is unpublished, 0.2 as "
        "in PPO",
        loss=ppo_clip(),
        normalize=group(),
        weighting=part("weighting.sequence_mean_token_mean"),
        kl=KL(part("kl.k3"), coef=0.04, into="loss"),
    )


@_recipe
def dr_grpo() -> Recipe:
    return Recipe(
        name="dr_grpo",
        summary="GRPO without the std and with a constant in place of the length.",
        source="Liu et al. 2025, Dr.GRPO, arXiv:2503.20783; the constant is its generation limit of 3000 tokens",
        loss=ppo_clip(),
        normalize=group_mean(),
        weighting=part("weighting.constant_divisor", divisor=3000),
    )


@_recipe
def rloo() -> Recipe:
    return Recipe(
        name="rloo",
        summary="REINFORCE against the mean of the group's other answers, KL in the sequence reward.",
        source="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740: KL 0.03 (TL;DR; 0.1 for HH)",
        loss=policy_gradient(),
        normalize=part("normalize.leave_one_out"),
        weighting=part("weighting.sequence_mean_token_sum"),
        kl=KL(part("kl.k1"), coef=0.03, into="sequence_reward"),
    )


@_recipe
def reinforce_plus_plus() -> Recipe:
    return Recipe(
        name="reinforce_plus_plus",
        summary="Token rewards with KL, reward to go, whitened over the batch, PPO clip.",
        source="Hu et al. 2025, REINFORCE++, arXiv:2501.03262: KL 0.01 (0.001 for mathematics)",
        loss=ppo_clip(),
        normalize=part("normalize.raw"),
        advantage=part("advantage.reward_to_go", gamma=1.0),
        whiten=True,
        weighting=token_mean(),
        kl=KL(part("kl.k1"), coef=0.01, into="token_reward"),
    )


@_recipe
def ppo() -> Recipe:
    return Recipe(
        name="ppo",
        summary="Critic, GAE, KL in the token reward, clipped policy and value losses.",
        source="Schulman et al. 2017, arXiv:1707.06347: clip 0.2, lambda 0.95; Ouyang et al. 2022, InstructGPT, "
        "arXiv:2203.02155: KL 0.02, no discount; the critic's clip and coefficient, and whitening, as in OpenAI's code",
        loss=ppo_clip(),
        normalize=part("normalize.raw"),
        advantage=part("advantage.gae", gamma=1.0, lam=0.95),
        whiten=True,
        weighting=token_mean(),
        kl=KL(part("kl.k1"), coef=0.02, into="token_reward"),
        value=Term(coef=0.5, part=part("value_loss.squared_clipped", reach=0.2)),
    )


@_recipe
def dapo() -> Recipe:
    return Recipe(
        name="dapo",
        summary="Clip higher, token mean, soft overlong penalty, groups without variance dropped, no KL.",
        source="Yu et al. 2025, DAPO, arXiv:2503.14476: clip 0.2 / 0.28, 20480 tokens with a buffer of 4096",
        reward=(part("reward.soft_overlong", max_length=20480, buffer=4096),),
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.28)), anchor="old"),
        normalize=group(),
        weighting=token_mean(),
        filter_constant_groups=True,
    )


@_recipe
def gspo() -> Recipe:
    return Recipe(
        name="gspo",
        summary="One length-normalised ratio per sequence, clipped as one.",
        source="Zheng et al. 2025, GSPO, arXiv:2507.18071: clip 3e-4 / 4e-4, no KL",
        loss=Stage(part("policy_loss.geometric_clipped", band=(1 - 3e-4, 1 + 4e-4)), anchor="old"),
        normalize=group(),
        weighting=part("weighting.sequence_mean_token_mean"),
    )


@_recipe
def cispo() -> Recipe:
    return Recipe(
        name="cispo",
        summary="The ratio bounds a token's weight and never its gradient.",
        source="MiniMax 2025, MiniMax-M1, arXiv:2506.13585, no lower bound; upper bound 5 as in TRL",
        loss=Stage(part("policy_loss.clipped_importance", band=(0.0, 5.0)), anchor="old"),
        normalize=group(),
        weighting=token_mean(),
    )


@_recipe
def sapo() -> Recipe:
    return Recipe(
        name="sapo",
        summary="A soft gate in place of the hard clip.",
        source="Gao et al. 2025, SAPO, arXiv:2511.20347: temperatures 1.0 and 1.05",
        loss=Stage(part("policy_loss.soft_gated", temperature_positive=1.0, temperature_negative=1.05), anchor="old"),
        normalize=group(),
        weighting=part("weighting.sequence_mean_token_mean"),
    )


@_recipe
def tis() -> Recipe:
    return Recipe(
        name="tis",
        summary="PPO clip with the engine ratio of each token truncated at 2.",
        source="Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training; C = 2 (8 in "
        "its authors' 32B script)",
        loss=ppo_clip(),
        normalize=group(),
        weighting=token_mean(),
        correction=(Stage(part("importance.truncated", level="token", band=(0.0, 2.0)), ratio="engine"),),
    )


@_recipe
def sequence_tis() -> Recipe:
    return Recipe(
        name="sequence_tis",
        summary="PPO clip with the product of a sequence's engine ratios truncated at 5.",
        source="Liu et al. 2025, When Speed Kills Stability (Seq-TIS); C = 5 as in SkyRL #849",
        loss=ppo_clip(),
        normalize=group(),
        weighting=token_mean(),
        correction=(Stage(part("importance.truncated", level="sequence", band=(0.0, 5.0)), ratio="engine"),),
    )


@_recipe
def reinforce_tis() -> Recipe:
    return Recipe(
        name="reinforce_tis",
        summary="REINFORCE with one bounded factor per sequence, current against the sampler: engine and staleness.",
        source="slime #2084 (current against rollout); Liu et al. 2025, When Speed Kills Stability (sequence level); "
        "the bound of 2, the spread and the mean over tokens are ours",
        loss=policy_gradient(),
        normalize=group(),
        weighting=token_mean(),
        correction=(Stage(part("importance.truncated", level="sequence", band=(0.0, 2.0)), ratio="total"),),
        old="absent",
    )


@_recipe
def geometric_mask() -> Recipe:
    return Recipe(
        name="geometric_mask",
        summary="PPO clip on sequences whose mean engine drift is below one percent.",
        source="Liu et al. 2025, When Speed Kills Stability (Geo-RS); band (0.99, 1.01) as in SkyRL #849",
        loss=ppo_clip(),
        normalize=group(),
        weighting=token_mean(),
        correction=(Stage(part("keep.geometric_band", band=(0.99, 1.01)), ratio="engine"),),
    )


@_recipe
def deepseek_v32() -> Recipe:
    return Recipe(
        name="deepseek_v32",
        summary="PPO clip against the sampler, off-policy sequence masking, importance-weighted KL.",
        source="DeepSeek-AI 2025, DeepSeek-V3.2, arXiv:2512.02556; delta is unpublished, 0.1 lies in Trinity's tested "
        "range; so are the clip, 0.2 as in PPO, and the KL, 1e-3 as in R1",
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.2)), anchor="rollout"),
        normalize=group_mean(),
        weighting=part("weighting.sequence_mean_token_mean"),
        correction=(Stage(part("keep.negative_drift", delta=0.1), anchor="rollout"),),
        kl=KL(part("kl.importance_weighted_k3"), coef=1e-3, into="loss", anchor="rollout"),
        old="absent",
    )


@_recipe
def decoupled_ppo() -> Recipe:
    return Recipe(
        name="decoupled_ppo",
        summary="The clip stays at the old policy, a factor takes it back to the sampler; far tokens are dropped.",
        source="Fu et al. 2025, AReaL, arXiv:2505.24298, eq. 5: clip 0.2; 5 as in AReaL",
        loss=ppo_clip(),
        normalize=part("normalize.mean_std", mean="batch", std="batch"),
        weighting=token_mean(),
        correction=(
            Stage(part("importance.truncated", level="token", band=(0.0, math.inf)), ratio="engine"),
            Stage(part("keep.token_band", band=(0.0, 5.0)), ratio="engine"),
        ),
    )
