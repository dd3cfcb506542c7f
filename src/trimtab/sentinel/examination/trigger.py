"""The trigger of a violation: the only place that says how one case differs from another, as plain data.

trigger(before, after) == [{"field": "reward", "place": "sequence 2", "before": 0.5, "after": 100.0}]
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.reports.data import Change

MOST = 8
"""Largest number of changes that a report holds; the others are counted."""
UNTRAINABLE = "padding and untrainable tokens"


def trigger(before: Case, after: Case, reads: frozenset[str] | None = None) -> tuple[list[Change], int]:
    """What was changed from one case to the other in the fields `reads`, and how many changes were left out."""
    changes = list(_changes(before, after, reads))
    return changes[:MOST], max(0, len(changes) - MOST)


def _changes(before: Case, after: Case, reads: frozenset[str] | None) -> Iterator[Change]:
    if before is after:
        return
    if after.within is not None and before.within is None:
        rows = f"{before.num_sequences} sequences in one call"
        yield _change("batch", "", rows, f"split; the first part has {after.num_sequences} of them")
        return
    rows = _shape(before, after)
    yield from rows
    yield from _padding(before, after)
    if not rows:
        yield from _fields(before, after, reads)


def _shape(before: Case, after: Case) -> list[Change]:
    """Sequences that were left out, added or put in another order; tokens that became another kind or went away."""
    if before.num_sequences != after.num_sequences:
        return [_change("sequences", _left_out(before, after), before.num_sequences, after.num_sequences)]
    came, went = _origin(before), _origin(after)
    if came != went:
        return [_change("order of sequences", "", list(came), list(went))]
    rows = [(" ".join(a), " ".join(b)) for a, b in zip(before.kinds, after.kinds, strict=True)]
    return [_change("tokens", f"sequence {i}", a, b) for i, (a, b) in enumerate(rows) if a != b]


def _origin(case: Case) -> tuple[int, ...]:
    return case.origin or tuple(range(case.num_sequences))


def _left_out(before: Case, after: Case) -> str:
    gone = sorted(set(_origin(before)) - set(_origin(after)))
    return f"without {', '.join(str(i) for i in gone[:MOST])}" if gone else ""


def _padding(before: Case, after: Case) -> Iterator[Change]:
    if not _equal(before.fill, after.fill):
        yield _change("content", UNTRAINABLE, before.fill, after.fill)
    if before.extra_columns != after.extra_columns:
        yield _change("columns of padding", "", before.extra_columns, after.extra_columns)
    if before.side != after.side:
        yield _change("side of the padding", "", before.side, after.side)


def _fields(before: Case, after: Case, reads: frozenset[str] | None) -> Iterator[Change]:
    dtypes: set[tuple[str, str]] = set()
    for level, own, other in (("token", before.tokens, after.tokens), ("sequence", before.sequences, after.sequences)):
        for name in _common(own, other, reads):
            first, second = own[name], other[name]
            dtypes |= {(str(first.dtype), str(second.dtype))} if first.dtype != second.dtype else set()
            yield from _entries(name, level, first, second, before, after)
    for one, another in sorted(dtypes):
        yield _change("dtype", "", one, another)
    if before.mask_dtype != after.mask_dtype and not dtypes:
        yield _change("dtype of masks", "", str(before.mask_dtype), str(after.mask_dtype))


def _common(own: Mapping[str, Tensor], other: Mapping[str, Tensor], reads: frozenset[str] | None) -> list[str]:
    return [n for n in own if n in other and own[n].shape == other[n].shape and (not reads or n in reads)]


def _entries(name: str, level: str, first: Tensor, second: Tensor, before: Case, after: Case) -> Iterator[Change]:
    """Entry by entry; one change for a whole field that went from one number to another."""
    moved = ~torch.isclose(first.double(), second.double(), rtol=1e-9, atol=1e-12, equal_nan=True)
    if moved.ndim > 1:
        moved = moved.flatten(1).any(1)
    if level == "token" and not _equal(before.fill, after.fill):
        moved = moved & before.trainable  # the other tokens hold the content that the padding holds, which was said
    where = [int(i) for i in moved.nonzero().squeeze(1)]
    if len(where) > 1 and _is_uniform(first[moved]) and _is_uniform(second[moved]):
        place = f"every {level}" if len(where) == len(moved) else f"{len(where)} of {len(moved)} {level}s"
        yield _change(name, place, _plain(first[where[0]]), _plain(second[where[0]]))
        return
    for i in where:
        place = f"sequence {i}" if level == "sequence" else _token(before, i)
        yield _change(name, place, _plain(first[i]), _plain(second[i]))


def _token(case: Case, place: int) -> str:
    row = int(case.owner[place])
    return f"token {place - int(case.cu_seqlens[row])} of sequence {row}"


def _is_uniform(values: Tensor) -> bool:
    return bool(torch.isclose(values.double(), values[:1].double().expand_as(values), equal_nan=True).all())


def _plain(value: Tensor) -> Any:
    return cast("Any", value.tolist())


def _equal(first: float, second: float) -> bool:
    return first == second or (first != first and second != second)


def _change(field: str, place: str, before: Any, after: Any) -> Change:
    return {"field": field, "place": place, "before": before, "after": after}
