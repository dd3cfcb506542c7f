"""Rewards of episodes, and their way onto tokens: the only place that changes a task reward before normalisation.

The order is written once, in `prepare`: shape → status and votes → KL into the reward → normalise → token rewards.
"""

import torch

from trimtab.errors import SignalError
from trimtab.signal.catalogue import Finite, NonNegative, Positive, Rule, Unit, formula
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode, PerSequence, PerToken, Segments
from trimtab.signal.reduce import last_token
from trimtab.signal.voters import Voters

_PROMISES = ("no_aliasing", "permutation", "equals_definition")


@formula(source="AReaL, reward_bias and reward_scaling", scope="episode", promises=_PROMISES)
def affine(reward: PerEpisode, *, bias: Finite = 0.0, scale: Finite = 1.0) -> PerEpisode:
    """Shift, then stretch.

    reward' = (reward + bias) * scale
    """
    return (reward + bias) * scale


@formula(
    source="Mnih et al. 2015, Nature 518, reward clipping",
    scope="episode",
    promises=_PROMISES,
    rules=(Rule(lambda given: given["low"] < given["high"], "low is below high; otherwise every reward is equal"),),
)
def clip(reward: PerEpisode, *, low: float, high: float) -> PerEpisode:
    """Bound the reward to [low, high].

    Settings in use: AReaL clips to (-20, 20), OpenRLHF to (-10, 10); name low and high.
    """
    if low >= high:
        raise SignalError(
            f"reward.clip: low = {low} is not below high = {high}, so every reward would be equal. Swap them."
        )
    return reward.clamp(low, high)


@formula(
    source="Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 13",
    scope="episode",
    promises=_PROMISES,
    known_as=("DAPO soft overlong",),
    rules=(Rule(lambda given: given["buffer"] <= given["max_length"], "the buffer fits into max_length"),),
)
def soft_overlong(
    reward: PerEpisode, length: PerEpisode, *, max_length: Positive, buffer: Positive, factor: NonNegative = 1.0
) -> PerEpisode:
    """A penalty that grows linearly over the last `buffer` tokens before max_length and stays at -factor beyond.

    reward' = reward - factor * clamp((length - (max_length - buffer)) / buffer, 0, 1)

    Settings in use: DAPO has max_length 20480 and buffer 4096.
    """
    over = (length - (max_length - buffer)) / buffer
    return reward - factor * over.clamp(0, 1)


@formula(source="OpenRLHF, stop_properly_penalty", scope="episode", promises=_PROMISES)
def not_ended_penalty(reward: PerEpisode, ended: EpisodeFlag, *, amount: Positive) -> PerEpisode:
    """Take `amount` from the reward of every episode that did not end by itself.

    Settings in use: 0.5 to 1 for rewards in [0, 1]; name an amount.
    """
    return torch.where(ended, reward, reward - amount)


@formula(source="OpenRLHF, stop_properly_penalty in [0, 1]", scope="episode", promises=_PROMISES)
def not_ended_scale(reward: PerEpisode, ended: EpisodeFlag, *, factor: Unit) -> PerEpisode:
    """Multiply the reward of every episode that did not end by itself.

    Settings in use: 0 to 0.5; name a factor in [0, 1].
    """
    return torch.where(ended, reward, reward * factor)


@formula(
    source="OpenRLHF, stop_properly_penalty below 0; Open Instruct, non_stop_penalty_value",
    scope="episode",
    promises=_PROMISES,
)
def not_ended_constant(reward: PerEpisode, ended: EpisodeFlag, *, value: Finite) -> PerEpisode:
    """Give every episode that did not end by itself the same reward.

    reward' = reward where it ended, value elsewhere

    Settings in use: 0 in Open Instruct, -0.5 or -1 in OpenRLHF, for rewards in [0, 1]; name a value.
    """
    return torch.where(ended, reward, torch.full_like(reward, value))


@formula(source="prime-rl, LinearLengthPenaltyConfig", scope="group", promises=_PROMISES)
def relative_length(
    reward: PerEpisode,
    length: PerEpisode,
    votes: EpisodeFlag,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    *,
    factor: NonNegative,
) -> PerEpisode:
    """A penalty for length beside the longest answer of the group, as large as the group is good.

    reward' = reward - factor * mean_g(reward) * length / max_g(length),   over the voters of the group

    A group in which nobody is right is not pushed towards short answers. Whoever does not vote pays at most as much as
    the longest voter; without a voter of any length nobody pays.
    Settings in use: prime-rl has 0.25.
    Differs from prime-rl: generated tokens alone count, not those of the input or the number of turns.
    """
    group = Voters.of("group", votes, group_of_episode, num_groups)
    longest = group.extreme(length, "amax")
    share = torch.where(longest > 0, (length / longest).clamp(max=1), torch.zeros_like(length))
    charged = torch.where(group.voters > 0, factor * group.average(reward) * share, torch.zeros_like(reward))
    return reward - charged


def token_rewards(kl: PerToken, reward: PerSequence, segments: Segments, *, kl_coef: float) -> PerToken:
    """Per-token rewards: minus the weighted KL everywhere, plus the reward on each sequence's last trainable token.

    r_t = -kl_coef * kl_t + [t is the last trainable token] * reward

    Built out of place: the KL that is logged afterwards is the KL that was computed (slime #2114).
    """
    sequences, last = last_token(segments)
    return (-kl_coef * kl).index_add(0, last, reward[sequences])
