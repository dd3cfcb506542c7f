"""Two booleans: an episode votes, a sequence trains. The only place that decides both (docs/concepts.md)."""

from typing import Any

import torch
from torch import Tensor

from trimtab.signal.batch import SignalBatch
from trimtab.signal.composition import Recipe
from trimtab.signal.fields import Field
from trimtab.signal.layout import EpisodeFlag, PerEpisode, SequenceFlag
from trimtab.signal.reduce import extreme_of, segment_sum
from trimtab.signal.tensors import as_torch, host, library


def ended_episodes(batch: SignalBatch) -> EpisodeFlag | None:
    """An episode ended when none of its sequences was cut off; None where the rollout does not say."""
    if batch.ended is None or batch.levels.one_each:
        return batch.ended
    cut = segment_sum((~batch.ended).to(torch.long), batch.levels.episode_of_sequence, batch.levels.num_episodes)
    return cut == 0


def episode_lengths(batch: SignalBatch) -> PerEpisode:
    """Generated length of each episode: of all its sequences."""
    levels = batch.levels
    return segment_sum(batch.length.to(batch.reward.dtype), levels.episode_of_sequence, levels.num_episodes)


def episode_fields(batch: SignalBatch, votes: EpisodeFlag) -> dict[str, Any]:
    """What formulas may read of episodes."""
    levels = batch.levels
    return {
        "votes": votes, "group_of_episode": levels.group_of_episode, "num_groups": levels.num_groups,
        "length": episode_lengths(batch), "ended": ended_episodes(batch), "rewards": batch.rewards,
        "rewards_scored": batch.rewards_scored, "baseline": batch.baseline, "role": batch.role,
    }  # fmt: skip


def votes_and_trains(batch: SignalBatch, recipe: Recipe, keep: Field) -> tuple[EpisodeFlag, SequenceFlag]:
    """Which episodes enter baselines, and which sequences are in the loss: the table of docs/concepts.md."""
    levels, left = batch.levels, as_torch(keep.sequences)
    if not levels.one_each:
        left = segment_sum(left.to(torch.long), levels.episode_of_sequence, levels.num_episodes) > 0
    votes, trains = batch.scored & left, levels.to_sequences(batch.scored) & as_torch(batch.segments.filled)
    ended = ended_episodes(batch)
    if ended is not None and recipe.not_ended != "train":
        votes = votes & ended
        trains = trains & levels.to_sequences(ended) if recipe.not_ended == "suppress" else trains
    return votes, trains


def constant_groups(batch: SignalBatch, votes: EpisodeFlag) -> Tensor:
    """Groups whose voters all have the same raw task reward: comparing their answers teaches nothing."""
    group, num = host(batch.levels.group_of_episode), batch.levels.num_groups
    reward, voting = host(batch.reward), host(votes)
    where = library(reward).where
    high = extreme_of(where(voting, reward, -torch.inf), group, num, "amax")
    low = extreme_of(where(voting, reward, torch.inf), group, num, "amin")
    return as_torch(high == low)  # without voters, two different infinities


def groups_outside(batch: SignalBatch, votes: EpisodeFlag, band: tuple[float, float]) -> Tensor:
    """Groups whose voters' mean raw task reward is not strictly inside the band; one without voters is not judged."""
    group, num = batch.levels.group_of_episode, batch.levels.num_groups
    voters = segment_sum(votes.to(torch.long), group, num)
    mean = segment_sum(torch.where(votes, batch.reward, 0.0), group, num) / voters
    return (voters > 0) & ~((band[0] < mean) & (mean < band[1]))
