"""The body that the runner and the test of a finding share: literal inputs, calls, and what is compared.

The only place that turns calls and checks of a reproduction file into Python text.
"""

import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

from trimtab.sentinel.findings.alone import STAND_INS, Lenient
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.literal import literal, python
from trimtab.sentinel.findings.loaders import IMPORT, LONG, ONLY_IMPORT, TAKEN
from trimtab.sentinel.loading.tree import Spec

Loader = Literal["import", "taken", "long"]
"""How the function is reached, the shortest first."""

TOOLS = {
    "made": '''def made(owner, **attributes):
    """An object without its constructor."""
    built = object.__new__(owner)
    for name, value in attributes.items():
        object.__setattr__(built, name, value)
    return built
''',
    "at": """def at(value, *path):
    for step in path:
        value = value[step] if isinstance(value, (Mapping, list, tuple)) else getattr(value, step)
    return value
""",
    "gradient": '''def gradient(total, value):
    """The gradient with respect to all numbers in a structure, in one row."""
    leaves = [one for one in tensors(value) if one.requires_grad]
    if not total.requires_grad:
        return torch.cat([torch.zeros(one.numel(), dtype=torch.float64) for one in tensors(value)])
    found = iter(torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True))
    parts = [next(found) if one.requires_grad else torch.zeros_like(one) for one in tensors(value)]
    return torch.cat([one.double().reshape(-1) for one in parts])
''',
    "numbers": '''def numbers(value):
    """All numbers in a structure, in one row."""
    return torch.cat([one.double().reshape(-1) for one in tensors(value)])
''',
    "tensors": """def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (bool, int, float)):
        return [torch.tensor(float(value), dtype=torch.float64)]
    if isinstance(value, Mapping):
        return [one for part in value.values() for one in tensors(part)]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in tensors(part)]
    return [one for part in vars(value).values() for one in tensors(part)] if hasattr(value, "__dict__") else []
""",
    "apart": '''def apart(seen, owed, near):
    """Where two rows of numbers differ."""
    if seen.shape != owed.shape:
        return torch.ones_like(seen, dtype=torch.bool)
    return ~torch.isclose(seen, owed, rtol=near, atol=near, equal_nan=True)
''',
}
MODULES = (
    "__future__", "ast", "contextlib", "copy", "importlib", "importlib.util", "json", "math", "operator", "os",
    "subprocess", "sys", "types",
)  # fmt: skip


def script(recipe: Data, loader: Loader, head: str, foot: str) -> str:
    """A whole file: `head` is the text of its docstring, `foot` what it does with `compared()`."""
    body = _compared(recipe)
    loaded = _loader(recipe["boundary"], loader)
    needed = loaded + body + foot
    needed = _stand_ins(needed) + needed
    tools = ""
    for name, text in TOOLS.items():
        if re.search(rf"\b{name}\(", needed + tools):
            tools += f"{text}\n\n"
    rest = f'ROOT = Path(os.environ.get("TARGET_REPO", ".")).resolve()\n\n\n{_stand_ins(needed)}{loaded}{tools}{body}'
    return f'"""{head}"""\n\n{_imports(rest + foot)}\n\n{rest}{foot}'


def quoted(text: str) -> str:
    """Words for a docstring, in lines."""
    lines = [textwrap.fill(part, 110) for part in text.split("\n")]
    return "\n".join(lines).replace("\\", "/").replace('"""', "'''")


def _imports(text: str) -> str:
    used = [name for name in MODULES if re.search(rf"(?<![.\w]){re.escape(name)}\.", text)]
    lines = [f"import {name}" for name in used if f"{name}.util" not in used]
    lines += ["from collections.abc import Mapping"] if "Mapping" in text else []
    lines += ["from pathlib import Path"]
    lines += ["from typing import Any"] if re.search(r"\bAny\b", text) else []
    return "\n".join([*lines, "", "import torch"])


def _stand_ins(text: str) -> str:
    """The source of every stand-in that the text names."""
    used = [one for one in (Lenient, *STAND_INS.values()) if re.search(rf"\b{one.__name__}\b", text)]
    return "".join(f"{inspect.getsource(one)}\n\n" for one in used)


def _loader(boundary: Data, loader: Loader) -> str:
    spec = {name: value for name, value in boundary.items() if name != "given"}
    read = Spec.from_data(spec)
    under = next((root for root in read.roots if root and read.file.startswith(f"{root}/")), "")
    inside = read.file.removeprefix(f"{under}/") if under else read.file
    told = {
        "module": read.module or inside.removesuffix(".py").replace("/", ".").removesuffix(".__init__"),
        "name": read.name,
        "file": read.file,
        "roots": list(read.roots) or [""],
        "spec": spec,
        "given": "{" + ", ".join(f"{n!r}: {python(v)}" for n, v in boundary.get("given", {}).items()) + "}",
    }
    texts = {"import": IMPORT + ONLY_IMPORT, "taken": IMPORT + TAKEN, "long": LONG}
    return texts[loader].format(**told)


def loaders(boundary: Data) -> tuple[Loader, ...]:
    """The loaders that may work for a boundary, the shortest first."""
    spec = Spec.from_data({name: value for name, value in boundary.items() if name != "given"})
    if spec.first or spec.expression or spec.keyword or any("." in name for name in boundary.get("given", {})):
        return ("long",)
    if spec.how == "import" and not boundary.get("given"):
        return ("import", "taken", "long")
    return ("taken", "long")


# --- calls and comparisons -------------------------------------------------------------------------------------------


def _compared(recipe: Data) -> str:
    used = sorted({number for check in recipe["checks"] for number in _calls_of(check)})
    gradients = any(_is_gradient(check) for check in recipe["checks"])
    changes = any(check["op"] == "unchanged" for check in recipe["checks"])
    comparisons = [line for check in recipe["checks"] for line in _comparison(check)]
    lines = ['"""For each check: its name, what was seen, what is owed, and where they differ."""']
    lines += ["function, look = boundary()"]
    for number in used:
        is_kept = any(f"passed_{number}" in line for line in comparisons)
        lines += _call(number, recipe["scenario"]["calls"][number], gradients, is_kept, changes)
    lines += ["", "found = []", *comparisons, "return found"]
    return "def compared():\n" + "\n".join(f"    {line}" if line else "" for line in lines) + "\n\n\n"


def _is_gradient(check: Data) -> bool:
    places = [place for key in ("of", "with") if key in check for place in check[key].get("sum", [check[key]])]
    return any(place["of"] == "gradient" for place in places)


def _calls_of(check: Data) -> list[int]:
    return [number for key in ("of", "with") if key in check for number in _calls_at(check[key])]


def _calls_at(place: Data) -> list[int]:
    return [n for part in place["sum"] for n in _calls_at(part)] if "sum" in place else [int(place["call"])]


def _call(number: int, call: Data, gradients: bool, is_kept: bool, changes: bool) -> list[str]:
    """One call. Its arguments get names only where a check reads them after the call."""
    args: list[Any] = call.get("args", [])
    named: Data = call.get("kwargs", {})
    if not is_kept:
        words = [f"    {python(one, gradients)}," for one in args]
        words += [f"    {name}={python(one, gradients)}," for name, one in named.items()]
        return ["", f"returned_{number} = function(", *words, ")"]
    keys = [*range(len(args)), *named]
    words = [f"    {key!r}: {python(one, gradients)}," for key, one in zip(keys, [*args, *named.values()], strict=True)]
    passed = [f"passed_{number}[{key}]" for key in range(len(args))]
    passed += [f"{key}=passed_{number}[{key!r}]" for key in named]
    return [
        "",
        f"passed_{number} = {{", *words, "}",
        *([f"before_{number} = copy.deepcopy(passed_{number})"] if changes else []),
        f"returned_{number} = function({', '.join(passed)})",
    ]  # fmt: skip


def _comparison(check: Data) -> list[str]:
    op, near = check["op"], float(check.get("tolerance", 1e-6))
    lines = [f"seen = {_read(check['of'])}"]
    if op == "finite":
        return [*lines, 'found.append(("finite", seen, "a finite number", ~seen.isfinite()))']
    if op == "connected":
        zero = "(seen == 0).all().expand(seen.shape)"
        return [*lines, f'found.append(("connected", seen, "a gradient other than 0", {zero}))']
    if op == "at_most":
        bound = f"torch.full_like(seen, {check['value']!r})"
        return [*lines, f"owed = {bound}", 'found.append(("at_most", seen, owed, ~(seen <= owed)))']
    return [*lines, f"owed = {_owed(check)}", f'found.append(("{op}", seen, owed, apart(seen, owed, {near!r})))']


def _owed(check: Data) -> str:
    op = check["op"]
    if op == "constant":
        return "seen.mode().values.expand_as(seen)"
    if op == "zero":
        return "torch.zeros_like(seen)"
    if op == "unchanged":
        return _read(check["of"]).replace("passed_", "before_")
    if "with" in check:
        return _read(check["with"]) + (f" * {check['factor']!r}" if check.get("factor", 1.0) != 1.0 else "")
    value: Any = check["value"]
    values: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]  # pyright: ignore[reportUnknownArgumentType]
    text = f"torch.tensor({literal(values)}, dtype=torch.float64)"
    return text + (".expand_as(seen)" if len(values) == 1 else "")


def _read(place: Data) -> str:
    if "sum" in place:
        parts = zip(place["sum"], place["factors"], strict=True)
        return "sum([" + ", ".join(f"{factor!r} * {_read(part)}" for part, factor in parts) + "])"
    call, index = place["call"], place.get("index")
    chosen = f"[{index}]" if index is not None else ""
    if place["of"] == "gradient":
        source = f"passed_{call}" if place.get("from") == "argument" else f"returned_{call}"
        some = f"[{place['elements']}]" if place.get("elements") is not None else ""
        summed = f"numbers({_at(source, place['path'])}){some}.sum()"
        return f"gradient({summed}, {_at(f'passed_{call}', place['with_respect_to'])}){chosen}"
    source = f"returned_{call}" if place["of"] == "returned" else f"passed_{call}"
    return f"numbers({_at(source, place['path'])}){chosen}.detach()"


def _at(source: str, path: Sequence[Any]) -> str:
    return f"at({', '.join([source, *[repr(step) for step in path]])})" if path else source
