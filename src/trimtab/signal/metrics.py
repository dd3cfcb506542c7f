"""Metrics that merge: the only place that knows how a number from one part of a batch joins the number from another.

A metric is a sum with its count, an extremum, or moments: plain numbers where they are at hand, tensors where they are
on another device, and nothing is read back until `numbers()`. Whatever the split, merging gives what the unsplit batch
would have given. What each name means stands in `metric_names`.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.agreement import Agreement, Quotient
from trimtab.signal.tensors import Array, Number, is_plain

Kind = TypeVar("Kind")


@runtime_checkable
class Mergeable(Protocol):
    """Anything that joins another of its own kind."""

    def merge(self: Kind, other: Kind, /) -> Kind: ...


Merging = TypeVar("Merging", bound=Mergeable)


class Mean(NamedTuple):
    """total / count. `absent`: leave it out when there is nothing to average; a fraction of nothing is 0 instead."""

    total: Number
    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant
    absent: bool = True

    @classmethod
    def of(cls, values: Array, among: Array | None = None) -> "Mean":
        """Mean of the values, or of those chosen by the flags `among`."""
        return cls(*_sums(values, among))

    @classmethod
    def fraction(cls, flags: Array, among: Array | None = None) -> "Mean":
        """Share of true flags, among all or among those chosen."""
        return cls(*_sums(flags, among), absent=False)

    def merge(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count, self.absent)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        """The number, and whether there is one."""
        count = self.count
        divisor = count.clamp(min=1) if isinstance(count, Tensor) else count if count > 1 else 1.0
        return self.total / divisor, count > 0 if self.absent else True


class Sum(NamedTuple):
    """A plain sum: counts, and weighted losses."""

    total: Number

    @classmethod
    def of(cls, values: Tensor) -> "Sum":
        return cls(_sums(values, None)[0])

    def merge(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return self.total, True


class Extremum(NamedTuple):
    """The largest value (sign = 1) or the smallest (sign = -1)."""

    extreme: Number
    sign: int

    @classmethod
    def of(cls, values: Tensor, sign: int, among: Tensor | None = None) -> "Extremum":
        signed = sign * values.detach().double()
        if among is not None:
            signed = torch.where(among, signed, torch.full_like(signed, -torch.inf))
        return cls(signed.max() if signed.numel() else signed.new_full((), -torch.inf), sign)

    def merge(self, other: "Extremum") -> "Extremum":
        return Extremum(larger(self.extreme, other.extreme), self.sign)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return self.sign * self.extreme, self.extreme != -math.inf


class Spread(NamedTuple):
    """Standard deviation (ddof 0) from count, mean and M2; merged as Chan et al. 1979 do, without cancellation."""

    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant
    mean: Number
    m2: Number

    @classmethod
    def of(cls, values: Array, among: Array | None = None) -> "Spread":
        return cls(*moments(values, among)[1:])

    def merge(self, other: "Spread") -> "Spread":
        count = self.count + other.count
        delta, share = other.mean - self.mean, other.count / larger(count, 1.0)
        return Spread(count, self.mean + delta * share, self.m2 + other.m2 + delta * delta * self.count * share)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return (self.m2 / larger(self.count, 1.0)) ** 0.5, self.count > 0


class SampleSize(NamedTuple):
    """Effective sample size as a share: (sum w)^2 / (n * sum w^2); 1 when all weights agree, 1/n when one has all."""

    total: Number
    square: Number
    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant

    @classmethod
    def of(cls, weights: Tensor, among: Tensor | None = None) -> "SampleSize":
        total, count = _sums(weights, among)
        return cls(total, _sums(weights.double().square(), among)[0], count)

    def merge(self, other: "SampleSize") -> "SampleSize":
        return SampleSize(self.total + other.total, self.square + other.square, self.count + other.count)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return self.total * self.total / larger(self.count * self.square, 1e-300), self.count > 0


@dataclass(frozen=True)
class Histogram:
    """Counts in fixed bins of the log-ratio, so that histograms of different batches add up.

    Bins mirror at 0; a value on an edge belongs to the bin farther out. Edges have at most eight significant bits, so
    the upper half of a float32 says in which bin it lies, and nothing is compared.
    Of more than LARGE values, every k-th is counted, k times: extremes are metrics of their own, and exact.
    """

    counts: Tensor

    OUTER = (0.010009765625, 0.030029296875, 0.10009765625, 0.30078125, 1.0, 3.0, 10.0)
    EDGES = (*(-edge for edge in OUTER[::-1]), *OUTER)
    LARGE = 8_192
    """More values than this are sampled."""

    @classmethod
    def of(cls, logratio: Tensor) -> "Histogram":
        num = logratio.numel()
        every = max(1, num // cls.LARGE)
        values = logratio.detach()
        if is_plain(values):
            chosen = np.ascontiguousarray(values.numpy()[: num // every * every : every], dtype=np.float32)
            place = BIN_OF_UPPER.take(chosen.view(np.uint16)[UPPER::2])
            return cls(torch.from_numpy(np.bincount(place, minlength=len(cls.EDGES) + 1) * every))
        chosen = values[::every][: num // every].float()
        place = torch.bucketize(chosen.contiguous(), torch.from_numpy(BEYOND).to(chosen.device), right=True)
        blank = torch.zeros(len(cls.EDGES) + 1, dtype=torch.long, device=chosen.device)
        return cls(blank.index_add(0, place, torch.full_like(place, every)))

    def merge(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)


_EDGES = np.array(Histogram.EDGES, dtype=np.float32)
BEYOND = np.where(_EDGES < 0, np.nextafter(_EDGES, np.float32(0)), _EDGES)
"""Each edge as the least number beyond it, so that a negative value on an edge lies outside too."""
UPPER = 1 if sys.byteorder == "little" else 0
BIN_OF_UPPER = np.searchsorted(BEYOND, (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32), side="right").astype(
    np.uint8
)
"""The bin of a float32, by its upper half; in bytes, so that it stays in the processor's cache."""


Metric = Mean | Sum | Extremum | Spread | SampleSize | Agreement | Quotient


@dataclass(frozen=True)
class Metrics(Mapping[str, Metric]):
    """Named metrics. `a.merge(b).numbers()` is what one batch of both would have reported."""

    entries: Mapping[str, Metric]
    histograms: Mapping[str, Histogram]

    @classmethod
    def empty(cls) -> "Metrics":
        return cls({}, {})

    def __getitem__(self, name: str) -> Metric:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def after(self, entries: Mapping[str, Metric]) -> "Metrics":
        """These behind others, of other names."""
        return Metrics({**entries, **self.entries}, self.histograms)

    def merge(self, other: "Metrics") -> "Metrics":
        return Metrics(_merged(self.entries, other.entries), _merged(self.histograms, other.histograms))

    def numbers(self) -> dict[str, float]:
        """Plain numbers; the one place where the device is asked. A metric with nothing to report is left out."""
        found: dict[str, float] = {}
        for name, metric in self.entries.items():
            if type(metric) is Mean and type(metric[0]) is type(metric[1]) is float:  # most are, so this is written out
                total, count, absent = cast("tuple[float, float, bool]", metric)
                if count > 0 or not absent:
                    found[name] = total / (count if count > 1 else 1.0)
                continue
            number, is_there = metric.value()
            if isinstance(number, Tensor):
                return Metrics(_read(self.entries), {}).numbers()
            if is_there:
                found[name] = number
        return found


def _read(entries: Mapping[str, Metric]) -> Mapping[str, Metric]:
    """The same metrics in plain numbers: whatever is still on a device is read at once."""
    there = [
        (name, field, value)
        for name, one in entries.items()
        for field, value in one._asdict().items()
        if isinstance(value, Tensor)
    ]
    if not there:
        return entries
    read = cast("list[float]", torch.stack([value.detach().double() for _, _, value in there]).tolist())
    plain: dict[str, dict[str, float]] = {}
    for (name, field, _), number in zip(there, read, strict=True):
        plain.setdefault(name, {})[field] = number
    return {name: one._replace(**plain[name]) if name in plain else one for name, one in entries.items()}


KINDS: dict[str, type] = {
    one.__name__: one for one in (Mean, Sum, Extremum, Spread, SampleSize, Agreement, Quotient, Histogram)
}


def as_data(metrics: Metrics) -> dict[str, dict[str, list[Any]]]:
    """Metrics as JSON, exactly; `from_data` is the way back."""
    return {
        "entries": {name: _fields(metric) for name, metric in metrics.entries.items()},
        "histograms": {name: _fields(metric) for name, metric in metrics.histograms.items()},
    }


def from_data(data: Mapping[str, Mapping[str, list[Any]]]) -> Metrics:
    """What `as_data` was given, on the CPU."""
    return Metrics(
        *({name: _from_fields(*held) for name, held in data[part].items()} for part in ("entries", "histograms"))
    )


def _fields(metric: Metric | Histogram) -> list[Any]:
    held: dict[str, Any] = {}
    for name in ("counts",) if isinstance(metric, Histogram) else metric._fields:
        value = getattr(metric, name)
        is_tensor = isinstance(value, Tensor)
        held[name] = [str(value.dtype).removeprefix("torch."), value.tolist()] if is_tensor else value
    return [type(metric).__name__, held]


def _from_fields(kind: str, held: Mapping[str, Any]) -> Any:
    read: dict[str, Any] = {
        name: torch.tensor(cast("list[Any]", value)[1], dtype=getattr(torch, str(cast("list[Any]", value)[0])))
        if isinstance(value, list)
        else value
        for name, value in held.items()
    }
    return KINDS[kind](**read)


def _merged(first: Mapping[str, Merging], second: Mapping[str, Merging]) -> dict[str, Merging]:
    joined = dict(first)
    for name, metric in second.items():
        joined[name] = joined[name].merge(metric) if name in joined else metric
    return joined


def moments(values: Array, among: Array | None = None) -> tuple[Number, Number, Number, Number]:
    """Sum, count, mean, and the sum of squares around the mean, of what is chosen."""
    total, count = _sums(values, among)
    mean = total / larger(count, 1.0)
    exact = cast("Array", values.astype(np.float64) if isinstance(values, np.ndarray) else values.detach().double())
    return total, count, mean, _sums((exact - mean) ** 2, among)[0]


def _sums(values: Array, among: Array | None) -> tuple[Number, Number]:
    """The sum of what is chosen, and how much that is."""
    if isinstance(values, np.ndarray):
        return _plain_sums(values, among)
    whole = values.new_full((), values.numel(), dtype=torch.float64)
    count = whole if among is None else among.count_nonzero().double()
    if values.dtype == torch.bool:
        return (values if among is None else values & among).count_nonzero().double(), count
    exact = values.detach().double()
    if among is not None:
        exact = torch.where(among, exact, 0.0)
    return exact.sum(), count


def _plain_sums(values: Array, among: Array | None) -> tuple[float, float]:
    count = float(values.size if among is None else np.count_nonzero(among))
    if values.dtype == np.bool_:
        return float(np.count_nonzero(values if among is None else values & among)), count
    exact = values.astype(np.float64)
    return float((exact if among is None else np.where(among, exact, 0.0)).sum()), count


def larger(first: Number, second: Number) -> Number:
    """The larger of two; not a number, if the first is none."""
    if type(first) is type(second) is float:
        return second if first < second else first
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.maximum(first, second)
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        tensor, bound = (first, second) if isinstance(first, Tensor) else (cast("Tensor", second), first)
        return tensor.clamp(min=cast("float", bound))
    return second if first < second else first
