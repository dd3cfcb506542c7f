"""Several rewards per episode: the only place that makes one number of them.

`rewards` has one row per episode and one column per key; `rewards_scored` says which entries there are. What is not
scored enters nothing, whatever number stands there.
"""

from typing import Literal

import torch

from trimtab.errors import SignalError
from trimtab.signal.catalogue import NonNegative, formula
from trimtab.signal.layout import EpisodeFlag, EpisodeIndex, PerEpisode, PerKey, ScoredKeys
from trimtab.signal.normalize import PROMISES, Normalized, mean_std, whiten


@formula(
    source="TRL, reward_weights; Open Instruct, verifiers",
    scope="episode",
    stage="reward",
    promises=("no_aliasing", "permutation", "equals_definition"),
)
def weighted_sum(rewards: PerKey, rewards_scored: ScoredKeys, *, weights: tuple[float, ...]) -> PerEpisode:
    """Several rewards summed with weights. It replaces the reward, so it stands first.

    reward' = sum_k weights_k * rewards_k, over the keys that are scored

    Settings in use: one weight per key; TRL takes 1 for each.
    """
    _refuse_other_count("weighted_sum", rewards, weights)
    scored = torch.where(rewards_scored, rewards, 0.0)
    return (scored * rewards.new_tensor(weights)).sum(1)


@formula(
    source="Liu et al. 2026, GDPO, arXiv:2601.05242",
    scope="batch",
    stage="normalize",
    promises=PROMISES,
    known_as=("GDPO",),
)
def each_key(
    rewards: PerKey,
    rewards_scored: ScoredKeys,
    votes: EpisodeFlag,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    *,
    weights: tuple[float, ...],
    ddof: Literal[0, 1] = 1,
    eps: NonNegative = 1e-6,
    whitened: bool = True,
) -> Normalized:
    """Each reward normalised in its group, summed with weights, then whitened over the episodes.

    a_i = sum_k weights_k * mean_std(rewards_k)_i, over the keys that are scored
    whitened: (a_i - mean a) / sqrt(var a + 1e-8), over the voters of the batch

    For a key, only episodes that vote and are scored in it count. A group has a signal if one key has.
    Settings in use: one weight per key; the paper takes 1 for each.
    Differs from verl: it whitens over tokens, so that long answers count for more; here it is over episodes.
    Undefined when an episode is alone in its group (raises).
    """
    _refuse_other_count("each_key", rewards, weights)
    total, signal = rewards.new_zeros(len(votes)), torch.zeros_like(votes)
    for key, weight in enumerate(weights):
        scored = rewards_scored[:, key]
        result, enough = mean_std(rewards[:, key], votes & scored, group_of_episode, num_groups, ddof=ddof, eps=eps)
        total = total + weight * torch.where(scored, result, 0.0)
        signal = signal | (enough & scored)
    white = whiten(total, votes & signal) if whitened else total
    return torch.where(signal, white, 0.0), signal


def _refuse_other_count(where: str, rewards: PerKey, weights: tuple[float, ...]) -> None:
    if rewards.shape[1] != len(weights):
        raise SignalError(
            f"{where}: the batch carries {rewards.shape[1]} rewards per episode and there are {len(weights)} weights, "
            "so a reward would have none. Give one weight per key."
        )
