"""Fields of a case as an unbound function may want them: in rows, row by row, packed, by key, or as objects.

The only place that makes inputs for a function whose binding is guessed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.words import field_of, is_reason

Way = Literal["padded", "row", "list", "joined", "packed", "sliced", "model", "whole", "alone"]
"""padded   [rows, width], answers only
row      one call per row
list     a list with one tensor per row
joined   the answers of all rows in one line; lists where the signature says so
packed   all tokens in one line, prompts included, with boundaries
sliced   rows with their prompts; log-probs lack the first column, which no model predicts
model    rows with their prompts, and logits as a model gives them: position t predicts token t + 1
whole    rows with their prompts; the function drops the first column itself
alone    one call per row, with its prompt, and logits as a model gives them"""
Size = Literal["token", "sequence"]
Form = Literal[
    "tensor", "numpy", "names", "matrix", "rows", "keys", "steps", "list", "suppressed", "labels", "flags", "cut",
    "line",
]  # fmt: skip
"""How groups are named (tensor, numpy, names, matrix), and how a whole batch is held: by keys with one reward per row,
by keys with rewards per step, by keys with log-probs that lack the first column (cut), or as rows of objects. A mask is
`suppressed` beside flags per row: it holds tokens of rows whose flag is 0. `flags` are a mask of booleans. A
`line` is a packed row with a dimension of its own, [1, tokens]. Why answers ended is told by `names`."""

ROWS = frozenset({"group", "ended", "length", "outcome", "reward", "in_use"})
"""Fields with one entry per sequence."""
MASKS = frozenset({"trainable", "in_use", "attention"})


def view(case: Case, field: str, size: Size, way: Way, form: Form = "tensor") -> Any:
    """One field, in the shape of a way."""
    if form == "flags" and field != "batch":
        held = view(case, field, size, way)
        return [one.bool() for one in held] if isinstance(held, list) else held.bool()
    if form == "line":
        held = view(case, field, size, way)
        return held if field == "boundaries" else held[None]
    if field == "count":
        return case.whole.segments.num_tokens
    if field == "reducer":
        return _sum_of_means(case)
    if field == "rows":
        return int((case.whole.segments.token_counts > 0).sum())
    if field == "width":
        return max(case.response_lengths, default=0)
    if field in ("eos_id", "pad_id", "stop_ids"):
        case.note(field)
        return {"eos_id": case.eos_ids[0], "pad_id": case.pad_id, "stop_ids": list(case.eos_ids)}[field]
    if field == "boundaries":
        return case.cu_seqlens
    if field == "head":
        return torch.eye(case.tokens["logits"].shape[-1], dtype=torch.float64)
    if field == "batch":
        return samples(case, way) if form == "rows" else Keys(case, way, size, form)
    if field in ("ratio", "log_ratio", "minus_log_ratio", "gap_to_ref"):
        return _ratio(case, way, field)
    if field == "position":
        counted = [torch.arange(length) for length in case.lengths]
        case = case.with_tokens(position=torch.cat(counted) if counted else torch.zeros(0, dtype=torch.long))
    if field == "segment":
        case = case.with_tokens(segment=case.owner)
    if field == "token_id" and form == "labels":
        return _labels(case, way)
    if field == "trainable" and form == "suppressed":
        field = "chosen"
    if size == "sequence" or field in ROWS - {"reward"}:
        return _per_row(case, field, way, form)
    name = "token_reward" if field == "reward" else field
    if way == "padded":
        return case.padded(name, with_prompt=False)
    if way in ("row", "list"):
        rows = case.list(name, with_prompt=False)
        return [one.tolist() for one in rows] if form == "list" else rows
    if way == "joined":
        rows = case.list(name, with_prompt=False)
        return rows if form in ("list", "rows") else torch.cat(rows)
    if way == "packed":
        return case.packed(name)
    if way == "whole":
        return case.padded(name)
    if way == "alone":
        rows = case.list(name)
        return [torch.cat([one[1:], torch.zeros_like(one[:1])]) for one in rows] if "logits" in name else rows
    if way == "model":
        return case.logits(name, side="both") if "logits" in name else case.padded(name, side="both")
    return case.padded(name, drop_first=name.startswith("logp") and form != "keys")


def _per_row(case: Case, field: str, way: Way, form: Form) -> Any:
    if field == "in_use":
        return case.sequence("in_use")
    if field == "length":
        case.note("length")
        lengths = case.response_lengths
        return lengths if form == "list" else torch.tensor(lengths)
    if field == "ended" and form == "names":
        return ["stop" if one else "length" for one in case.sequence("ended").tolist()]
    if field == "ended" and way == "padded" and form == "steps":
        last = torch.zeros(case.trainable.numel(), dtype=torch.float64)
        last[case.cu_seqlens[1:] - 1] = 1.0
        return replace(case, tokens={**case.tokens, "ended_here": last}, fill=0.0).padded(
            "ended_here", with_prompt=False
        )
    if field == "ended" and way == "packed":
        last = torch.zeros(case.trainable.numel())
        last[case.cu_seqlens[1:] - 1] = 1.0
        return last
    values = case.sequence("outcome" if field == "advantage" else "votes" if field == "trainable" else field)
    if field != "group" or form in ("tensor", "keys"):
        return values.tolist() if form == "list" else values
    if form == "numpy":
        return values.numpy()
    if form == "matrix":
        return torch.stack([values, values + 1, values * 0], 1)
    return [f"prompt {int(one)}" for one in values]


IGNORED = -100
"""The label of a token that does not count, as losses of torch have it."""


def _labels(case: Case, way: Way) -> Any:
    """Ids where a token trains, and the ignored label elsewhere."""
    ids = torch.where(case.trainable, case.tokens["token_id"], IGNORED)
    case.note("trainable")
    return view(replace(case.with_tokens(token_id=ids), pad_id=IGNORED), "token_id", "token", way)


def _sum_of_means(case: Case) -> Any:
    """A function of the numbers of all answers in one line: the sum of one mean per answer."""
    masks = case.list("trainable", with_prompt=False)

    def reduce(x: Tensor) -> Tensor:
        parts = x.split(case.response_lengths)
        return sum(((p * m).sum() / m.sum().clamp(min=1) for p, m in zip(parts, masks, strict=True)), x.sum() * 0)

    return reduce


HIGHEST = 40.0
"""The largest log of a ratio that is handed over as a number: in single precision its square is finite."""


def _ratio(case: Case, way: Way, field: str) -> Any:
    behind = "logp_ref" if field == "gap_to_ref" else "logp_old"
    first, second = (view(case, name, "token", way) for name in ("logp_current", behind))

    def of(a: Tensor, b: Tensor) -> Tensor:
        bounded = a - b - (a - b - HIGHEST).clamp(min=0).detach()
        return {"ratio": bounded.exp(), "log_ratio": a - b, "gap_to_ref": a - b, "minus_log_ratio": b - a}[field]

    return [of(a, b) for a, b in zip(first, second, strict=True)] if isinstance(first, list) else of(first, second)


NESTED = frozenset({"batch", "non_tensor_batch", "tensors", "data"})
"""Keys and attributes under which a batch holds its fields once more."""


class Keys(dict[str, Any]):
    """A batch that nobody has seen: a key is filled with the field that its name tells."""

    beside_current = False
    """The current log-probs are an argument of their own, so plain ones in the batch are older."""
    rolled: frozenset[str] = frozenset()
    """Keys that the body moves to the left by one. Beside those, all others come moved."""

    def __init__(self, case: Case, way: Way, size: Size, form: Form) -> None:
        super().__init__()
        self._case, self._size, self._form = case, size, form
        self._way: Way = way

    def __missing__(self, key: str) -> Any:
        if key in NESTED:
            return self
        self[key] = self._value(key)
        return self[key]

    def _value(self, key: str) -> Any:
        field = field_of(key)
        if field is None or field == "batch" or (field == "boundaries" and self._way != "packed"):
            raise self._case.cannot(f"nothing is known about the key {key!r}")
        field = "logp_old" if field == "logp_current" and self.beside_current else field
        per_row = field in ROWS or (field == "advantage" and self._size == "sequence")
        per_row = per_row and not (field == "reward" and self._form == "steps")
        form: Form = "names" if is_reason(key) else "keys"
        if (field == "trainable" and self._form == "suppressed") or (field in MASKS and self._form == "flags"):
            form = self._form
        if self._form == "cut" and field.startswith("logp"):
            form = "tensor"
        held = view(self._case, field, "sequence" if per_row else "token", self._way, form)
        if per_row or not self.rolled or key in self.rolled:
            return held
        return torch.cat([held[:, 1:], torch.zeros_like(held[:, :1])], 1)

    def __contains__(self, key: object) -> bool:
        return key in NESTED or field_of(str(key)) is not None

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict.get does not ask __missing__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]


class Sample:
    """One row as an object: an attribute is filled with the field that its name tells."""

    def __init__(self, case: Case, row: int) -> None:
        self._case, self._row = case, row

    def __getattr__(self, name: str) -> Any:
        field = None if name.startswith("_") else field_of(name)
        if field is None or field in ("batch", "boundaries"):
            raise AttributeError(name)
        if field in ROWS:
            one = _per_row(self._case, field, "list", "names" if is_reason(name) else "tensor")[self._row]
            return one.item() if isinstance(one, Tensor) else one
        return self._case.list(field, with_prompt=False)[self._row]


def samples(case: Case, way: Way) -> list[Sample]:
    if way != "list":
        raise case.cannot("objects are tried once")
    return [Sample(case, row) for row in range(case.num_sequences)]


def of_row(values: Any, row: int, case: Case) -> Any:
    """The part of an input that belongs to one row."""
    if isinstance(values, Keys):
        raise case.cannot("a batch by keys is not called row by row")
    return values if isinstance(values, int | float) else values[row]


def layouts(case: Case, way: Way, *, shift: bool = False) -> Iterator[tuple[tuple[int, ...], Mapping[str, Any]]]:
    """Shapes that a result with one number per token can have, and the view that brings it back."""
    if way == "packed":
        yield tuple(case.trainable.shape), {"layout": "packed"}
        return
    if way in ("sliced", "model", "whole"):
        side: dict[str, Any] = {"side": "both"} if way == "model" else {}
        if shift:
            yield tuple(case.padded("trainable", **side).shape), {"layout": "padded", "shift": True, **side}
        for view_of in cast("tuple[dict[str, Any], ...]", ({"drop_first": True}, {})):
            shape = case.padded("trainable", **side, **view_of).shape
            yield tuple(shape), {"layout": "padded", **side, **view_of}
    yield tuple(case.padded("trainable", with_prompt=False).shape), {"layout": "padded", "with_prompt": False}
