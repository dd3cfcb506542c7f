"""Other baselines and scales of episode rewards: what a reward is compared with, besides the mean of its group.

As in `normalize`: only episodes that vote enter a statistic, and a formula returns the normalised rewards and which
episodes got one.
"""

from typing import Literal

import torch

from trimtab.errors import SignalError
from trimtab.signal.catalogue import NonNegative, Rule, Unit, formula
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode, Scalar, places
from trimtab.signal.normalize import PROMISES, Normalized
from trimtab.signal.voters import Voters, refuse_lone


@formula(
    source="Tajwar et al. 2026, MaxRL, arXiv:2602.02710",
    scope="group",
    stage="normalize",
    promises=PROMISES,
    known_as=("MaxRL",),
)
def over_mean(reward: PerEpisode, votes: EpisodeFlag, group_of_episode: EpisodeIndex, num_groups: int) -> Normalized:
    """The reward minus the group's mean, divided by that mean: a rare success counts for more.

    a_i = (reward_i - mean_g) / mean_g,   0 where mean_g = 0

    An episode that does not vote stays between the lowest and the highest voter, as in mean_std.
    Differs from SkyRL: nothing is added to the mean, and a negative one cannot turn the signs.
    Undefined when a voter's reward is negative, or an episode is alone in its group (raises).
    """
    refuse_lone("over_mean", group_of_episode, num_groups)
    below = places(votes & (reward < 0))
    if below:
        raise SignalError(
            f"over_mean: the reward of episode {below[0]} is {reward[below[0]].item():g} ({len(below)} are negative), "
            "and divided by a negative mean, worse answers would be preferred. Shift rewards to 0 or more."
        )
    values = reward.double()
    group = Voters.of("group", votes, group_of_episode, num_groups)
    mean, enough = group.average(values), group.voters >= 2
    result = group.bounded(torch.where(mean > 0, (values - mean) / mean, torch.zeros_like(values)))
    return torch.where(enough, result, 0.0).to(reward.dtype), enough


@formula(
    source="Hao et al. 2025, OPO, arXiv:2505.23585",
    scope="group",
    stage="normalize",
    promises=PROMISES,
    known_as=("OPO",),
)
def length_weighted_mean(
    reward: PerEpisode,
    votes: EpisodeFlag,
    length: PerEpisode,
    group_of_episode: EpisodeIndex,
    num_groups: int,
) -> Normalized:
    """The reward minus the group's mean, in which each answer counts for its length.

    a_i = reward_i - sum_j length_j * reward_j / sum_j length_j,   j the voters of the group

    Without a voter of any length there is no mean: 0 and no signal.
    Undefined when an episode is alone in its group (raises).
    """
    refuse_lone("length_weighted_mean", group_of_episode, num_groups)
    values = reward.double()
    group = Voters.of("group", votes, group_of_episode, num_groups)
    lowest, total = group.extreme(values, "amin"), group.to_items(group.sum(length.double()))
    mean = lowest + group.to_items(group.sum(length * (values - lowest))) / total
    enough = (group.voters >= 2) & (total > 0)
    return torch.where(enough, values - mean, 0.0).to(reward.dtype), enough


@formula(
    source="Walder and Karkhanis 2025, Pass@K policy optimisation, arXiv:2503.19595 (as verl has it)",
    scope="group",
    stage="normalize",
    promises=PROMISES,
    known_as=("Pass@k",),
)
def best_minus_second(
    reward: PerEpisode,
    votes: EpisodeFlag,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    *,
    std: Literal["group", "none"] = "group",
    eps: NonNegative = 1e-6,
) -> Normalized:
    """The lead of the best answer over the runner-up, for the best alone; everyone else gets 0.

    a_i = max(0, reward_i - max_{j != i, j votes} reward_j) / (std_g + eps),   ddof 1

    A tie has no lead, so no answer has to be chosen. An episode that does not vote leads nobody and gets 0.
    Undefined when an episode is alone in its group (raises).
    """
    refuse_lone("best_minus_second", group_of_episode, num_groups)
    values = reward.double()
    group = Voters.of("group", votes, group_of_episode, num_groups)
    beside, theirs = group.others(values)
    runner_up = torch.where(theirs, beside, -torch.inf).amax(1)
    enough = group.voters >= 2
    lead = (values - runner_up).clamp(min=0)
    if std == "group":
        lead = lead / (group.spread(values - group.average(values), 1) + eps)
    return torch.where(votes & enough, lead, 0.0).to(reward.dtype), enough


@formula(
    source="Chu et al. 2025, GPG, arXiv:2504.02546, sec. 2",
    scope="batch",
    stage="normalize",
    promises=PROMISES,
    known_as=("GPG",),
)
def rescaled_mean(
    reward: PerEpisode,
    votes: EpisodeFlag,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    *,
    counted: Literal["varied_groups", "nonzero_rewards"] = "varied_groups",
) -> Normalized:
    """The reward minus the group's mean, scaled up for the voters that teach nothing.

    a_i = (reward_i - mean_g) * voters / counted voters

    counted are the voters of groups whose rewards differ (the paper), or those with a reward other than 0 (verl).
    Where none is counted, nothing is scaled.
    Differs from verl: the default counts by group; by score, a group in which everyone is right counts as signal.
    Undefined when an episode is alone in its group (raises).
    """
    refuse_lone("rescaled_mean", group_of_episode, num_groups)
    values = reward.double()
    group = Voters.of("group", votes, group_of_episode, num_groups)
    varies = group.extreme(values, "amax") > group.extreme(values, "amin")
    teaches = votes & (varies if counted == "varied_groups" else values != 0)
    voters, teaching = votes.count_nonzero().double(), teaches.count_nonzero()
    factor = torch.where(teaching > 0, voters / teaching, 1.0)
    enough = group.voters >= 2
    return torch.where(enough, (values - group.average(values)) * factor, 0.0).to(reward.dtype), enough


@formula(
    source="ROLL, reward_norm with running moments; Welford 1962",
    scope="batch",
    stage="normalize",
    promises=PROMISES,
)
def running(
    reward: PerEpisode, votes: EpisodeFlag, running_mean: Scalar, running_std: Scalar, *, eps: NonNegative = 1e-6
) -> Normalized:
    """The reward against the mean and the standard deviation of every voter so far in the run, this batch included.

    a_i = (reward_i - running_mean) / (running_std + eps)

    The state carries count, mean and squares from batch to batch. Rewards that never differed are not divided.
    """
    centred = reward.double() - running_mean
    scaled = torch.where(running_std > 0, centred / (running_std + eps), centred)
    return scaled.to(reward.dtype), torch.ones_like(votes)


@formula(
    source="Li et al. 2023, ReMax, arXiv:2310.10505, eq. 5",
    scope="episode",
    stage="normalize",
    promises=PROMISES,
    known_as=("ReMax",),
)
def minus_given(reward: PerEpisode, votes: EpisodeFlag, baseline: PerEpisode) -> Normalized:
    """The reward minus a baseline of the caller's: for ReMax, the reward of the greedy answer to the same prompt.

    a_i = reward_i - baseline_i

    The baseline must not depend on the answer it is compared with. With advantage.reward_to_go it is subtracted from
    every return, as in verl.
    """
    return reward - baseline.to(reward.dtype), torch.ones_like(votes)


@formula(
    source="Liu et al. 2025, SPIRAL, arXiv:2506.24119 (role-conditioned advantage estimation)",
    scope="batch",
    stage="normalize",
    promises=PROMISES,
    known_as=("RAE",),
    rules=(Rule(lambda given: given["decay"] < 1, "an average that forgets nothing stays where it starts, at 0"),),
)
def minus_role_average(
    reward: PerEpisode, votes: EpisodeFlag, role_average: PerEpisode, *, decay: Unit = 0.95
) -> Normalized:
    """The reward minus what its role earned so far in the run: for self-play, each player has a baseline of its own.

    a_i = reward_i - role_average_i,   the average of its role before this batch, 0 at first
    average' = decay^n * average + (1 - decay^n) * mean of the role's n voters in this batch

    `role` is a field of the batch; the state carries the averages from batch to batch, and `decay` acts there.
    Differs from the paper: it moves the average after each episode, so it depends on their order. Here, a batch moves
    it once, as far as n single steps would; the two are equal where the role's rewards are equal.
    """
    return reward - role_average.to(reward.dtype), torch.ones_like(votes)
