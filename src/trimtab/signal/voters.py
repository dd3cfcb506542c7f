"""Who is compared with whom: the only place that takes statistics over the voters of a group or of the batch.

It knows rewards and votes as plain numbers and flags, and no formula.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.layout import EpisodeIndex, places
from trimtab.signal.reduce import segment_extreme, segment_sum

Level = Literal["none", "group", "batch"]


@dataclass(frozen=True)
class Voters:
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
    def of(cls, level: Level, votes: Bool[Tensor, " items"], index: EpisodeIndex, num_groups: int) -> "Voters":
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

    def others(
        self, values: Float[Tensor, " items"]
    ) -> tuple[Float[Tensor, "items seats"], Bool[Tensor, "items seats"]]:
        """For each item, the members of its group side by side, and which of these are voters other than itself."""
        size = segment_sum(torch.ones_like(self.place), self.place, self.count)
        order = torch.argsort(self.place, stable=True)
        first = (size.cumsum(0) - size).index_select(0, self.place)
        seat = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device)) - first
        width = int(size.max()) if len(order) else 1
        table = values.new_zeros(self.count, width).index_put((self.place, seat), values)
        there = torch.zeros_like(table, dtype=torch.bool).index_put((self.place, seat), self.votes)
        own = torch.arange(width, device=seat.device) == seat[:, None]
        return table.index_select(0, self.place), there.index_select(0, self.place) & ~own


def refuse_lone(where: str, group_of_episode: EpisodeIndex, num_groups: int) -> None:
    if getattr(group_of_episode, "has_company", False):  # the door has looked
        return
    size = segment_sum(torch.ones_like(group_of_episode), group_of_episode, num_groups)
    if bool((size == 1).any()):
        alone = places(size[group_of_episode] == 1)
        raise SignalError(
            f"{where}: episodes {alone[:8]} are alone in their group, so there is no other reward to compare with. "
            "Sample two or more answers per prompt, or drop these."
        )
