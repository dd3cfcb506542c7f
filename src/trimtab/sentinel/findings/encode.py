"""Arguments of a call to plain data: the only place that writes values of reproduction files. Inverse of `plain`."""

import dis
import enum
import inspect
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.findings.alone import STAND_INS, Lenient
from trimtab.sentinel.findings.decode import FUNCTIONS, Data, finite_or_word
from trimtab.sentinel.findings.walk import OPAQUE


class CannotEncode(ValueError):
    """A value that cannot be written as data. The finding is then replayed through its binding."""


@dataclass
class Encoder:
    """Writes values. An object that occurs twice is written once and then named by id: aliasing may be the bug."""

    seen: dict[object, int] = field(default_factory=dict[object, int])
    held: list[Any] = field(default_factory=list[Any])
    written: dict[int, Data] = field(default_factory=dict[int, Data])

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Data:
        return {"args": [self.value(one) for one in args], "kwargs": {k: self.value(v) for k, v in kwargs.items()}}

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            word = finite_or_word(value)
            return {"float": word} if isinstance(word, str) else word
        key = _identity(value)
        if key in self.seen:
            number = self.seen[key]
            if number not in self.written:
                raise CannotEncode(f"a {type(value).__qualname__} that contains itself cannot be written as data")
            self.written[number]["id"] = number
            return {"shared": number}
        self.held.append(value)  # keeps the object alive, so that no other object gets its id()
        number = self.seen[key] = len(self.seen)
        data = self.written[number] = self._tagged(value)
        return data

    def _tagged(self, value: Any) -> Data:
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            return _array(value)
        if isinstance(value, enum.Enum):
            return {"enum": type(value).__name__, "member": value.name}
        if isinstance(value, (FunctionType, BuiltinFunctionType)):
            return self._function(value)
        if isinstance(value, type) and STAND_INS.get(value.__name__) is value:
            return {"stand_in_class": value.__name__}
        if type(value) in STAND_INS.values():
            return self._stand_in(value)
        return self._structure(value)

    def _function(self, value: Any) -> Data:
        """A function from the short list, or one that always returns the same answer, as stand-ins do."""
        for name, function in FUNCTIONS.items():
            if value is function:
                return {"function": name}
        if not isinstance(value, FunctionType):
            raise CannotEncode(f"the function {value.__qualname__} is not allowed in a reproduction file")
        body = [one for one in dis.get_instructions(value) if one.opname not in ("RESUME", "COPY_FREE_VARS", "NOP")]
        steps = [one.opname for one in body]
        if steps == ["LOAD_CONST", "RETURN_VALUE"] or steps == ["RETURN_CONST"]:
            return {"function": "always", "returns": self.value(body[0].argval)}
        if steps == ["LOAD_DEREF", "RETURN_VALUE"]:
            held = inspect.getclosurevars(value).nonlocals[body[0].argval]
            return {"function": "always", "returns": self.value(held)}
        if steps == ["LOAD_FAST", "RETURN_VALUE"] and body[0].argval == next(iter(inspect.signature(value).parameters)):
            return {"function": "identity"}
        raise CannotEncode(f"the function {value.__qualname__} is not allowed in a reproduction file")

    def _stand_in(self, value: Any) -> Data:
        held = cast("Mapping[str, Any]", value if isinstance(value, dict) else vars(value))
        fields = {name: self.value(one) for name, one in held.items()}
        return {"stand_in": type(value).__name__, **({"fields": fields} if fields else {})}

    def _structure(self, value: Any) -> Data:
        if isinstance(value, dict):
            content = cast("dict[Any, Any]", value)
            if all(isinstance(key, str) for key in content):
                return {"dict": {k: self.value(v) for k, v in content.items()}}
            return {"pairs": [[self.value(k), self.value(v)] for k, v in content.items()]}
        for kind, tag in ((list, "list"), (tuple, "tuple"), (set, "set")):
            if type(value) is kind:
                return {tag: [self.value(one) for one in cast("Sequence[Any]", value)]}
        if isinstance(value, (SimpleNamespace, Namespace)):
            held: Data = {"namespace": {k: self.value(v) for k, v in vars(value).items()}}
            return held | ({"others_are_off": True} if isinstance(value, Lenient) else {})
        if hasattr(value, "__dict__") and not isinstance(value, OPAQUE):
            return {
                "object": type(value).__name__,
                "attributes": {k: self.value(v) for k, v in cast("dict[str, Any]", vars(value)).items()},
            }
        raise CannotEncode(f"a {type(value).__module__}.{type(value).__qualname__} cannot be written as data")


def _identity(value: Any) -> object:
    """Identity of a value. Two tensors over the same memory with the same shape are one."""
    if isinstance(value, Tensor) and value.layout == torch.strided and value.numel():
        return ("tensor", value.data_ptr(), value.shape, value.stride(), value.dtype)
    return id(value)


def _tensor(value: Tensor) -> Data:
    """Shape, dtype and numbers. Dimensions of stride 0 stay views of one cell."""
    if value.layout != torch.strided or value.device.type == "meta":
        raise CannotEncode("only dense tensors can be written as data")
    squeezed = value.detach()
    for dimension, stride in enumerate(value.stride()):
        if stride == 0 and value.shape[dimension] > 1:
            squeezed = squeezed.narrow(dimension, 0, 1)
    data: Data = {
        "tensor": str(value.dtype).removeprefix("torch."),
        "shape": list(squeezed.shape),
        "values": _values(cast("list[Any]", squeezed.cpu().reshape(-1).tolist())),
    }
    if squeezed.shape != value.shape:
        data["expanded"] = list(value.shape)
    if value.requires_grad:
        data["requires_grad"] = True
    return data


def _array(value: Any) -> Data:
    if str(value.dtype) == "object":
        raise CannotEncode("an array of Python objects cannot be written as data")
    return {
        "array": str(value.dtype),
        "shape": list(value.shape),
        "values": _values(cast("list[Any]", value.reshape(-1).tolist())),
    }


def _values(values: list[Any]) -> list[Any]:
    if any(isinstance(one, complex) for one in values):
        raise CannotEncode("complex numbers cannot be written as data")
    return [finite_or_word(one) if isinstance(one, float) else one for one in values]
