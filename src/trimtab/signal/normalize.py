"""Baselines and scales of episode rewards: the only place that compares one episode with others.

Only episodes that vote enter a statistic; everyone gets the result. Statistics are two-pass in
float64, so a constant group has a spread of exactly zero. A formula returns the normalised rewards and which episodes
got one: a group left with fewer voters than its formula needs gives 0 and is counted by the pipeline, while a group
that never had enough episodes is undefined input and raises.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.catalogue import NonNegative, formula
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode, places
from trimtab.signal.reduce import segment_extreme, segment_sum

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
    if "group" in (mean, std):
        _refuse_lone("mean_std", group_of_episode, num_groups)
    values = reward.double()
    levels = {level: _Level.of(level, votes, group_of_episode, num_groups) for level in (mean, std) if level != "none"}
    result = values - levels[mean].average(values) if mean != "none" else values
    if std != "none":
        around = result if mean == std else values - levels[std].average(values)
        spread = levels[std].spread(around, ddof)
        scaled = torch.where(spread > 0, result / (spread + eps), result)
        result = levels[std].bounded(scaled)
    enough = levels["group" if "group" in levels else "batch"].voters >= 2
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
    group = _Level.of("group", votes, group_of_episode, num_groups)
    values = exact - group.average(exact)
    voting = torch.where(votes, values, torch.zeros_like(values))
    total = group.to_items(group.sum(values)) - voting
    enough = group.voters >= 2
    others = group.voters - votes.to(torch.long)
    result = torch.where(enough, values - total / others, torch.zeros_like(values))
    return result.to(reward.dtype), enough


def whiten(
    values: Float[Tensor, " items"], votes: Bool[Tensor, " items"], *, eps: float = 1e-8
) -> Float[Tensor, " items"]:
    """Zero mean and unit variance over the voters, for everyone: (x - mean) / sqrt(var + eps), var with ddof 1.

    Fewer than two voters have no variance: everyone gets 0, as in a group without signal. An item that does not vote
    gets no more than the voters themselves span: its result is bounded to [min, max] of theirs, as in mean_std.
    """
    if not values.numel():
        return values.clone()
    voters = votes.count_nonzero()
    # Where numbers are read back at no cost, a batch in which everyone votes is spared the masks.
    everyone = votes.device.type == "cpu" and int(voters) == votes.shape[0] >= 2

    def voting(items: Tensor, otherwise: float) -> Tensor:
        return items if everyone else torch.where(votes, items, otherwise)

    lowest = voting(values, torch.inf).amin().double()
    # As in _Level.average: equal values have exactly that mean. A copy of our own, so every step is taken in place.
    above = values.to(torch.float64, copy=True).sub_(lowest)
    mean = voting(above, 0.0).sum() / voters
    centred = above.sub_(mean)
    counted = voting(centred, 0.0)
    variance = counted.dot(counted) / (voters - 1)
    scale = torch.where(variance > 0, torch.sqrt(variance + eps), 1.0)
    whitened = centred.div_(scale)
    if everyone:
        return whitened.to(values.dtype)
    # A larger value never gives a smaller result, so the voters' extremes are those of their values.
    highest = voting(values, -torch.inf).amax().double() - lowest
    bounded = whitened.clamp((0.0 - mean) / scale, (highest - mean) / scale)
    return torch.where(voters >= 2, bounded, 0.0).to(values.dtype)


@dataclass(frozen=True)
class _Level:
    """The voters among whom items are compared: those of each item's group, or all of the batch.

    Whatever is not a vote enters no statistic, not even as a zero times it: it may be nan.
    """

    votes: Bool[Tensor, " items"]
    place: Int[Tensor, " items"]
    """The group of each item."""
    count: int
    voters: Int[Tensor, " items"]
    """How many vote in the group of each item."""

    @classmethod
    def of(cls, level: Level, votes: Bool[Tensor, " items"], index: EpisodeIndex, num_groups: int) -> "_Level":
        place, count = (index, num_groups) if level == "group" else (torch.zeros_like(index), 1)
        voters = segment_sum(votes.to(torch.long), place, count)
        return cls(votes, place, count, voters.index_select(0, place))

    def to_items(self, values: Float[Tensor, " groups"]) -> Float[Tensor, " items"]:
        return values.index_select(0, self.place)

    def sum(self, values: Float[Tensor, " items"]) -> Float[Tensor, " groups"]:
        return segment_sum(torch.where(self.votes, values, torch.zeros_like(values)), self.place, self.count)

    def extreme(self, values: Float[Tensor, " items"], how: Literal["amin", "amax"]) -> Float[Tensor, " items"]:
        """The smallest or the largest vote of each item's group; without voters, an infinity that bounds nothing."""
        blank = torch.inf if how == "amin" else -torch.inf
        voting = torch.where(self.votes, values, torch.full_like(values, blank))
        return self.to_items(segment_extreme(voting, self.place, self.count, how))

    def average(self, values: Float[Tensor, " items"]) -> Float[Tensor, " items"]:
        # Averaging the distance to the lowest vote, not the value, makes the mean of equal rewards that reward exactly.
        lowest = self.extreme(values, "amin")
        return lowest + self.to_items(self.sum(values - lowest)) / self.voters

    def spread(self, centred: Float[Tensor, " items"], ddof: int) -> Float[Tensor, " items"]:
        """Standard deviation of the voters' centred values."""
        return torch.sqrt(self.to_items(self.sum(centred.square())) / (self.voters - ddof))

    def bounded(self, result: Float[Tensor, " items"]) -> Float[Tensor, " items"]:
        """Everyone held between the lowest and the highest voter; that changes no voter."""
        return result.clamp(self.extreme(result, "amin"), self.extreme(result, "amax"))


def _refuse_lone(where: str, group_of_episode: EpisodeIndex, num_groups: int) -> None:
    if getattr(group_of_episode, "has_company", False):  # the door has looked
        return
    size = segment_sum(torch.ones_like(group_of_episode), group_of_episode, num_groups)
    if bool((size == 1).any()):
        alone = places(size[group_of_episode] == 1)
        raise SignalError(
            f"{where}: episodes {alone[:8]} are alone in their group, so there is no other reward to compare with. "
            "Sample two or more answers per prompt, or drop these."
        )
