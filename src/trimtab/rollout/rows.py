"""The only place that lays sequences out for the model: right-padded rows, and which of them go through it together."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.rollout.rollouts import Rollouts


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


def lay_out(rollouts: Rollouts, sequences: Tensor, *, pad_id: int) -> Rows:
    """These sequences in this order, padded on the right: under causal attention no real token sees the padding."""
    some = rollouts.take(sequences)
    length = some.length.long()
    width = int(length.max()) if len(length) else 0
    row = torch.arange(len(length)).repeat_interleave(length)
    column = torch.arange(len(some.ids)) - some.first_id[:-1].repeat_interleave(length)
    ids = torch.full((len(length), width), pad_id)
    ids[row, column] = some.ids.long()
    support = None
    if some.support_ids is not None and some.support_counts is not None:
        support = some.support_ids.long(), some.support_counts.long()
    return Rows(ids, row[some.trainable], column[some.trainable], length - 1, support)


def cut(length: Tensor, sequences: Tensor, *, most: int) -> list[Tensor]:
    """Cut sequences into parts whose rows, padding included, hold at most `most` positions, or a single sequence.

    Sequences of like length go together, the longest first, so that little is padded and a limit that is too high for
    the machine fails at once.

    >>> [part.tolist() for part in cut(torch.tensor([3, 9, 4]), torch.arange(3), most=10)]
    [[1], [0, 2]]
    """
    parts: list[list[int]] = []
    width = 0
    lengths, order = length[sequences].sort(descending=True, stable=True)
    for index, size in zip(sequences[order].tolist(), lengths.tolist(), strict=True):
        if not parts or (len(parts[-1]) + 1) * width > most:
            parts.append([])
            width = int(size)
        parts[-1].append(int(index))
    return [torch.tensor(sorted(part), dtype=torch.int64) for part in parts]
