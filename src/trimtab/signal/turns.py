"""Credit over turns: a turn of an agent is one step of time, and its tokens share what it earns.

A turn is a run of trainable tokens of one sequence with the same `turn`. Rewards of its tokens add up.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trimtab.signal.advantage import PROMISES, Credit, temporal_errors
from trimtab.signal.catalogue import NonNegative, Unit, formula
from trimtab.signal.discount import discounted_sum
from trimtab.signal.layout import (
    EpisodeFlag,
    EpisodeIndex,
    PerSequence,
    PerToken,
    Segments,
    SequenceFlag,
    SequenceIndex,
    TokenIndex,
)
from trimtab.signal.reduce import segment_sum, sequence_tally
from trimtab.signal.voters import Voters


@dataclass(frozen=True)
class Turns:
    """Which token belongs to which turn, and which turn to which sequence.

    Tokens of turns 0, 0, 2 in one sequence and 0 in the next: of_token = [0, 0, 1, 2], starts = [0, 2, 3],
    segments.token_counts = [2, 1], where a turn stands for a token.
    """

    of_token: TokenIndex
    starts: Tensor
    """The first token of each turn."""
    segments: Segments

    @classmethod
    def of(cls, turn: TokenIndex, segments: Segments) -> "Turns":
        owner = segments.sequence_of_token
        begins = torch.ones_like(owner, dtype=torch.bool)
        begins[1:] = (turn[1:] != turn[:-1]) | (owner[1:] != owner[:-1])
        counts = sequence_tally(begins, segments).to(torch.long)
        starts = begins.nonzero().squeeze(1)
        return cls(begins.cumsum(0) - 1, starts, Segments.from_counts(counts, len(starts)))

    def sum(self, values: PerToken) -> Tensor:
        return segment_sum(values, self.of_token, len(self.starts))

    def to_tokens(self, values: Tensor) -> PerToken:
        return values.index_select(0, self.of_token)


@formula(source="AReaL, gae_timestep_unit = turn", scope="sequence", stage="advantage", promises=PROMISES)
def turn_gae(
    token_reward: PerToken,
    value_old: PerToken,
    value_after: PerSequence,
    ended: SequenceFlag,
    turn: TokenIndex,
    segments: Segments,
    *,
    gamma: Unit = 1.0,
    lam: Unit = 1.0,
) -> Credit:
    """GAE over turns: the reward of a turn is that of its tokens together, its value that of its first token.

    A_k = sum_{j >= k} (gamma * lam)^(j - k) * d_j,   d_j = r_j + gamma * V_{j+1} - V_j,   returns_k = A_k + V_k

    Every token gets what its turn gets, in advantage and in returns.
    Undefined when a sequence was cut off and value_after is not finite there (raises).
    """
    turns = Turns.of(turn, segments)
    value = value_old.index_select(0, turns.starts)
    delta = temporal_errors("turn_gae", turns.sum(token_reward), value, value_after, ended, turns.segments, gamma)
    advantage = discounted_sum(delta, turns.segments, gamma * lam)
    return turns.to_tokens(advantage), turns.to_tokens(advantage + value)


@formula(
    source="ROLL, agentic_reinforce (none) and step_reinforce (group)",
    scope="group",
    stage="advantage",
    promises=PROMISES,
)
def turn_reward_to_go(
    token_reward: PerToken,
    turn: TokenIndex,
    votes: EpisodeFlag,
    episode_of_sequence: SequenceIndex,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    segments: Segments,
    *,
    gamma: Unit = 1.0,
    compared: Literal["none", "group"] = "none",
    eps: NonNegative = 1e-6,
) -> Credit:
    """The discounted sum of the rewards of this turn and of all later ones, the same for every token of the turn.

    G_k = r_k + gamma * G_{k+1};   A_k = G_k, or with compared = group: (G_k - mean) / (std + eps) over the turns of the
    group's voters, ddof 1

    A group with fewer than two such turns gives 0. Compared turns take the place of a normalisation: use normalize.raw.
    Settings in use: ROLL takes gamma 1 for one return per segment, and 0.95 for compared steps.
    Differs from ROLL: rewards inside a turn count too, not only the one on its last token.
    """
    turns = Turns.of(turn, segments)
    returns = discounted_sum(turns.sum(token_reward), turns.segments, gamma)
    if compared == "none":
        return turns.to_tokens(returns), turns.to_tokens(returns)
    episode = episode_of_sequence.index_select(0, turns.segments.sequence_of_token)
    group = Voters.of("group", votes[episode], group_of_episode[episode], num_groups)
    centred = returns.double() - group.average(returns.double())
    spread = group.spread(centred, 1)
    scaled = group.bounded(torch.where(spread > 0, centred / (spread + eps), centred))
    advantage = torch.where(group.voters >= 2, scaled, 0.0).to(returns.dtype)
    return turns.to_tokens(advantage), turns.to_tokens(returns)
