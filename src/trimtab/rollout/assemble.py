"""The only place that knows which tokens train: episodes become rows for the model and a batch for the signal.

An episode is one sequence: prompt, then turns and observations. What the policy chose trains; the rest does not.
Every per-token field lies in the cell of its own token (never shifted): the log-prob of token 7 is in cell 7.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trimtab.errors import SignalError
from trimtab.rollout.episode import Episode, Group, Status
from trimtab.signal import SignalBatch

UNTRAINABLE = float("nan")
"""Fills the cells that do not train. A nan that leaks out of them is noticed."""


@dataclass(frozen=True)
class Rows:
    """Some sequences as one right-padded rectangle, and where their trainable tokens stand in it.

    Two sequences, prompts of 2 and 1 tokens, answers of 1 and 3: `ids` is `[[p,p,a,pad],[p,a,a,a]]`,
    `row_of_token` is `[0,1,1,1]` and `column_of_token` is `[2,1,2,3]`.
    """

    ids: Tensor
    row_of_token: Tensor
    column_of_token: Tensor
    last_column: Tensor
    """The column of each row's last real token."""
    support: tuple[Tensor, Tensor] | None = None
    """Where the sampler drew from fewer tokens: their ids, flat, and how many for each trainable token."""


@dataclass(frozen=True)
class Assembled:
    """The episodes of one batch, as the model and the signal want them."""

    episodes: tuple[Episode, ...]
    group: Tensor
    """The place of each sequence's prompt in the batch."""
    sequence_id: Tensor
    """A number that no other sequence of the run has. Random selection in the signal hashes it."""
    logp_rollout: Tensor
    """Flat over trainable tokens, sequence after sequence, like every per-token field of this class."""
    version: Tensor
    turn: Tensor
    reward: Tensor
    scored: Tensor
    ended: Tensor
    pad_id: int

    @property
    def ids(self) -> tuple[Tensor, ...]:
        return tuple(episode.ids for episode in self.episodes)

    @property
    def trainable(self) -> tuple[Tensor, ...]:
        return tuple(episode.trainable for episode in self.episodes)

    @property
    def token_counts(self) -> tuple[int, ...]:
        """Trainable tokens of each sequence."""
        return tuple(episode.num_tokens for episode in self.episodes)

    @property
    def num_tokens(self) -> int:
        """Trainable tokens in all."""
        return len(self.logp_rollout)

    @property
    def reward_mean(self) -> float:
        """Over episodes that have a reward; nan where none has."""
        return float(self.reward[self.scored].mean()) if bool(self.scored.any()) else float("nan")

    def statuses(self) -> Counter[Status]:
        """How many episodes have each reward status."""
        return Counter(episode.status for episode in self.episodes)

    def rows(self, sequences: Sequence[int] | Tensor) -> Rows:
        """These sequences in this order, padded on the right: under causal attention no real token sees the padding."""
        chosen = [self.episodes[int(index)] for index in sequences]
        ids = pad_sequence([episode.ids for episode in chosen], batch_first=True, padding_value=self.pad_id)
        trains = pad_sequence([episode.trainable for episode in chosen], batch_first=True, padding_value=False)
        row_of_token, column_of_token = trains.nonzero(as_tuple=True)
        last_column = torch.tensor([len(episode.ids) - 1 for episode in chosen])
        return Rows(ids, row_of_token, column_of_token, last_column, _support(chosen))

    def cells(self, flat: Tensor) -> list[Tensor]:
        """A flat per-token field put back into the cells of every sequence; other cells are nan (-1 for integers)."""
        if flat.shape != self.logp_rollout.shape:
            raise SignalError(
                f"Assembled.cells: the field has shape {tuple(flat.shape)} and the batch has {self.num_tokens} "
                "trainable tokens, so its values cannot be placed. Give one value per token, sequence after sequence."
            )
        return in_cells(flat, self.trainable)

    def batch(
        self,
        *,
        logp_old: Tensor | None = None,
        logp_ref: Tensor | None = None,
        value_old: Tensor | None = None,
        value_after: Tensor | None = None,
    ) -> SignalBatch:
        """The signal's batch; the trainer adds, flat, what its recipe needs."""
        old, ref, values = (None if field is None else self.cells(field) for field in (logp_old, logp_ref, value_old))
        return SignalBatch.from_list(
            trainable=list(self.trainable),
            reward=self.reward,
            group=self.group,
            scored=self.scored,
            ended=self.ended,
            sequence_id=self.sequence_id,
            logp_old=old,
            logp_rollout=self.cells(self.logp_rollout),
            logp_ref=ref,
            value_old=values,
            value_after=value_after,
            version=self.cells(self.version),
            turn=self.cells(self.turn),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The batch as plain tensors, for the record: whole sequences, and per-token fields without gaps."""
        return {
            "ids": torch.cat(self.ids),
            "trainable": torch.cat(self.trainable),
            "id_counts": torch.tensor([len(ids) for ids in self.ids]),
            "token_counts": torch.tensor(self.token_counts),
            "logp_rollout": self.logp_rollout,
            "version": self.version,
            "turn": self.turn,
            "reward": self.reward,
            "group": self.group,
            "scored": self.scored,
            "ended": self.ended,
            "sequence_id": self.sequence_id,
        }


def in_cells(flat: Tensor, trainable: Sequence[Tensor]) -> list[Tensor]:
    """One row for each sequence: the flat values where `trainable` is true, in order; nan or -1 elsewhere.

    >>> [row.tolist() for row in in_cells(torch.tensor([5, 6]), [torch.tensor([False, True]), torch.tensor([True])])]
    [[-1, 5], [6]]
    """
    trains = torch.cat(list(trainable))
    cells = torch.full(trains.shape, UNTRAINABLE if flat.is_floating_point() else -1, dtype=flat.dtype)
    cells[trains] = flat
    return list(cells.split([len(row) for row in trainable]))


def assemble(groups: Sequence[Group], *, pad_id: int) -> Assembled:
    """One sequence for each episode, group after group. A sequence's name comes from its ticket and its place."""
    placed = [(place, group, number) for place, group in enumerate(groups) for number in range(len(group.episodes))]
    if not placed:
        raise SignalError("assemble: there are no episodes, so there is no batch. Sample at least one prompt.")
    largest = max(len(group.episodes) for group in groups)
    episodes = tuple(_readable(group.episodes[number]) for _, group, number in placed)
    return Assembled(
        episodes=episodes,
        group=torch.tensor([place for place, _, _ in placed]),
        sequence_id=torch.tensor([group.ticket * largest + number for _, group, number in placed]),
        logp_rollout=torch.cat([episode.logp for episode in episodes]).float(),
        version=torch.cat([episode.version for episode in episodes]),
        turn=torch.cat([episode.turn for episode in episodes]),
        reward=torch.tensor([episode.reward if episode.is_scored else UNTRAINABLE for episode in episodes]),
        scored=torch.tensor([episode.is_scored for episode in episodes]),
        ended=torch.tensor([episode.ended for episode in episodes]),
        pad_id=pad_id,
    )


def _readable(episode: Episode) -> Episode:
    """The episode itself; but without a reward and with a log-prob that is not finite, none of it is trainable.

    An episode without a reward does not train anyway, so a broken log-prob in it must not end the run.
    """
    if episode.is_scored or bool(episode.logp.isfinite().all()):
        return episode
    return replace(
        episode,
        trainable=torch.zeros_like(episode.trainable),
        logp=episode.logp[:0],
        version=episode.version[:0],
        turn=episode.turn[:0],
        support=None if episode.support is None else (episode.support[0][:0], episode.support[1][:0]),
        logp_trainer=None,
    )


def _support(episodes: Sequence[Episode]) -> tuple[Tensor, Tensor] | None:
    """Recorded for all of them or for none: one sampling setting holds for a run."""
    supports = [episode.support for episode in episodes if episode.support is not None]
    if len(supports) != len(episodes):
        return None
    return torch.cat([ids for ids, _ in supports]), torch.cat([counts for _, counts in supports])
