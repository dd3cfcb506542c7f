"""Baselines and scales of episode rewards: the only place that compares one episode with others.

Only episodes that vote enter a statistic; everyone gets the result. Statistics are two-pass in
float64, so a constant group has a spread of exactly zero. A formula returns the normalised rewards and which episodes
got one: a group left with fewer voters than its formula needs gives 0 and is counted by the pipeline, while a group
that never had enough episodes is undefined input and raises.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.catalogue import NonNegative, formula
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode, places
from trimtab.signal.reduce import segment_sum

Level = Literal["none", "group", "batch"]
Normalized = tuple[PerEpisode, EpisodeFlag]

_PROMISES = (
    "no_aliasing",
    "permutation",
    "group_isolation",
    "suppressed_do_not_vote",
    "equals_definition",
    "metric_truth",
)


@formula(source="Williams 1992, REINFORCE, without a baseline", scope="episode", promises=_PROMISES)
def raw(reward: PerEpisode, votes: EpisodeFlag) -> Normalized:
    """No baseline and no scale: the reward as it is."""
    return reward.clone(), torch.ones_like(votes)


@formula(
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, sec. 4.1.2 (group, group); "
    "Liu et al. 2025, Dr.GRPO, arXiv:2503.20783 (group, none); Hu et al. 2025, REINFORCE++, arXiv:2501.03262 (batch)",
    scope="batch",
    promises=_PROMISES,
    known_as=("GRPO", "Dr.GRPO"),
)
def mean_std(
    reward: PerEpisode,
    votes: EpisodeFlag,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    *,
    mean: Level = "group",
    std: Level = "group",
    ddof: Literal[0, 1] = 1,
    eps: NonNegative = 1e-6,
) -> Normalized:
    """Subtract the voters' mean and divide by their standard deviation, each at its own level.

    a_i = (reward_i - mean_level) / (std_level + eps)

    Differs from the papers: an episode that does not vote gets no more than the voters themselves span. Its a_i is
    bounded to [min a, max a] over the voters at the level of std, so voters who almost agree cannot blow it up.
    Undefined when a group has one episode and mean or std is taken per group (raises).
    """
    if mean == std == "none":
        return raw(reward, votes)
    _refuse_lone("mean_std", group_of_episode, num_groups, when="group" in (mean, std))
    values = reward.double()
    result = values - _average(values, votes, group_of_episode, num_groups, mean)
    if std != "none":
        around = _average(values, votes, group_of_episode, num_groups, std)
        spread = _spread(values - around, votes, group_of_episode, num_groups, std, ddof)
        scaled = torch.where(spread > 0, result / (spread + eps), result)
        result = _bounded(scaled, votes, group_of_episode, num_groups, std)
    enough = _voters(votes, group_of_episode, num_groups, "group" if "group" in (mean, std) else "batch") >= 2
    return torch.where(enough, result, torch.zeros_like(result)).to(reward.dtype), enough


@formula(
    source="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740, eq. 7; Kool et al. 2019",
    scope="group",
    promises=_PROMISES,
    known_as=("RLOO",),
)
def leave_one_out(
    reward: PerEpisode, votes: EpisodeFlag, group_of_episode: EpisodeIndex, num_groups: int
) -> Normalized:
    """The reward minus the mean reward of the group's other voters.

    a_i = reward_i - mean_{j != i, j votes} reward_j

    Undefined when an episode is alone in its group (raises).
    """
    _refuse_lone("leave_one_out", group_of_episode, num_groups)
    # Around the group's mean, so that equal rewards differ by exactly 0.
    exact = reward.double()
    values = exact - _average(exact, votes, group_of_episode, num_groups, "group")
    voting = torch.where(votes, values, torch.zeros_like(values))
    total = segment_sum(voting, group_of_episode, num_groups)[group_of_episode] - voting
    voters = _voters(votes, group_of_episode, num_groups, "group")
    enough = voters >= 2
    others = voters - votes.to(torch.long)
    result = torch.where(enough, values - total / others, torch.zeros_like(values))
    return result.to(reward.dtype), enough


def whiten(
    values: Float[Tensor, " items"], votes: Bool[Tensor, " items"], *, eps: float = 1e-8
) -> Float[Tensor, " items"]:
    """Zero mean and unit variance over the voters, for everyone: (x - mean) / sqrt(var + eps), var with ddof 1.

    Fewer than two voters have no variance: everyone gets 0, as in a group without signal. An item that does not vote
    gets no more than the voters themselves span: its result is bounded to [min, max] of theirs, as in mean_std.
    """
    exact = values.double()
    if not exact.numel():
        return values.clone()
    lowest = torch.where(votes, exact, torch.inf).amin()
    above = exact - lowest  # as in _average: equal values have exactly that mean
    voters = votes.count_nonzero()
    centred = above - torch.where(votes, above, 0.0).sum() / voters
    variance = torch.where(votes, centred, 0.0).square().sum() / (voters - 1)
    whitened = centred / torch.where(variance > 0, torch.sqrt(variance + eps), 1.0)
    low, high = torch.where(votes, whitened, torch.inf).amin(), torch.where(votes, whitened, -torch.inf).amax()
    bounded = torch.where(votes, whitened, whitened.clamp(low, high))
    return torch.where(voters >= 2, bounded, 0.0).to(values.dtype)


def _place(index: EpisodeIndex, num_groups: int, level: Level) -> tuple[Int[Tensor, " items"], int]:
    return (index, num_groups) if level == "group" else (torch.zeros_like(index), 1)


def _voters(votes: Bool[Tensor, " items"], index: EpisodeIndex, num_groups: int, level: Level) -> Int[Tensor, " items"]:
    place, count = _place(index, num_groups, level)
    return segment_sum(votes.to(torch.long), place, count)[place]


def _average(
    values: Float[Tensor, " items"], votes: Bool[Tensor, " items"], index: EpisodeIndex, num_groups: int, level: Level
) -> Float[Tensor, " items"]:
    if level == "none":
        return torch.zeros_like(values)
    place, count = _place(index, num_groups, level)
    # Averaging the distance to the lowest vote, not the value, makes the mean of equal rewards that reward exactly.
    lowest = values.new_zeros(count).scatter_reduce(0, place[votes], values[votes], "amin", include_self=False)[place]
    above = torch.where(votes, values - lowest, torch.zeros_like(values))
    return lowest + segment_sum(above, place, count)[place] / _voters(votes, index, num_groups, level)


def _spread(
    centred: Float[Tensor, " items"],
    votes: Bool[Tensor, " items"],
    index: EpisodeIndex,
    num_groups: int,
    level: Level,
    ddof: int,
) -> Float[Tensor, " items"]:
    """Standard deviation of the voters' centred values."""
    place, count = _place(index, num_groups, level)
    square = torch.where(votes, centred.square(), torch.zeros_like(centred))
    total = segment_sum(square, place, count)[place]
    voters = _voters(votes, index, num_groups, level)
    return torch.sqrt(total / (voters - ddof))


def _bounded(
    result: Float[Tensor, " items"], votes: Bool[Tensor, " items"], index: EpisodeIndex, num_groups: int, level: Level
) -> Float[Tensor, " items"]:
    """Voters as they are; everyone else held between the lowest and the highest voter of its level."""
    place, count = _place(index, num_groups, level)
    blank = result.new_zeros(count)
    low, high = (
        blank.scatter_reduce(0, place[votes], result[votes], how, include_self=False)[place] for how in ("amin", "amax")
    )
    return torch.where(votes, result, torch.minimum(torch.maximum(result, low), high))


def _refuse_lone(where: str, group_of_episode: EpisodeIndex, num_groups: int, *, when: bool = True) -> None:
    size = segment_sum(torch.ones_like(group_of_episode), group_of_episode, num_groups)
    alone = places(size[group_of_episode] == 1)
    if when and alone:
        raise SignalError(
            f"{where}: episodes {alone[:8]} are alone in their group, so there is no other reward to compare with. "
            "Sample two or more answers per prompt, or drop these."
        )
