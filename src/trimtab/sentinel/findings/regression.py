"""The only place that writes a test for the target's own suite: plain pytest and torch, with visible inputs."""

import inspect
import json
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, cast

from trimtab.sentinel.findings.alone import STAND_INS, Lenient
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.loading.tree import Spec

HEAD = '''"""{words}"""

import copy
import importlib
import importlib.util
import math
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

ROOT = Path(os.environ.get("TARGET_REPO", ".")).resolve()
'''

LOOK = '''def boundary():
    """The function under test and a lookup for other names of its file: by import, else cut out of its file."""
    try:
        return imported({module!r}, {name!r})
    except Exception as error:  # any reason why the module does not import: absent dependencies, no accelerator
        return cut_out(error)


def imported(module, name):
    if {only_cut}:
        raise ImportError("this needs stand-ins, or a part of a function")
    before = list(sys.path)
    sys.path[:0] = [str(ROOT / root) for root in {roots!r}]
    try:
        found = importlib.import_module(module)
    finally:
        sys.path[:] = before
    if not Path(found.__file__).resolve().is_relative_to(ROOT):
        raise ImportError(f"{{module}} is imported from elsewhere: {{found.__file__}}")
    function = found
    for part in name.split("."):
        function = getattr(function, part)
    return function, lambda other: getattr(found, other)


def cut_out(error):
    beside = Path(__file__).with_name("run_validation.py")
    if not beside.exists():
        pytest.skip(f"could not be imported ({{error}}), and run_validation.py is not next to this test")
    spec = importlib.util.spec_from_file_location("run_validation", beside)
    runner = importlib.util.module_from_spec(spec)
    sys.modules["run_validation"] = runner
    spec.loader.exec_module(runner)
    given = {given}
    loaded = runner.load(runner.Spec.from_data({spec!r}), runner.Tree.folder(ROOT), given)
    return loaded, loaded.get


'''

TOOLS = '''def made(owner, **attributes):
    """An object without its constructor."""
    built = object.__new__(owner)
    for name, value in attributes.items():
        object.__setattr__(built, name, value)
    return built


def at(value, *path):
    for step in path:
        value = value[step] if isinstance(value, (Mapping, list, tuple)) else getattr(value, step)
    return value


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (bool, int, float)):
        return [torch.tensor(float(value), dtype=torch.float64)]
    if isinstance(value, Mapping):
        return [one for part in value.values() for one in tensors(part)]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in tensors(part)]
    return [one for part in vars(value).values() for one in tensors(part)] if hasattr(value, "__dict__") else []


def numbers(value, *path):
    """All numbers at a path, in one row."""
    return torch.cat([one.double().reshape(-1) for one in tensors(at(value, *path))])


def gradient(total, value):
    """The gradient with respect to all numbers in a structure, in one row."""
    leaves = [one for one in tensors(value) if one.requires_grad]
    if not total.requires_grad:
        return torch.cat([torch.zeros(one.numel(), dtype=torch.float64) for one in tensors(value)])
    found = iter(torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True))
    parts = [next(found) if one.requires_grad else torch.zeros_like(one) for one in tensors(value)]
    return torch.cat([one.double().reshape(-1) for one in parts])


'''


def regression_test(recipe: Data) -> str:
    """The text of test_regression.py. The test fails before the repair and passes after it."""
    name = re.sub(r"\W+", "_", str(recipe["bug_id"])).strip("_").lower()
    told = f"{recipe['expected_invariant']}\n\nAs found: {recipe['scenario']['words']}"
    head = HEAD.format(words="\n".join(textwrap.fill(part, 110) for part in told.split("\n")).replace('"""', "'''"))
    if not recipe["checks"]:
        why = recipe.get("cannot_replay") or "no check on the boundary's own numbers expresses the invariant"
        return f"import pytest\n\n\ndef test_{name}():\n    pytest.skip({json.dumps(why, ensure_ascii=False)})\n"
    used = sorted({number for check in recipe["checks"] for number in _calls_of(check)})
    gradients = any('"gradient"' in json.dumps(check) for check in recipe["checks"])
    changes = any(check["op"] == "unchanged" for check in recipe["checks"])
    lines = ["function, look = boundary()"]
    for number in used:
        lines += _call(number, recipe["scenario"]["calls"][number], gradients, changes)
    for check in recipe["checks"]:
        lines += _assertion(check)
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    law = "LAW = (\n" + "\n".join(f"    {part!r}" for part in _wrapped(str(recipe["expected_invariant"]))) + "\n)\n"
    look = _look(recipe["boundary"])
    return f"{head}{law}\n\n{_stand_ins(look + body)}{look}{TOOLS}def test_{name}():\n{body}\n"


def _stand_ins(text: str) -> str:
    """The source of every stand-in that the text builds."""
    used = [one for one in (Lenient, *STAND_INS.values()) if f"{one.__name__}(" in text]
    return "from typing import Any\n\n\n" + "\n\n".join(inspect.getsource(one) for one in used) + "\n\n" if used else ""


def _wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(text, 100)
    return [f"{line} " for line in lines[:-1]] + lines[-1:]


def _look(boundary: Data) -> str:
    spec = {name: value for name, value in boundary.items() if name != "given"}
    given = boundary.get("given", {})
    read = Spec.from_data(spec)
    under = next((root for root in read.roots if root and read.file.startswith(f"{root}/")), "")
    inside = read.file.removeprefix(f"{under}/") if under else read.file
    return LOOK.format(
        module=read.module or inside.removesuffix(".py").replace("/", "."),
        name=read.name,
        roots=list(read.roots) or [""],
        only_cut=bool(given or read.first or read.expression or read.keyword),
        given="{" + ", ".join(f"{name!r}: {python(value)}" for name, value in given.items()) + "}",
        spec=spec,
    )


def _calls_of(check: Data) -> list[int]:
    return [number for key in ("of", "with") if key in check for number in _calls_at(check[key])]


def _calls_at(place: Data) -> list[int]:
    return [n for part in place["sum"] for n in _calls_at(part)] if "sum" in place else [int(place["call"])]


def _call(number: int, call: Data, gradients: bool, changes: bool) -> list[str]:
    args = [f"    {python(one, gradients)}," for one in call.get("args", [])]
    named = [f"    {name!r}: {python(one, gradients)}," for name, one in call.get("kwargs", {}).items()]
    return [
        "",
        f"args_{number} = [", *args, "]",
        f"kwargs_{number} = {{" + ("" if named else "}"), *([*named, "}"] if named else []),
        f"passed_{number} = {{**dict(enumerate(args_{number})), **kwargs_{number}}}",
        *([] if not changes else [f"before_{number} = copy.deepcopy(passed_{number})"]),
        f"returned_{number} = function(*args_{number}, **kwargs_{number})",
    ]  # fmt: skip


def _assertion(check: Data) -> list[str]:
    seen, op = _read(check["of"]), check["op"]
    lines = ["", f"seen = {seen}"]
    near = check.get("tolerance", 1e-6)
    if op == "finite":
        return [*lines, "assert bool(seen.isfinite().all()), LAW"]
    if op == "at_most":
        return [*lines, f"assert bool((seen <= {check['value']!r}).all()), LAW"]
    if op == "connected":
        return [*lines, "assert bool((seen != 0).any()), LAW"]
    owed = {"constant": "seen[:1].expand_as(seen)", "zero": "torch.zeros_like(seen)"}.get(op)
    if op == "unchanged":
        owed = _read(check["of"]).replace("passed_", "before_")
    if op == "equal" and "with" in check:
        owed = _read(check["with"]) + (f" * {check['factor']!r}" if check.get("factor", 1.0) != 1.0 else "")
    if owed is None:
        owed = f"torch.tensor({_literal(check['value'])}, dtype=torch.float64).reshape(-1).expand_as(seen)"
    near = f"rtol={near}, atol={near}, equal_nan=True"
    compare = f"torch.testing.assert_close(seen, owed, {near}, msg=lambda told: LAW + '\\n' + told)"
    return [*lines, f"owed = {owed}", compare]


def _read(place: Data) -> str:
    if "sum" in place:
        parts = zip(place["sum"], place["factors"], strict=True)
        return "sum([" + ", ".join(f"{factor!r} * {_read(part)}" for part, factor in parts) + "])"
    call, index = place["call"], place.get("index")
    chosen = f"[{index}]" if index is not None else ""
    if place["of"] == "gradient":
        source = f"passed_{call}" if place.get("from") == "argument" else f"returned_{call}"
        some = f"[{place['elements']}]" if place.get("elements") is not None else ""
        summed = f"numbers({_path(source, place['path'])}){some}.sum()"
        return f"gradient({summed}, at({_path(f'passed_{call}', place['with_respect_to'])})){chosen}"
    source = f"returned_{call}" if place["of"] == "returned" else f"passed_{call}"
    return f"numbers({_path(source, place['path'])}){chosen}.detach()"


def _path(source: str, path: Sequence[Any]) -> str:
    return ", ".join([source, *[repr(step) for step in path]])


# --- values as Python ------------------------------------------------------------------------------------------------


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
        return f"{data['stand_in']}()"
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
        return _literal(values[0])
    if 0 in shape:
        return f"[]).reshape({shape}" if len(shape) > 1 else "[]"
    for size in reversed(shape[1:]):
        values = [values[i : i + size] for i in range(0, len(values), size)]
    return _literal(values)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(one) for one in cast("list[Any]", value)) + "]"
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return {"nan": "math.nan", "inf": "math.inf", "-inf": "-math.inf"}[str(value)]
    return repr(value)
