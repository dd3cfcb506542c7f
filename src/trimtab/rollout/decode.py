"""The only place that decides what sampling computes: which rows are in the batch, and which answers each stands for.

Answers with equal beginnings are one row until they part. Rows are aligned to the right edge of the cache, so that
every row's next token is in the same column. The columns to the left of a short row are hidden from it. Finished
answers leave, waiting ones enter. It does not know how a forward pass is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trimtab.rollout.draw import choose, uniforms
from trimtab.rollout.engine import Greedy, Request, Sampling

if TYPE_CHECKING:
    from trimtab.rollout.cache import RowCache

LEAVE_SHARE = 0.25
"""Rows that no answer needs leave when they are this share of the batch: each time, the others' cache is copied."""

Forward = Callable[[Tensor, Tensor, Tensor, "RowCache"], Tensor]
"""ids and positions `[rows, columns]`, hidden columns of each row, cache -> the next token's logits `[rows, ids]`."""


@dataclass(frozen=True)
class Answers:
    """What was drawn, `[requests, tokens]`. Values after a row's length mean nothing."""

    ids: Tensor
    logp: Tensor
    length: Tensor
    support: list[list[tuple[int, ...]]]


@dataclass(frozen=True)
class Batch:
    """The answers in flight, and the rows that they stand on, in the order of the cache."""

    request: Tensor
    """Which request each answer belongs to."""
    count: Tensor
    """Tokens drawn so far for each answer."""
    row: Tensor
    """The row of each answer. Several answers share one until they part."""
    hidden: Tensor
    """Columns left of each row's first token, which it must not see."""
    logits: Tensor
    """Of each row's next token, float32 `[rows, vocabulary]`."""
    cache: "RowCache"

    @property
    def width(self) -> int:
        """Columns of the cache."""
        return int(self.cache.get_seq_length())

    def keep_answers(self, stay: Tensor) -> "Batch":
        """Keep these answers. Rows that none of them needs stay for the time being."""
        return replace(self, request=self.request[stay], count=self.count[stay], row=self.row[stay])

    def take_rows(self, rows: Tensor, row: Tensor) -> "Batch":
        """Make these rows, in this order, the rows, with `row` for the answers; drop columns that none of them sees."""
        hidden = self.hidden.index_select(0, rows)
        unseen = int(hidden.min())
        self.cache.take(rows, unseen)
        return replace(self, row=row, hidden=hidden - unseen)

    def join(self, other: "Batch") -> "Batch":
        """Add the rows of `other`. Rows of the narrower cache see nothing in the columns that it lacked."""
        narrower = self.width - other.width
        self.cache.join(other.cache)
        return Batch(
            request=torch.cat([self.request, other.request]),
            count=torch.cat([self.count, other.count]),
            row=torch.cat([self.row, other.row + len(self.hidden)]),
            hidden=torch.cat([self.hidden + max(-narrower, 0), other.hidden + max(narrower, 0)]),
            logits=torch.cat([self.logits, other.logits]),
            cache=self.cache,
        )


def decode(
    forward: Forward,
    requests: Sequence[Request],
    how: Sampling | Greedy,
    *,
    device: torch.device,
    pad_id: int,
    eos_id: int,
    max_rows: int,
) -> Answers:
    """Answer each request. At most `max_rows` of them are in the batch at once (0: any number)."""
    slots = min(max_rows or len(requests), len(requests))
    answers = _blank(len(requests), how, device)
    random = uniforms([request.seed for request in requests], how.max_new_tokens).to(device)
    entered = 0
    batch: Batch | None = None
    while True:
        free = slots - (0 if batch is None else len(batch.request))
        if entered < len(requests) and free >= slots * LEAVE_SHARE:
            new = _prefill(forward, requests[entered : entered + free], entered, pad_id, device)
            entered += len(new.request)
            batch = new if batch is None else batch.join(new)
        assert batch is not None
        chosen, batch = _draw(batch, how, random, answers, eos_id)
        if len(batch.request):
            batch = _advance(forward, *_part(batch, chosen))
        elif entered < len(requests):
            batch = None
        else:
            return answers


def _blank(rows: int, how: Sampling | Greedy, device: torch.device) -> Answers:
    return Answers(
        ids=torch.zeros(rows, how.max_new_tokens, dtype=torch.int64, device=device),
        logp=torch.zeros(rows, how.max_new_tokens, device=device),
        length=torch.full((rows,), how.max_new_tokens, device=device),
        support=[[] for _ in range(rows)] if isinstance(how, Sampling) and how.record_support else [],
    )


def _prefill(forward: Forward, requests: Sequence[Request], first: int, pad_id: int, device: torch.device) -> Batch:
    """Run the prompts as new rows. Neighbours with equal prompts share a row."""
    from trimtab.rollout.cache import RowCache

    runs = [(ids, len(list(same))) for ids, same in groupby(request.ids for request in requests)]
    width = max(len(ids) for ids, _ in runs)
    hidden = torch.tensor([width - len(ids) for ids, _ in runs], device=device)
    padded = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids, _ in runs], device=device)
    position = (torch.arange(width, device=device) - hidden[:, None]).clamp_min(0)
    cache = RowCache()
    logits = forward(padded, hidden, position, cache)
    return Batch(
        request=torch.arange(first, first + len(requests), device=device),
        count=torch.zeros(len(requests), dtype=torch.int64, device=device),
        row=torch.repeat_interleave(torch.tensor([count for _, count in runs], device=device)),
        hidden=hidden,
        logits=logits,
        cache=cache,
    )


def _draw(batch: Batch, how: Sampling | Greedy, random: Tensor, answers: Answers, eos_id: int) -> tuple[Tensor, Batch]:
    """Draw the next token of every answer and write it down. Those that have ended leave."""
    place = (batch.request, batch.count)
    chosen, logp, left = choose(batch.logits.index_select(0, batch.row), how, random[place])
    answers.ids[place] = chosen
    answers.logp[place] = logp
    if answers.support and left is not None:
        _write_support(batch, left, answers.support)
    count = batch.count + 1
    ends = chosen == eos_id
    stays = ~(ends | (count >= how.max_new_tokens))
    batch = replace(batch, count=count)
    if bool(stays.all()):
        return chosen, batch
    answers.length[batch.request[ends]] = count[ends]
    return chosen[stays], batch.keep_answers(stays)


def _write_support(batch: Batch, left: Tensor, support: list[list[tuple[int, ...]]]) -> None:
    """Write down the ids that a cut left, for every answer."""
    row, token = left.nonzero(as_tuple=True)
    ids = token.split(torch.bincount(row, minlength=len(left)).tolist())
    for request, own in zip(batch.request.tolist(), ids, strict=True):
        support[request].append(tuple(own.tolist()))


def _part(batch: Batch, chosen: Tensor) -> tuple[Batch, Tensor]:
    """Give answers that chose different tokens rows of their own. Returns the token of each row, too."""
    rows, vocabulary = batch.logits.shape
    if len(batch.row) > (1 - LEAVE_SHARE) * rows and _stand_alone(batch.row, rows):
        tokens = chosen.new_zeros(rows)
        tokens[batch.row] = chosen
        return batch, tokens
    wanted, row = torch.unique(batch.row * vocabulary + chosen, return_inverse=True)
    parent, tokens = wanted // vocabulary, wanted % vocabulary
    return batch.take_rows(parent, row), tokens


def _stand_alone(row: Tensor, rows: int) -> bool:
    """Whether no two answers share a row. Once they have parted they never meet again."""
    return len(row) <= rows and bool(torch.bincount(row, minlength=rows).max() <= 1)


def _advance(forward: Forward, batch: Batch, tokens: Tensor) -> Batch:
    """Run the model on the chosen tokens: one more column of the cache."""
    position = (batch.width - batch.hidden)[:, None]
    if len(batch.row) < len(batch.hidden):
        # A row that no answer needs must not run past the end of a position table. Its logits are not used.
        needed = torch.zeros_like(batch.hidden, dtype=torch.bool).index_fill_(0, batch.row, True)
        position = position * needed[:, None]
    return replace(batch, logits=forward(tokens[:, None], batch.hidden, position, batch.cache))
