"""Credit over turns: a turn of an agent is one step of time, and its tokens share what it earns.

A turn is a run of trainable tokens of one sequence with the same `turn`. Rewards of its tokens add up.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Num
from torch import Tensor

from trimtab.errors import SignalError
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
from trimtab.signal.voters import Voters, refuse_lone


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
    advantage = _among(group, returns, "group", eps).to(returns.dtype)
    return turns.to_tokens(advantage), turns.to_tokens(returns)


@formula(
    source="Feng et al. 2025, GiGPO, arXiv:2505.10978",
    scope="group",
    stage="advantage",
    promises=PROMISES,
    known_as=("GiGPO",),
)
def turns_by_state(
    token_reward: PerToken,
    outcome: PerSequence,
    turn: TokenIndex,
    state: Num[Tensor, " tokens"],
    votes: EpisodeFlag,
    episode_of_sequence: SequenceIndex,
    group_of_episode: EpisodeIndex,
    num_groups: int,
    segments: Segments,
    *,
    gamma: Unit = 0.95,
    coef: NonNegative = 1.0,
    std: Literal["group", "none"] = "group",
    eps: NonNegative = 1e-6,
) -> Credit:
    """The episode against its group, plus each turn against the turns of its group that were taken in the same state.

    A_k = in_group(R) + coef * in_state(G_k),   in_x(v) = (v - mean_x) / (std_x + eps) over the voters of x, ddof 1
    R = all rewards of the episode,   G_k = r_k + gamma * G_{k+1}

    `state` is an extra field of integers: your name of the state in which a turn was taken, read at its first token.
    The outcome, which stands at the end of each of an episode's sequences, counts once in R. With std = none, nothing
    is divided. A state with fewer than two voting turns gives 0, and so does one without a spread. Who does not vote
    stays between the lowest and the highest voter. It takes the place of a normalisation: use normalize.raw.
    Settings in use: the paper and ROLL have gamma 0.95 and coef 1.
    Differs from ROLL: R is compared over episodes and not over turns, so a long one counts once, and states of
    different groups are never compared. A spread is 0 only where all agree; ROLL takes 1e-6 and below for 0.
    Undefined when an episode is alone in its group, or state holds fractions (raises).
    """
    _refuse_fractions(state)
    refuse_lone("turns_by_state", group_of_episode, num_groups)
    turns = Turns.of(turn, segments)
    episode = episode_of_sequence.index_select(0, turns.segments.sequence_of_token)
    returns = discounted_sum(turns.sum(token_reward), turns.segments, gamma)
    rewards = _rewards_of_episodes(token_reward, outcome, episode_of_sequence, len(votes), segments)
    group = Voters.of("group", votes, group_of_episode, num_groups)
    both = torch.stack([group_of_episode[episode], state.index_select(0, turns.starts).to(torch.long)])
    distinct, place = cast("tuple[Tensor, Tensor]", torch.unique(both, dim=1, return_inverse=True))
    alike = Voters.of("group", votes[episode], place, distinct.shape[1])
    advantage = _among(group, rewards, std, eps)[episode] + coef * _among(alike, returns, std, eps)
    return turns.to_tokens(advantage.to(returns.dtype)), turns.to_tokens(returns)


def _among(voters: Voters, values: Tensor, std: Literal["group", "none"], eps: float) -> Tensor:
    """Values against the voters' mean, in units of their spread, and held within theirs; 0 with fewer than two."""
    exact = values.double()
    centred = exact - voters.average(exact)
    scaled = centred
    if std == "group":
        spread = voters.spread(centred, 1)
        scaled = torch.where(spread > 0, centred / (spread + eps), centred)
    return torch.where(voters.voters == 0, 0.0, voters.bounded(scaled))  # a lone voter is its own mean: 0


def _rewards_of_episodes(
    token_reward: PerToken, outcome: PerSequence, owner: SequenceIndex, num_episodes: int, segments: Segments
) -> Tensor:
    """What the tokens of each episode earn together. Each of its sequences ends with its outcome, which counts once."""
    paid = segment_sum(token_reward.double(), owner.index_select(0, segments.sequence_of_token), num_episodes)
    filled = segments.token_counts > 0
    ended = (filled.double(), torch.where(filled, outcome.double(), 0.0))
    ends, outcomes = (segment_sum(values, owner, num_episodes) for values in ended)
    return paid - outcomes * (1 - 1 / ends.clamp(min=1))


def _refuse_fractions(state: Tensor) -> None:
    if state.dtype.is_floating_point:
        raise SignalError(
            f"turns_by_state: state holds {str(state.dtype).removeprefix('torch.')}, so a rounding would part turns "
            "that were taken in one state. Give a tensor or an array of integers, for example a hash of what the "
            "policy saw; plain lists are read as floats."
        )
