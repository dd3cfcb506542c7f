"""Baselines of plain rewards, worked out in numpy: the numbers of `normalize`, in a fraction of the time per call.

Each function stands for the formula of its name.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode
from trimtab.signal.parts import Part
from trimtab.signal.tensors import Array, is_plain, quiet


class Voters:
    """The voters of each group, or of the whole batch as one group."""

    def __init__(self, votes: Array, group: Array, num_groups: int) -> None:
        self.votes: Array = votes
        self.group: Array = group
        self.count: int = num_groups
        self.voters: Array = np.bincount(group, votes, num_groups)[group]

    def total(self, values: Array) -> Array:
        """The sum over the voters of each item's group. What does not vote may be nan."""
        return np.bincount(self.group, np.where(self.votes, values, 0.0), self.count)[self.group]

    def extreme(self, values: Array, how: np.ufunc, blank: float) -> Array:
        found = np.full(self.count, blank)
        how.at(found, self.group, np.where(self.votes, values, blank))
        return found[self.group]

    def average(self, values: Array) -> Array:
        # Around the lowest vote, so that the mean of equal rewards is that reward exactly.
        lowest = self.extreme(values, np.minimum, np.inf)
        return lowest + self.total(values - lowest) / self.voters


def mean_std(
    reward: Array, votes: Array, group: Array, num_groups: int, *, mean: str, std: str, ddof: int, eps: float,
    shift: float,
) -> tuple[Array, Array]:  # fmt: skip
    if mean == std == "none":
        return reward.copy(), np.ones_like(votes)
    places = {"group": (group, num_groups), "batch": (np.zeros_like(group), 1)}
    levels = {level: Voters(votes, *places[level]) for level in {mean, std} - {"none"}}
    result = reward - levels[mean].average(reward) if mean != "none" else reward
    if std != "none":
        around = result if mean == std else reward - levels[std].average(reward)
        result = result - shift if shift else result
        spread = np.sqrt(levels[std].total(around * around) / (levels[std].voters - ddof))
        result = cast("Array", np.where(spread > 0, result / (spread + eps), result))
        if not votes.all():  # who does not vote stays within the voters
            low = levels[std].extreme(result, np.minimum, np.inf)
            result = np.minimum(np.maximum(result, low), levels[std].extreme(result, np.maximum, -np.inf))
    elif shift:
        result = result - shift
    enough = levels["group" if "group" in levels else "batch"].voters >= 2
    return np.where(enough, result, 0.0), enough


def leave_one_out(
    reward: Array, votes: Array, group: Array, num_groups: int, *, std: str, eps: float
) -> tuple[Array, Array] | None:
    """None with the spread of the others, which the formula itself takes."""
    if std != "none":
        return None
    voters = Voters(votes, group, num_groups)
    values = reward - voters.average(reward)
    enough = voters.voters >= 2
    others = (voters.total(values) - np.where(votes, values, 0.0)) / (voters.voters - votes)
    return np.where(enough, values - others, 0.0), enough


PER_GROUP: dict[str, Callable[..., tuple[Array, Array] | None]] = {
    "normalize.mean_std": mean_std,
    "normalize.leave_one_out": leave_one_out,
}
"""Every formula that is worked out here, by its name."""


@quiet
def normalized(
    part: Part, reward: PerEpisode, votes: EpisodeFlag, group: EpisodeIndex, num_groups: int
) -> tuple[Tensor, Tensor] | None:
    """Normalised rewards and who got one; None where the formula itself has to answer, or to refuse."""
    shortcut = PER_GROUP.get(part.formula.name)
    if shortcut is None or not (is_plain(reward) and is_plain(votes) and is_plain(group)):
        return None
    settings: dict[str, Any] = part.own_settings
    by_group = part.formula.name != "normalize.mean_std" or "group" in (settings["mean"], settings["std"])
    names = group.numpy()
    if by_group and not getattr(group, "has_company", False):
        return None
    found = shortcut(reward.double().numpy(), votes.numpy(), names, num_groups, **settings)
    if found is None:
        return None
    result, enough = found
    return torch.from_numpy(result).to(reward.dtype), torch.from_numpy(enough)
