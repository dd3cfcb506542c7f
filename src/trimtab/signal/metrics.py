"""Metrics that merge: the only place that knows how a number from one part of a batch joins the number from another.

A metric is a sum with its count, an extremum, or moments, held as tensors on the device; nothing is read back until
`numbers()`. Whatever the split, merging gives what the unsplit batch would have given. What each name means
stands in `metric_names`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

Kind = TypeVar("Kind")


@runtime_checkable
class Mergeable(Protocol):
    """Anything that joins another of its own kind."""

    def merge(self: Kind, other: Kind, /) -> Kind: ...


Merging = TypeVar("Merging", bound=Mergeable)


@dataclass(frozen=True)
class Population:
    """What a share or a mean is taken among, counted once for all metrics that are."""

    flags: Tensor | None
    """None: everything."""
    count: Tensor

    @classmethod
    def of(cls, flags: Tensor) -> "Population":
        return cls(flags, flags.count_nonzero().double())

    @classmethod
    def everything(cls, like: Tensor) -> "Population":
        return cls(None, torch.full((), float(like.numel()), dtype=torch.float64, device=like.device))


Among = Tensor | Population | None
"""Flags, flags that were counted already, or everything."""


@dataclass(frozen=True)
class Mean:
    """total / count. `absent`: leave it out when there is nothing to average; a fraction of nothing is 0 instead."""

    total: Tensor
    count: Tensor
    absent: bool = True

    @classmethod
    def of(cls, values: Tensor, among: Among = None) -> "Mean":
        """Mean of the values, or of those chosen by the flags `among`."""
        return cls(*_sums(values, among))

    @classmethod
    def fraction(cls, flags: Tensor, among: Among = None) -> "Mean":
        """Share of true flags, among all or among those chosen."""
        return cls(*_sums(flags, among), absent=False)

    def merge(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count, self.absent)

    def value(self) -> tuple[Tensor, Tensor]:
        present = self.count > 0 if self.absent else torch.ones_like(self.count, dtype=torch.bool)
        return self.total / self.count.clamp(min=1), present


@dataclass(frozen=True)
class Sum:
    """A plain sum: counts, and weighted losses."""

    total: Tensor

    @classmethod
    def of(cls, values: Tensor) -> "Sum":
        return cls(_sums(values, None)[0])

    def merge(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    def value(self) -> tuple[Tensor, Tensor]:
        return self.total, torch.ones_like(self.total, dtype=torch.bool)


@dataclass(frozen=True)
class Extremum:
    """The largest value (sign = 1) or the smallest (sign = -1)."""

    extreme: Tensor
    sign: int

    @classmethod
    def of(cls, values: Tensor, sign: int, among: Among = None) -> "Extremum":
        signed = sign * values.detach().double()
        chosen = among.flags if isinstance(among, Population) else among
        if chosen is not None:
            signed = torch.where(chosen, signed, torch.full_like(signed, -torch.inf))
        return cls(signed.max() if signed.numel() else signed.new_full((), -torch.inf), sign)

    def merge(self, other: "Extremum") -> "Extremum":
        return Extremum(torch.maximum(self.extreme, other.extreme), self.sign)

    def value(self) -> tuple[Tensor, Tensor]:
        return self.sign * self.extreme, self.extreme > -torch.inf


@dataclass(frozen=True)
class Spread:
    """Standard deviation (ddof 0) from count, mean and M2; merged as Chan et al. 1979 do, without cancellation."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    @classmethod
    def of(cls, values: Tensor, among: Among = None) -> "Spread":
        total, count = _sums(values, among)
        mean = total / count.clamp(min=1)
        m2, _ = _sums((values.double() - mean).square(), among)
        return cls(count, mean, m2)

    def merge(self, other: "Spread") -> "Spread":
        count = self.count + other.count
        delta, share = other.mean - self.mean, other.count / count.clamp(min=1)
        return Spread(count, self.mean + delta * share, self.m2 + other.m2 + delta.square() * self.count * share)

    def value(self) -> tuple[Tensor, Tensor]:
        return torch.sqrt(self.m2 / self.count.clamp(min=1)), self.count > 0


@dataclass(frozen=True)
class SampleSize:
    """Effective sample size as a share: (sum w)^2 / (n * sum w^2); 1 when all weights agree, 1/n when one has all."""

    total: Tensor
    square: Tensor
    count: Tensor

    @classmethod
    def of(cls, weights: Tensor, among: Among = None) -> "SampleSize":
        total, count = _sums(weights, among)
        return cls(total, _sums(weights.double().square(), among)[0], count)

    def merge(self, other: "SampleSize") -> "SampleSize":
        return SampleSize(self.total + other.total, self.square + other.square, self.count + other.count)

    def value(self) -> tuple[Tensor, Tensor]:
        return self.total.square() / (self.count * self.square).clamp(min=1e-300), self.count > 0


@dataclass(frozen=True)
class Histogram:
    """Counts in fixed bins of the log-ratio, so that histograms of different batches add up.

    Bins mirror at 0; a value on an edge belongs to the bin farther out. Edges have at most eight significant bits, so
    the upper half of a float32 says in which bin it lies, and a large batch is counted without comparing anything.
    """

    counts: Tensor

    OUTER = (0.010009765625, 0.030029296875, 0.10009765625, 0.30078125, 1.0, 3.0, 10.0)
    EDGES = (*(-edge for edge in OUTER[::-1]), *OUTER)
    SMALL = 8192
    """Fewer values than this are compared with the edges."""

    @classmethod
    def of(cls, logratio: Tensor) -> "Histogram":
        values = logratio.detach().float()
        if values.device.type == "cpu" and values.numel() >= cls.SMALL:
            return cls(cls._by_bits(values))
        outer = torch.tensor(cls.OUTER, device=values.device)
        far = torch.bucketize(values.abs(), outer, right=True)
        place = len(cls.OUTER) + torch.where(values < 0, -far, far)
        bins = torch.zeros(len(cls.EDGES) + 1, dtype=torch.long, device=values.device)
        return cls(bins.index_add(0, place, torch.ones_like(place)))

    @classmethod
    def _by_bits(cls, values: Tensor) -> Tensor:
        """The upper 16 bits are counted; each sign has 2**15 of them, in the order of the magnitude."""
        half = 2**15
        upper = (values.view(torch.int32) >> 16) + half  # negative numbers first
        edges = cast("list[int]", (torch.tensor(cls.OUTER).view(torch.int32) >> 16).tolist())
        starts = torch.tensor([0, *edges, half, *(half + edge for edge in edges), 2 * half])
        running = torch.nn.functional.pad(torch.bincount(upper, minlength=2 * half).cumsum(0), (1, 0))
        below, above = running[starts].diff().tensor_split(2)
        return torch.cat([below[1:].flip(0), below[:1] + above[:1], above[1:]])

    def merge(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)


Metric = Mean | Sum | Extremum | Spread | SampleSize


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

    def merge(self, other: "Metrics") -> "Metrics":
        return Metrics(_merged(self.entries, other.entries), _merged(self.histograms, other.histograms))

    def numbers(self) -> dict[str, float]:
        """Plain numbers; the one place where the device is asked. A metric with nothing to report is left out."""
        if not self.entries:
            return {}
        columns: list[Tensor] = []
        order: list[str] = []
        for (kind, plain), named in _alike(self.entries).items():
            # One vector per field: a few operations per kind, not per metric.
            held = [vars(metric) for metric in named.values()]
            joined = {field: torch.stack([one[field] for one in held]) for field in held[0] if field not in dict(plain)}
            columns.append(torch.stack(cast("Metric", kind(**joined, **dict(plain))).value()))
            order += named
        numbers, present = cast("list[list[float]]", torch.cat(columns, 1).tolist())
        found = {name: number for name, number, there in zip(order, numbers, present, strict=True) if there}
        return {name: found[name] for name in self.entries if name in found}


Likeness = tuple[type, tuple[tuple[str, Any], ...]]
"""A kind of metric, and what its fields hold that are no tensors."""


def _alike(entries: Mapping[str, Metric]) -> dict[Likeness, dict[str, Metric]]:
    """Metrics whose values are computed in the same way."""
    found: dict[Likeness, dict[str, Metric]] = {}
    for name, metric in entries.items():
        plain = tuple((field, value) for field, value in vars(metric).items() if not isinstance(value, Tensor))
        found.setdefault((type(metric), plain), {})[name] = metric
    return found


KINDS: dict[str, type] = {one.__name__: one for one in (Mean, Sum, Extremum, Spread, SampleSize, Histogram)}


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


def _fields(metric: object) -> list[Any]:
    held: dict[str, Any] = {}
    for one in fields(metric):  # type: ignore[arg-type]
        value = getattr(metric, one.name)
        is_tensor = isinstance(value, Tensor)
        held[one.name] = [str(value.dtype).removeprefix("torch."), value.tolist()] if is_tensor else value
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


def _sums(values: Tensor, among: Among) -> tuple[Tensor, Tensor]:
    chosen = among if isinstance(among, Population) else None
    chosen = chosen or (Population.everything(values) if among is None else Population.of(cast("Tensor", among)))
    if values.dtype == torch.bool:
        both = values if chosen.flags is None else values & chosen.flags
        return both.count_nonzero().double(), chosen.count
    exact = values.detach().double()
    if chosen.flags is not None:
        exact = torch.where(chosen.flags, exact, 0.0)
    return exact.sum(), chosen.count
