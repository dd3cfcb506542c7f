"""The only place that walks arguments and return values, and finds their numbers with paths. Needs only torch."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.findings.decode import NotData


def at(value: Any, path: Sequence[str | int]) -> Any:
    """The value at a path of keys, indices and attribute names."""
    for step in path:
        if isinstance(value, (Mapping, list, tuple)):
            value = cast("Any", value)[step]
        elif isinstance(step, str) and not step.startswith("__"):
            value = getattr(value, step)
        else:
            raise NotData(f"there is no {step!r} in a {type(value).__name__}")
    return value


OPAQUE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def numbers_in(
    value: Any, path: tuple[str | int, ...] = (), above: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Tensor]]:
    """Every tensor and number of a structure with its path, in order. Objects that contain themselves are safe."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (bool, int, float)):
        yield path, torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, Mapping):
        entries = cast("Mapping[str | int, Any]", value)
        for key, one in entries.items():
            yield from numbers_in(one, (*path, key), above)
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(cast("Sequence[Any]", value)):
            yield from numbers_in(one, (*path, i), above)
    elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        yield path, torch.as_tensor(value)
    elif hasattr(value, "__dict__") and not isinstance(value, OPAQUE) and id(value) not in above:
        for key, one in cast("dict[str, Any]", vars(value)).items():
            yield from numbers_in(one, (*path, key), (*above, id(value)))


def flat(value: Any) -> Tensor:
    """All numbers of a structure in one row, with their graph."""
    rows = [one.double().reshape(-1) for _, one in numbers_in(value)]
    return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.float64)
