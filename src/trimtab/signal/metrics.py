"""Named metrics as one: the only place that merges them by name, reads them as plain numbers, and writes them as data.

Nothing is read back from a device until `numbers()`. What a metric is stands in metric_kind.py and agreement.py; what
each name means, in metric_names.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from trimtab.signal.agreement import Agreement, Quotient
from trimtab.signal.histogram import Histogram
from trimtab.signal.metric_kind import Extremum, Mean, Metric, SampleSize, Spread, Sum

Kind = TypeVar("Kind")


@runtime_checkable
class Mergeable(Protocol):
    """Anything that joins another of its own kind."""

    def merge(self: Kind, other: Kind, /) -> Kind: ...


Merging = TypeVar("Merging", bound=Mergeable)


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
    read = cast("list[float]", torch.stack([value.double() for _, _, value in there]).tolist())
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
