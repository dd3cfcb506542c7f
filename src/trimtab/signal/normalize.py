"""Baselines and scales of episode rewards: the only place that compares one episode with others.

Only episodes that vote enter a statistic; everyone gets the result. Statistics are two-pass in
float64, so a constant group has a spread of exactly zero. A formula returns the normalised rewards and which episodes
got one: a group left with fewer voters than its formula needs gives 0 and is counted by the pipeline, while a group
that never had enough episodes is undefined input and raises.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trimtab.signal.catalogue import Finite, NonNegative, Rule, formula
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode
from trimtab.signal.tensors import is_plain
from trimtab.signal.voters import Level, Voters, refuse_lone

Normalized = tuple[PerEpisode, EpisodeFlag]

PROMISES = (
    "no_aliasing",
    "permutation",
    "group_isolation",
    "suppressed_do_not_vote",
    "equals_definition",
    "metric_truth",
)


@formula(source="Williams 1992, REINFORCE, without a baseline", scope="episode", promises=PROMISES)
def raw(reward: PerEpisode, votes: EpisodeFlag) -> Normalized:
    """No baseline and no scale: the reward as it is."""
    return reward.clone(), torch.ones_like(votes)


@formula(
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, sec. 4.1.2 (group, group); "
    "Liu et al. 2025, Dr.GRPO, arXiv:2503.20783 (group, none); Hu et al. 2025, REINFORCE++, arXiv:2501.03262 (batch); "
    "Arnal et al. 2025, AsymRE, arXiv:2506.20520 (shift)",
    scope="batch",
    promises=PROMISES,
    known_as=("GRPO", "Dr.GRPO", "AsymRE"),
    rules=(Rule(lambda given: given["shift"] == 0 or given["mean"] != "none", "a shift moves a mean; name one"),),
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
    shift: Finite = 0.0,
) -> Normalized:
    """Subtract the voters' mean and divide by their standard deviation, each at its own level.

    a_i = (reward_i - (mean_level + shift)) / (std_level + eps)

    Settings in use: AsymRE has (group, none) and shift -0.1, so that a group without variance still pushes up.

    Differs from the papers: an episode that does not vote gets no more than the voters themselves span. Its a_i is
    bounded to [min a, max a] over the voters at the level of std, so voters who almost agree cannot blow it up.
    Undefined when a group has one episode and mean or std is taken per group (raises).
    """
    if mean == std == "none":
        return raw(reward, votes)
    if "group" in (mean, std):
        refuse_lone("mean_std", group_of_episode, num_groups)
    values = reward.double()
    levels = {level: Voters.of(level, votes, group_of_episode, num_groups) for level in (mean, std) if level != "none"}
    result = values - levels[mean].average(values) if mean != "none" else values
    if std != "none":
        around = result if mean == std else values - levels[std].average(values)
        spread = levels[std].spread(around, ddof)
        result = result - shift
        scaled = torch.where(spread > 0, result / (spread + eps), result)
        result = levels[std].bounded(scaled)
    else:
        result = result - shift
    enough = levels["group" if "group" in levels else "batch"].voters >= 2
    return torch.where(enough, result, torch.zeros_like(result)).to(reward.dtype), enough


@formula(
    source="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740, eq. 7; Kool et al. 2019; "
    "NeMo-RL (std of the others)",
    scope="group",
    promises=PROMISES,
    known_as=("RLOO",),
)
def leave_one_out(
    reward: PerEpisode,
    votes: EpisodeFlag,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    *,
    std: Literal["none", "others"] = "none",
    eps: NonNegative = 1e-6,
) -> Normalized:
    """The reward minus the mean reward of the group's other voters; with std = others, in units of their spread.

    a_i = (reward_i - mean_{j != i, j votes} reward_j) / (std_{j != i, j votes} reward_j + eps)     ddof 1

    Where the others agree, or there is only one, nothing is divided. An episode is not in its own scale: if the others
    almost agree, a_i is as large as eps allows. One that does not vote stays between the lowest and the highest voter.
    Differs from NeMo-RL: the spread is two-pass, so that others who agree have exactly 0 (NeMo-RL #4158).
    Undefined when an episode is alone in its group (raises).
    """
    refuse_lone("leave_one_out", group_of_episode, num_groups)
    # Around the group's mean, so that equal rewards differ by exactly 0.
    exact = reward.double()
    group = Voters.of("group", votes, group_of_episode, num_groups)
    values = exact - group.average(exact)
    voting = torch.where(votes, values, torch.zeros_like(values))
    total = group.to_items(group.sum(values)) - voting
    enough = group.voters >= 2
    others = group.voters - votes.to(torch.long)
    result = torch.where(enough, values - total / others, torch.zeros_like(values))
    if std == "others":
        scaled = group.bounded(_in_units_of(*group.others(values), result, eps))
        result = torch.where(enough, scaled, 0.0)
    return result.to(reward.dtype), enough


def _in_units_of(
    beside: Float[Tensor, "items seats"],
    theirs: Bool[Tensor, "items seats"],
    result: Float[Tensor, " items"],
    eps: float,
) -> Float[Tensor, " items"]:
    """Each item divided by the spread of the others beside it; undivided where that is 0."""
    count = theirs.sum(1, keepdim=True)
    # As in Voters.average: equal values have exactly that mean.
    low = torch.where(theirs, beside, torch.inf).amin(1, keepdim=True)
    mean = low + torch.where(theirs, beside - low, 0.0).sum(1, keepdim=True) / count
    squares = torch.where(theirs, beside - mean, 0.0).square().sum(1)
    spread = torch.sqrt(squares / (count.squeeze(1) - 1))  # of one, not a number
    return torch.where(spread > 0, result / (spread + eps), result)


def whiten(
    values: Float[Tensor, " items"], votes: Bool[Tensor, " items"], *, eps: float = 1e-8
) -> Float[Tensor, " items"]:
    """Zero mean and unit variance over the voters, for everyone: (x - mean) / sqrt(var + eps), var with ddof 1.

    Fewer than two voters have no variance: everyone gets 0, as in a group without signal. An item that does not vote
    gets no more than the voters themselves span: its result is bounded to [min, max] of theirs, as in mean_std.
    """
    if not values.numel():
        return torch.empty_like(values)
    voters = votes.count_nonzero()
    # Where numbers are read back at no cost, a batch in which everyone votes is spared the masks.
    everyone = is_plain(votes) and bool(votes.all())

    def voting(items: Tensor, otherwise: float) -> Tensor:
        return items if everyone else torch.where(votes, items, otherwise)

    lowest = voting(values, torch.inf).amin()
    # As in Voters.average: equal values have exactly that mean. A copy of our own, so every step is taken in place.
    above = values.to(torch.float64, copy=True).sub_(lowest)
    mean = voting(above, 0.0).sum() / voters
    centred = above.sub_(mean)
    counted = voting(centred, 0.0)
    variance = counted.dot(counted) / (voters - 1)
    # Nothing is above 0 where voters agree, where there is one (not a number) and where there is none.
    scale = torch.where(variance > 0, torch.sqrt(variance + eps), torch.inf)
    whitened = centred.div_(scale)
    if everyone:
        return whitened.to(values.dtype)
    # A larger value never gives a smaller result, so the voters' extremes are those of their values.
    highest = voting(values, -torch.inf).amax().double() - lowest
    bounded = whitened.clamp((0.0 - mean) / scale, (highest - mean) / scale)
    return torch.where(variance > 0, bounded, 0.0).to(values.dtype)
