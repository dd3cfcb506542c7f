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


def cut(counts: Tensor, sequences: Tensor, *, most: int) -> list[Tensor]:
    """These sequences in order, cut so that a part holds no more than `most`, or a single sequence."""
    parts: list[list[int]] = [[]]
    held = 0
    for index, count in zip(sequences.tolist(), counts[sequences].tolist(), strict=True):
        if parts[-1] and held + count > most:
            parts.append([])
            held = 0
        parts[-1].append(index)
        held += count
    return [torch.tensor(part, dtype=torch.int64) for part in parts]
