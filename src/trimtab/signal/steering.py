"""What one batch tells the next about coefficients and scales: the only place that changes them between batches.

Everything is a pure function of the state's memory, which is plain numbers by name and is saved with the run.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.composition import Recipe
from trimtab.signal.layout import EpisodeFlag, PerEpisode
from trimtab.signal.metric_kind import Mean, Metric

REACH = 0.2
"""The relative error of a KL counts up to this: Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2."""
COEF = "kl_coef"
RUNNING = ("reward_count", "reward_mean", "reward_m2")
EARLIER = frozenset({"running_mean", "running_std", "role_average"})
"""What a formula may read of earlier batches."""
ROLE = "role_average_"
"""In front of a role's number, the name of its average."""

Memory = Mapping[str, float]


def steered(recipe: Recipe, memory: Memory) -> Recipe:
    """The recipe with the coefficient that earlier batches led to."""
    if recipe.kl is None or recipe.kl.target is None or COEF not in memory:
        return recipe
    return replace(recipe, kl=replace(recipe.kl, coef=memory[COEF]))


def next_coef(recipe: Recipe, numbers: Mapping[str, float], episodes: int) -> dict[str, float]:
    """The coefficient of the next batch: larger where the KL is above its target, smaller where it is below.

    coef' = coef * (1 + clip(kl / target - 1, -0.2, 0.2) * episodes / horizon)

    Differs from the paper: the KL is a mean per token, as in verl, and not per sequence.
    """
    kl, seen = recipe.kl, numbers.get("kl_ref/token_mean")
    if kl is None or kl.target is None or seen is None:
        return {}
    error = min(max(seen / kl.target - 1, -REACH), REACH)
    return {COEF: kl.coef * (1 + error * episodes / kl.horizon)}


def steering_metrics(recipe: Recipe) -> dict[str, Metric]:
    """The coefficient that acts in this batch, where it is steered."""
    if recipe.kl is None or recipe.kl.target is None:
        return {}
    return {"kl_ref/coef": Mean(recipe.kl.coef, 1.0)}


def next_moments(recipe: Recipe, reward: PerEpisode, votes: EpisodeFlag, memory: Memory) -> dict[str, float]:
    """Count, mean and sum of squares around it of all voters so far, these included: Chan et al. 1979."""
    if not {"running_mean", "running_std"} & set(recipe.normalize.formula.inputs):
        return {}
    count, mean, m2 = (memory.get(name, 0.0) for name in RUNNING)
    voting = reward.double()[votes]
    if not voting.numel():
        return dict(zip(RUNNING, (count, mean, m2), strict=True))
    own = float(voting.mean())
    total, apart = count + voting.numel(), own - mean
    square = float((voting - own).square().sum()) + apart * apart * count * voting.numel() / total
    return dict(zip(RUNNING, (total, mean + apart * voting.numel() / total, m2 + square), strict=True))


def running(memory: Memory, batch: SignalBatch) -> dict[str, Any]:
    """What formulas may read of all rewards so far; the standard deviation has ddof 1 and is 0 of fewer than two."""
    if not memory:
        return dict.fromkeys(("running_mean", "running_std"))
    count, mean, m2 = (memory[name] for name in RUNNING)
    spread = (m2 / (count - 1)) ** 0.5 if count > 1 else 0.0
    return {"running_mean": batch.reward.new_tensor(mean), "running_std": batch.reward.new_tensor(spread)}


def refuse_forgotten(recipe: Recipe) -> None:
    """Raise where rewards meet what earlier batches left, in a call that keeps nothing from one to the next."""
    if EARLIER & set(recipe.normalize.formula.inputs):
        raise SignalError(
            f"loss: {recipe.normalize.formula.name} compares with what earlier batches earned, and a call of loss "
            "knows of none. Pass advantage=…, or use prepare and hand on the state it returns."
        )
    if recipe.kl is not None and recipe.kl.target is not None:
        raise SignalError(
            f"loss: recipe {recipe.name!r} steers its KL to kl.target = {recipe.kl.target:g} from batch to batch, and "
            f"a call of loss keeps nothing, so the coefficient would stay {recipe.kl.coef:g}. Use prepare and hand on "
            "the state it returns, or leave target out."
        )


def role_averages(recipe: Recipe, batch: SignalBatch, memory: Memory) -> dict[str, Any]:
    """The average of each episode's role before this batch; 0 of one that was never seen."""
    if "role_average" not in recipe.normalize.formula.inputs:
        return {"role_average": None}
    roles, place = cast("tuple[Tensor, Tensor]", torch.unique(cast("Tensor", batch.role), return_inverse=True))
    known = [memory.get(f"{ROLE}{role}", 0.0) for role in cast("list[int]", roles.tolist())]
    return {"role_average": batch.reward.new_tensor(known).index_select(0, place)}


def next_role_averages(
    recipe: Recipe, batch: SignalBatch, reward: PerEpisode, votes: EpisodeFlag, memory: Memory
) -> dict[str, float]:
    """The average of each role after this batch; one without voters keeps its own (see normalize.minus_role_average).

    average' = decay^n * average + (1 - decay^n) * mean of the role's n voters
    """
    if "role_average" not in recipe.normalize.formula.inputs:
        return {}
    roles, decay, learned = (
        cast("Tensor", batch.role),
        cast("float", recipe.normalize.settings["decay"]),
        dict[str, float](),
    )
    for role in cast("list[int]", torch.unique(roles[votes]).tolist()):
        own, name = reward.double()[votes & (roles == role)], f"{ROLE}{role}"
        # Around the lowest, so that the mean of equal rewards is that reward exactly.
        lowest, share = float(own.min()), decay ** len(own)
        learned[name] = share * memory.get(name, 0.0) + (1 - share) * (lowest + float((own - lowest).mean()))
    return learned
