"""Values of a reproduction file as Python expressions: the only place that writes them as text."""

import math
from typing import Any, cast

from trimtab.sentinel.findings.decode import Data


def python(data: Any, gradients: bool = False) -> str:
    """A value of a reproduction file as an expression. A shared value gets a name where it first occurs."""
    if isinstance(data, list):
        return "[" + ", ".join(python(one, gradients) for one in cast("list[Any]", data)) + "]"
    if not isinstance(data, dict):
        return repr(data)
    tagged = cast("Data", data)
    if "shared" in tagged:
        return f"shared_{tagged['shared']}"
    text = _tagged(tagged, gradients)
    return f"(shared_{tagged['id']} := {text})" if "id" in tagged else text


def _tagged(data: Data, gradients: bool) -> str:
    def items(pairs: Any) -> str:
        return "{" + ", ".join(f"{key!r}: {python(one, gradients)}" for key, one in pairs.items()) + "}"

    def listed(values: Any) -> str:
        return ", ".join(python(one, gradients) for one in values)

    if "tensor" in data:
        return _tensor(data, gradients)
    if "array" in data:
        return f"torch.tensor({_nested(data)}).numpy().astype({data['array']!r})"
    if "dict" in data:
        return items(data["dict"])
    if "stand_in" in data:
        fields = data.get("fields")
        return f"{data['stand_in']}({f'**{items(fields)}' if fields else ''})"
    if "namespace" in data:
        kind = "Lenient" if data.get("others_are_off") else "types.SimpleNamespace"
        return f"{kind}(**{items(data['namespace'])})"
    if "object" in data:
        return f"made(look({data['object']!r}), **{items(data['attributes'])})"
    if "function" in data:
        answer = python(data["returns"]) if "returns" in data else "first" if data["function"] == "identity" else "None"
        known = data["function"].startswith("torch.")
        return data["function"] if known else f"(lambda first=None, *_, **__: {answer})"
    simple = {
        "list": lambda: f"[{listed(data['list'])}]",
        "tuple": lambda: f"({listed(data['tuple'])}{',' if data['tuple'] else ''})",
        "set": lambda: f"set([{listed(data['set'])}])",
        "pairs": lambda: "dict([" + ", ".join(f"({listed(pair)})" for pair in data["pairs"]) + "])",
        "stand_in_class": lambda: str(data["stand_in_class"]),
        "float": lambda: f"float({data['float']!r})",
        "enum": lambda: f"look({data['enum']!r}).{data['member']}",
        "dtype": lambda: f"torch.{data['dtype']}",
        "device": lambda: f"torch.device({data['device']!r})",
    }
    return next(simple[tag] for tag in simple if tag in data)()


def _tensor(data: Data, gradients: bool) -> str:
    text = f"torch.tensor({_nested(data)}, dtype=torch.{data['tensor']})"
    text += ".requires_grad_()" if gradients and data.get("requires_grad") else ""
    return text + (f".expand({data['expanded']})" if "expanded" in data else "")


def _nested(data: Data) -> str:
    """Values in the shape of the tensor, as a literal."""
    values: Any = list(data["values"])
    shape: list[int] = data["shape"]
    if not shape:
        return literal(values[0])
    if 0 in shape:
        return f"[]).reshape({shape}" if len(shape) > 1 else "[]"
    for size in reversed(shape[1:]):
        values = [values[i : i + size] for i in range(0, len(values), size)]
    return literal(values)


def literal(value: Any) -> str:
    """Numbers in nested lists, with names for what JSON has no number for."""
    if isinstance(value, list):
        return "[" + ", ".join(literal(one) for one in cast("list[Any]", value)) + "]"
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return {"nan": "math.nan", "inf": "math.inf", "-inf": "-math.inf"}[str(value)]
    return repr(value)
