"""The only place that decides what sampling computes: which rows are in the batch, and which answers each stands for.

Answers with equal beginnings are one row until they part. All rows end at one column of the cache, so that every
row's next token is in the same column. The columns to the left of a short row are hidden from it. Prompts that enter
take rows that others left, and are read in the pass that reads the tokens of the others. It does not know how a forward
pass is computed, nor when answers enter and leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from trimtab.rollout.draw import choose
from trimtab.rollout.engine import Greedy, Request, Sampling
from trimtab.rollout.sheet import Sheet

if TYPE_CHECKING:
    from trimtab.rollout.cache import RowCache

LEAVE_SHARE = 0.25
"""Rows that nobody needs or enters leave when they are this share of the batch: each time, the others are copied."""

LOOK_EVERY = 4
"""Steps between two looks at whether the rows lie well,"""
BAND_COLUMNS = 1024
"""which is when two bands save this many columns of rows per step: as long as the operations for one take,"""
COPY_COLUMNS = 1
"""and copying pays when this many times as many columns were computed in vain as are copied."""

PADDING = 1.5
"""Requests of unlike lengths are laid out in several rectangles if one would take this many times the positions,"""
PASS_POSITIONS = 128
"""and if that saves this many for each rectangle more: as long as its operations take whatever its size."""


@dataclass(frozen=True)
class Prompts:
    """Beginnings that enter together, `[rows, columns]`, aligned to the right, and the rows of the cache for them."""

    ids: Tensor
    hidden: Tensor
    """Columns of padding before each."""
    rows: Tensor

    @property
    def position(self) -> Tensor:
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        return (columns - self.hidden[:, None]).clamp_min(0)


class Forward(Protocol):
    """A forward pass: columns of the rows in a cache, and prompts that enter it. The cache then holds all of them."""

    def __call__(
        self, ids: Tensor, hidden: Tensor, position: Tensor, cache: "RowCache", entering: Sequence[Prompts] = ()
    ) -> Tensor:
        """ids and positions `[rows, columns]`, hidden columns of each row -> the next token's logits, float32
        `[rows, vocabulary]`; those of the rows that enter follow. Without `ids`, the cache's rows stay as they are.
        """
        ...


@dataclass(frozen=True)
class Batch:
    """The answers in flight, and the rows that they stand on. A row of the cache that no answer stands on is free."""

    place: Tensor
    """The place of each answer on the sheet."""
    count: Tensor
    """Tokens drawn so far for each answer."""
    row: Tensor
    """The row of each answer. Several answers share one until they part."""
    is_shared: bool
    """Whether some row has several answers. Once they have parted they never meet again."""
    first: Tensor
    """The column of each row's first token."""
    tokens: Tensor
    """The last token of each row, which was drawn and is read next."""
    logits: Tensor
    """Of each row's next token, float32 `[rows, vocabulary]`."""
    cache: "RowCache"

    def keep_answers(self, stay: Tensor) -> "Batch":
        """Keep these answers. Rows that none of them needs are free."""
        return replace(self, place=self.place[stay], count=self.count[stay], row=self.row[stay])

    def free_rows(self, count: int) -> Tensor:
        """The first rows that no answer stands on; past the last row, new ones."""
        free = torch.ones(len(self.first) + count, dtype=torch.bool, device=self.row.device)
        return free.index_fill_(0, self.row, False).nonzero()[:count, 0]

    def fit(self, rows: int, columns: int, width: int) -> "Batch":
        """Make room in the cache: for this many rows, for columns more, and then for prompts of this width."""
        rows = max(rows, len(self.first))
        moved, more = self.cache.fit(rows, columns, width), rows - len(self.first)
        if not moved and not more:
            return self
        return replace(self, first=pad(self.first + moved, (0, more)), tokens=pad(self.tokens, (0, more)))

    def tidied(self) -> "Batch":
        """Let free rows leave, and put the longest rows first, in a band of their own where that saves columns."""
        rows, row = torch.unique(self.row, return_inverse=True)
        first, order = self.first[rows].sort(stable=True)
        moved = self.cache.take(rows[order], _bands(_numbers(self.cache.end - first)))
        rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        return replace(self, row=rank[row], first=first + moved, tokens=self.tokens[rows[order]])


@dataclass(frozen=True)
class Drawn:
    """One step's tokens: what every answer chose, which of them go on, and which ids a cut left."""

    chosen: Tensor
    stays: Tensor
    left: Tensor | None


def read(forward: Forward, batch: Batch | None, requests: Sequence[Request], place: Tensor, pad_id: int) -> Batch:
    """Read what was drawn last, and the prompts of these requests, in one pass. They are then in the batch too."""
    is_new = batch is None
    if batch is None:
        batch = _empty(place, len(requests), max(len(request.ids) for request in requests))
    else:
        batch = _in_order(batch, len(requests))
    running, columns = len(batch.first), min(len(batch.first), 1)
    if not requests:
        batch = batch.fit(0, columns, 0)
        return replace(batch, logits=_logits(forward, batch, running, ()))
    parts = _alike([len(request.ids) for request in requests], longest_first=is_new)
    laid = [_rectangle([requests[number].ids for number in part], pad_id, place.device) for part in parts]
    counts = [len(hidden) for _, hidden, _ in laid]
    rows = batch.free_rows(sum(counts))
    batch = batch.fit(int(rows[-1]) + 1, columns, max(ids.shape[1] for ids, _, _ in laid))
    entering = [Prompts(*some[:2], own) for some, own in zip(laid, rows.split(counts), strict=True)]
    logits = _logits(forward, batch, running, entering)
    if is_new:
        batch.cache.lay(_bands(_numbers(torch.cat([ids.shape[1] - hidden for ids, hidden, _ in laid]))))
    return _joined(batch, logits, entering, place[torch.tensor(list(chain(*parts)))], [row for _, _, row in laid])


def draw(batch: Batch, how: Sampling | Greedy, sheet: Sheet, eos_ids: Tensor) -> tuple[Batch | None, Drawn]:
    """Draw one token of every answer, to be read next. None if no answer goes on."""
    drawn = _draw(batch, how, sheet, eos_ids)
    batch, chosen = replace(batch, count=batch.count + 1), drawn.chosen
    if not bool(drawn.stays.all()):
        batch, chosen = batch.keep_answers(drawn.stays), chosen[drawn.stays]
        if not len(chosen):
            return None, drawn
    return (_part(batch, chosen) if batch.is_shared else _told(batch, batch.row, chosen)), drawn


def _alike(lengths: Sequence[int], *, longest_first: bool = False) -> list[list[int]]:
    """Requests that are run together: all of them, or, if most of that were padding, those of similar length.

    >>> _alike([5, 6, 5]), _alike([5, 100, 6, 90, 5, 5]), _alike([5, 100, 6, 90, 5, 5], longest_first=True)
    ([[0, 1, 2]], [[0, 2, 4, 5], [1, 3]], [[1, 3], [2, 0, 4, 5]])
    """
    parts: dict[int, list[int]] = {}
    numbers = sorted(range(len(lengths)), key=lambda number: -lengths[number] if longest_first else 0)
    for number in numbers:
        parts.setdefault(lengths[number].bit_length(), []).append(number)
    apart = sum(len(part) * max(lengths[number] for number in part) for part in parts.values())
    together = len(lengths) * max(lengths)
    if together < PADDING * apart or together - apart < PASS_POSITIONS * (len(parts) - 1):
        return [numbers]
    return [parts[size] for size in sorted(parts, reverse=longest_first)]


def _in_order(batch: Batch, entering: int) -> Batch:
    """Look at fewer columns: at none that only rows saw that are free now, and, where copying the cache pays, in bands.

    It pays when there are many free rows, or when enough was computed in vain since the last time.
    """
    cache = batch.cache
    many_free = not batch.is_shared and len(batch.row) + entering <= (1 - LEAVE_SHARE) * len(batch.first)
    cache.steps += 1
    if many_free:
        return batch.tidied()
    if not entering and cache.steps % LOOK_EVERY:
        return batch
    rows, first = sorted(set(_numbers(batch.row))), _numbers(batch.first)
    cache.see_only(rows, [first[row] for row in rows])
    if batch.is_shared or cache.steps % LOOK_EVERY:
        return batch
    seen = sorted((cache.end - first[row] for row in rows), reverse=True)
    cache.vain += LOOK_EVERY * max(cache.columns(len(first)) - _columns(_bands(seen)) - BAND_COLUMNS, 0)
    return batch.tidied() if cache.vain > COPY_COLUMNS * len(seen) * seen[0] else batch


def _bands(seen: Sequence[int]) -> list[tuple[int, int]]:
    """Rows in bands, as (rows, columns), from the numbers of columns that rows see, the largest first: one, or two.

    >>> _bands([9, 8, 8]), _bands([900, 800, *[30] * 30])
    ([(3, 9)], [(2, 900), (30, 30)])
    """
    one = [(len(seen), seen[0])]
    two = min(([(cut, seen[0]), (len(seen) - cut, seen[cut])] for cut in range(1, len(seen))), default=one,
              key=lambda bands: _columns(bands))  # fmt: skip
    return two if _columns(one) - _columns(two) > BAND_COLUMNS else one


def _columns(bands: Sequence[tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in bands)


def _empty(place: Tensor, rows: int, width: int) -> Batch:
    """No answer yet, and a cache for this many rows, which will end at this column."""
    from trimtab.rollout.cache import RowCache

    none = place[:0]
    return Batch(none, none, none, False, none, none, torch.empty(0), RowCache(rows, width))


def _rectangle(prompts: Sequence[tuple[int, ...]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts as rows, the padding of each row, and the row of each prompt. Equal neighbours share a row."""
    runs = [(ids, len(list(same))) for ids, same in groupby(prompts)]
    width = max(len(ids) for ids, _ in runs)
    ids = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids, _ in runs], device=device)
    hidden = torch.tensor([width - len(ids) for ids, _ in runs], device=device)
    return ids, hidden, torch.repeat_interleave(torch.tensor([count for _, count in runs], device=device))


def _logits(forward: Forward, batch: Batch, running: int, entering: Sequence[Prompts]) -> Tensor:
    """One pass: a column more of the first `running` rows, and the prompts that enter."""
    cache = batch.cache
    first, end = batch.first[:running], cache.end + min(running, 1)
    for prompts in entering:
        cache.see_from(_numbers(prompts.rows), end - prompts.ids.shape[1])
    return forward(batch.tokens[:running, None], first - cache.start, (cache.end - first)[:, None], cache, entering)


def _numbers(values: Tensor) -> list[int]:
    return cast("list[int]", values.tolist())


def _joined(batch: Batch, logits: Tensor, entering: Sequence[Prompts], place: Tensor, row: Sequence[Tensor]) -> Batch:
    """The batch with the prompts that entered; `logits` holds those of its own rows first."""
    rows, running = torch.cat([prompts.rows for prompts in entering]), len(logits)
    running -= len(rows)
    of_row = torch.arange(len(batch.first), device=rows.device)
    of_row[rows] = torch.arange(running, running + len(rows), device=rows.device)
    first = torch.cat([prompts.hidden - prompts.ids.shape[1] for prompts in entering]) + batch.cache.end
    return replace(
        batch,
        place=torch.cat([batch.place, place]),
        count=torch.cat([batch.count, torch.zeros_like(place)]),
        row=torch.cat([batch.row, *(prompts.rows[own] for prompts, own in zip(entering, row, strict=True))]),
        is_shared=batch.is_shared or len(rows) < len(place),
        first=batch.first.index_copy(0, rows, first),
        logits=logits.index_select(0, of_row),
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


def _part(batch: Batch, chosen: Tensor) -> Batch:
    """Give answers that chose different tokens rows of their own: the first keeps the row, others get a copy."""
    vocabulary = batch.logits.shape[1]
    wanted, which = torch.unique(batch.row * vocabulary + chosen, return_inverse=True)
    parent, tokens = wanted // vocabulary, wanted % vocabulary
    moves = torch.zeros_like(parent, dtype=torch.bool)
    moves[1:] = parent[1:] == parent[:-1]
    own = parent
    if bool(moves.any()):
        source, rows = parent[moves], batch.free_rows(int(moves.sum()))
        batch = batch.fit(int(rows[-1]) + 1, 0, 0)
        first = int(batch.first[source].min())
        batch.cache.copy(source, rows, first)
        batch.cache.see_from(_numbers(rows), first)
        own = parent.masked_scatter(moves, rows)
        batch = replace(batch, first=batch.first.index_copy(0, rows, batch.first[source]))
    batch = replace(batch, row=own[which], is_shared=len(wanted) < len(chosen))
    return _told(batch, own, tokens)


def _told(batch: Batch, rows: Tensor, tokens: Tensor) -> Batch:
    """These tokens are the last of these rows."""
    return replace(batch, tokens=batch.tokens.index_copy(0, rows, tokens))
