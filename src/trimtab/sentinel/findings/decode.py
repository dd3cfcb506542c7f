"""Plain data to arguments of a call: the only place that reads the values of a reproduction file. Needs only torch.

JSON values stand for themselves. Everything else is an object with a tag:

    {"tensor": "float32", "shape": [2], "values": [0.5, "nan"], "requires_grad": true}    {"tuple": [1, 2]}
    {"namespace": {"delta": 0.1}}    {"object": "Actor", "attributes": {...}}    {"shared": 3} for the one with "id": 3

Nothing is unpickled or evaluated. Functions come from a short list.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.findings.alone import STAND_INS, Lenient
from trimtab.sentinel.loading.boundary import made

Data = dict[str, Any]


class NotData(ValueError):
    """A reproduction file holds something that is not in the format."""


def _identity(first: Any = None, *_: Any, **__: Any) -> Any:
    return first


def _nothing(*_: Any, **__: Any) -> None:
    return None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "identity": _identity,
    "nothing": _nothing,
    "torch.exp": torch.exp,
    "torch.sum": torch.sum,
    "torch.mean": torch.mean,
}
"""The only functions in a reproduction file. A constant one is {"function": "always", "returns": value}."""


def finite_or_word(value: float) -> float | str:
    """JSON has no NaN, so non-finite numbers are strings."""
    return value if math.isfinite(value) else str(value)


def _no_target(name: str) -> Any:
    raise NotData(f"{name} belongs to the target, which is not loaded yet")


@dataclass
class Decoder:
    """Builds arguments. The same id gives the same object, and tensors with a gradient remember their leaf."""

    look: Callable[[str], Any] = _no_target
    """The class or enum of the target with that name."""
    shared: dict[int, Any] = field(default_factory=dict[int, Any])
    leaves: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])

    def value(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self.value(one) for one in cast("list[Any]", data)]
        if not isinstance(data, dict):
            return data
        tagged = cast("Data", data)
        if "shared" in tagged:
            return self.shared[tagged["shared"]]
        tag = next((tag for tag in READERS if tag in tagged), None)
        if tag is None:
            raise NotData(f"there is no tag {{{', '.join(tagged)}}}; known tags are {', '.join(READERS)}")
        found = READERS[tag](self, tagged)
        if "id" in tagged:
            self.shared[tagged["id"]] = found
        return found

    def tensor(self, data: Data) -> Tensor:
        dtype = cast("torch.dtype", getattr(torch, data["tensor"]))
        values = [float(v) if isinstance(v, str) else v for v in data["values"]]
        built = torch.tensor(values, dtype=dtype).reshape(data["shape"])
        leaf = built.requires_grad_(bool(data.get("requires_grad")))
        # Tensors of a trainer are not leaves, and autograd forbids in-place writes to a leaf.
        passed = leaf.clone() if leaf.requires_grad else leaf
        passed = passed.expand(data["expanded"]) if "expanded" in data else passed
        if leaf.requires_grad:
            self.leaves[id(passed)] = (leaf, passed)
        return passed


def _array(decoder: Decoder, data: Data) -> Any:
    import numpy

    values = [float(v) if isinstance(v, str) else v for v in data["values"]]
    return numpy.array(values, dtype=data["array"]).reshape(data["shape"])


def _function(decoder: Decoder, data: Data) -> Any:
    if data["function"] == "always":
        answer = decoder.value(data["returns"])

        def always(*_: Any, **__: Any) -> Any:
            return answer

        return always
    if data["function"] not in FUNCTIONS:
        raise NotData(
            f"function {data['function']!r} is not allowed in a reproduction file; allowed are {', '.join(FUNCTIONS)}"
        )
    return FUNCTIONS[data["function"]]


READERS: dict[str, Callable[[Decoder, Data], Any]] = {
    "tensor": lambda d, x: d.tensor(x),
    "array": _array,
    "float": lambda d, x: float(x["float"]),
    "list": lambda d, x: [d.value(v) for v in x["list"]],
    "tuple": lambda d, x: tuple(d.value(v) for v in x["tuple"]),
    "set": lambda d, x: {d.value(v) for v in x["set"]},
    "dict": lambda d, x: {k: d.value(v) for k, v in x["dict"].items()},
    "pairs": lambda d, x: {d.value(k): d.value(v) for k, v in x["pairs"]},
    "stand_in": lambda d, x: STAND_INS[x["stand_in"]](**{k: d.value(v) for k, v in x.get("fields", {}).items()}),
    "stand_in_class": lambda d, x: STAND_INS[x["stand_in_class"]],
    "namespace": lambda d, x: (Lenient if x.get("others_are_off") else types.SimpleNamespace)(
        **{k: d.value(v) for k, v in x["namespace"].items()}
    ),
    "object": lambda d, x: made(d.look(x["object"]), **{k: d.value(v) for k, v in x["attributes"].items()}),
    "enum": lambda d, x: getattr(d.look(x["enum"]), x["member"]),
    "dtype": lambda d, x: getattr(torch, x["dtype"]),
    "device": lambda d, x: torch.device(x["device"]),
    "function": _function,
}
