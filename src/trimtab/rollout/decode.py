"""The only place that decides what sampling computes: which rows are in the batch, and which answers each stands for.

Answers with equal beginnings are one row until they part. Rows are aligned to the right edge of the cache, so that
every row's next token is in the same column. The columns to the left of a short row are hidden from it. It does not
know how a forward pass is computed, nor when answers enter and leave.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from trimtab.rollout.draw import choose, uniforms
from trimtab.rollout.engine import Greedy, Request, Sampling

if TYPE_CHECKING:
    from trimtab.rollout.cache import RowCache

LEAVE_SHARE = 0.25
"""Rows that no answer needs leave when they are this share of the batch: each time, the others' cache is copied."""

PADDING = 1.5
"""Requests of unlike lengths enter one after the other if they would take this many times the positions together,"""
PASS_POSITIONS = 128
"""and if that saves this many for each pass more: as long as a pass takes whatever its size."""

Forward = Callable[[Tensor, Tensor, Tensor, "RowCache"], Tensor]
"""ids and positions `[rows, columns]`, hidden columns of each row, cache -> the next token's logits `[rows, ids]`."""


@dataclass(frozen=True)
class Sheet:
    """What was drawn so far, `[places, tokens]`, and the numbers to draw with. Values past a length mean nothing."""

    ids: Tensor
    logp: Tensor
    random: Tensor
    """float64 in [0, 1); the number at (place, i) depends on the request's seed and i alone."""
    limit: Tensor
    """How many tokens each place may take."""

    @classmethod
    def of(cls, seeds: Sequence[int], limits: Sequence[int], device: torch.device) -> "Sheet":
        """Empty places for these requests."""
        rows, width = len(seeds), max(limits)
        return cls(
            ids=torch.zeros(rows, width, dtype=torch.int64, device=device),
            logp=torch.zeros(rows, width, device=device),
            random=uniforms(seeds, width).to(device),
            limit=torch.tensor(limits, device=device),
        )

    def put(self, places: Tensor, new: "Sheet") -> "Sheet":
        """Write `new` at these places; the sheet grows where it is too small."""
        grown = self._grown(int(places.max()) + 1 - len(self.limit), new.ids.shape[1] - self.ids.shape[1])
        for own, given in ((grown.ids, new.ids), (grown.logp, new.logp), (grown.random, new.random)):
            own[places, : given.shape[1]] = given
        grown.limit[places] = new.limit
        return grown

    def _grown(self, rows: int, columns: int) -> "Sheet":
        if rows <= 0 and columns <= 0:
            return self
        more = (0, max(columns, 0), 0, max(rows, 0))
        ids, logp, random = (pad(held, more) for held in (self.ids, self.logp, self.random))
        return Sheet(ids, logp, random, pad(self.limit, more[2:]))


@dataclass(frozen=True)
class Batch:
    """The answers in flight, and the rows that they stand on, in the order of the cache."""

    place: Tensor
    """The place of each answer on the sheet."""
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
        return replace(self, place=self.place[stay], count=self.count[stay], row=self.row[stay])

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
            place=torch.cat([self.place, other.place]),
            count=torch.cat([self.count, other.count]),
            row=torch.cat([self.row, other.row + len(self.hidden)]),
            hidden=torch.cat([self.hidden + max(-narrower, 0), other.hidden + max(narrower, 0)]),
            logits=torch.cat([self.logits, other.logits]),
            cache=self.cache,
        )


@dataclass(frozen=True)
class Drawn:
    """One step's tokens: what every answer chose, which of them go on, and which ids a cut left."""

    chosen: Tensor
    stays: Tensor
    left: Tensor | None


def enter(forward: Forward, batch: Batch | None, requests: Sequence[Request], place: Tensor, pad_id: int) -> Batch:
    """The batch with these requests in it too. Each time, the keys and values of the others are copied."""
    for part in _alike([len(request.ids) for request in requests]):
        chosen = torch.tensor(part, device=place.device)
        new = _prefill(forward, [requests[number] for number in part], place[chosen], pad_id, place.device)
        batch = new if batch is None else batch.join(new)
    assert batch is not None
    return batch


def advance(
    forward: Forward, batch: Batch, how: Sampling | Greedy, sheet: Sheet, eos_ids: Tensor
) -> tuple[Batch | None, Drawn]:
    """Draw one token of every answer and compute the next logits. None if no answer goes on."""
    drawn = _draw(batch, how, sheet, eos_ids)
    batch, chosen = replace(batch, count=batch.count + 1), drawn.chosen
    if not bool(drawn.stays.all()):
        batch, chosen = batch.keep_answers(drawn.stays), chosen[drawn.stays]
    return (_advance(forward, *_part(batch, chosen)) if len(batch.place) else None), drawn


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Requests that are run together: all of them, or, if most of that were padding, those of similar length.

    >>> _alike([5, 6, 5]), _alike([5, 100, 6, 90, 5, 5])
    ([[0, 1, 2]], [[0, 2, 4, 5], [1, 3]])
    """
    parts: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        parts.setdefault(length.bit_length(), []).append(number)
    apart = sum(len(part) * max(lengths[number] for number in part) for part in parts.values())
    together = len(lengths) * max(lengths)
    if together < PADDING * apart or together - apart < PASS_POSITIONS * (len(parts) - 1):
        return [list(range(len(lengths)))]
    return [parts[size] for size in sorted(parts)]


def _prefill(forward: Forward, requests: Sequence[Request], place: Tensor, pad_id: int, device: torch.device) -> Batch:
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
        place=place,
        count=torch.zeros(len(requests), dtype=torch.int64, device=device),
        row=torch.repeat_interleave(torch.tensor([count for _, count in runs], device=device)),
        hidden=hidden,
        logits=logits,
        cache=cache,
    )


def _draw(batch: Batch, how: Sampling | Greedy, sheet: Sheet, eos_ids: Tensor) -> Drawn:
    """Draw the next token of every answer and write it down. Any of `eos_ids` ends an answer."""
    cell = (batch.place, batch.count)
    chosen, logp, left = choose(batch.logits.index_select(0, batch.row), how, sheet.random[cell])
    sheet.ids[cell] = chosen
    sheet.logp[cell] = logp
    ends = (chosen[:, None] == eos_ids).any(1) | (batch.count + 1 >= sheet.limit[batch.place])
    return Drawn(chosen, ~ends, left)


def supports(left: Tensor) -> list[tuple[int, ...]]:
    """The ids that a cut left, for every answer."""
    row, token = left.nonzero(as_tuple=True)
    ids = token.split(torch.bincount(row, minlength=len(left)).tolist())
    return [tuple(own.tolist()) for own in ids]


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
