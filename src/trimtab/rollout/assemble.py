"""The only place that knows which tokens train: an engine's samples become rows for the model, a batch for the signal.

A sequence is a prompt and its answer. The answer's tokens were chosen by the policy and train; the prompt's were not.
Every per-token field lies in the cell of its own token (never shifted): the log-prob of token 7 is in cell 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trimtab.errors import SignalError
from trimtab.rollout.engine import Sample
from trimtab.signal import SignalBatch

UNTRAINABLE = float("nan")
"""The fill of cells that do not train. A value that leaks out of them cannot go unnoticed."""


@dataclass(frozen=True)
class Episode:
    """One attempt at a prompt: a sample, its group (the prompt it answers) and its reward.

    `scored` is False when no reward could be had (an error, a timeout); `reward` is then not read.
    """

    sample: Sample
    group: int
    reward: float
    scored: bool = True


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


@dataclass(frozen=True)
class Assembled:
    """The episodes of one batch, as the model and the signal want them."""

    ids: tuple[Tensor, ...]
    trainable: tuple[Tensor, ...]
    token_counts: tuple[int, ...]
    """Trainable tokens of each sequence."""
    logp_rollout: Tensor
    """Flat over trainable tokens, sequence after sequence, as every per-token field of this class."""
    version: Tensor
    reward: Tensor
    group: Tensor
    scored: Tensor
    ended: Tensor
    sequence_id: Tensor
    """Names the sequences of a run apart; random selection in the signal hashes it."""
    pad_id: int

    @property
    def num_tokens(self) -> int:
        """Trainable tokens in all."""
        return len(self.logp_rollout)

    def rows(self, sequences: Sequence[int] | Tensor) -> Rows:
        """These sequences in this order, padded on the right: under causal attention no real token sees the padding."""
        chosen = [int(index) for index in sequences]
        ids = pad_sequence([self.ids[index] for index in chosen], batch_first=True, padding_value=self.pad_id)
        trains = pad_sequence([self.trainable[index] for index in chosen], batch_first=True, padding_value=False)
        row_of_token, column_of_token = trains.nonzero(as_tuple=True)
        last_column = torch.tensor([len(self.ids[index]) - 1 for index in chosen])
        return Rows(ids=ids, row_of_token=row_of_token, column_of_token=column_of_token, last_column=last_column)

    def cells(self, flat: Tensor) -> list[Tensor]:
        """A flat per-token field put back into the cells of every sequence; other cells are nan (-1 for integers)."""
        if flat.shape != self.logp_rollout.shape:
            raise SignalError(
                f"Assembled.cells: the field has shape {tuple(flat.shape)} and the batch {self.num_tokens} "
                "trainable tokens, so its values cannot be placed. Give one value for each, sequence after sequence."
            )
        trains = torch.cat(self.trainable)
        cells = torch.full(trains.shape, UNTRAINABLE if flat.is_floating_point() else -1, dtype=flat.dtype)
        cells[trains] = flat
        return list(cells.split([len(row) for row in self.trainable]))

    def batch(
        self,
        *,
        logp_old: Tensor | None = None,
        logp_ref: Tensor | None = None,
        value: Tensor | None = None,
        value_after: Tensor | None = None,
    ) -> SignalBatch:
        """The signal's batch; the trainer adds, flat, what its recipe needs."""
        old, ref, values = (None if field is None else self.cells(field) for field in (logp_old, logp_ref, value))
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
            value=values,
            value_after=value_after,
            version=self.cells(self.version),
        )


def assemble(episodes: Sequence[Episode], *, pad_id: int, first_id: int = 0) -> Assembled:
    """One sequence for each episode: prompt, then answer; the answer trains. Sequences are numbered from `first_id`."""
    if not episodes:
        raise SignalError("assemble: there are no episodes, so there is no batch. Sample at least one prompt.")
    samples = [episode.sample for episode in episodes]
    return Assembled(
        ids=tuple(torch.tensor([*sample.prompt_ids, *sample.ids]) for sample in samples),
        trainable=tuple(
            torch.tensor([False] * len(sample.prompt_ids) + [True] * len(sample.ids)) for sample in samples
        ),
        token_counts=tuple(len(sample.ids) for sample in samples),
        logp_rollout=torch.cat([sample.logp for sample in samples]).float(),
        version=torch.tensor([version for sample in samples for version in sample.version]),
        reward=torch.tensor([episode.reward if episode.scored else UNTRAINABLE for episode in episodes]),
        group=torch.tensor([episode.group for episode in episodes]),
        scored=torch.tensor([episode.scored for episode in episodes]),
        ended=torch.tensor([sample.finish == "eos" for sample in samples]),
        sequence_id=first_id + torch.arange(len(episodes)),
        pad_id=pad_id,
    )
