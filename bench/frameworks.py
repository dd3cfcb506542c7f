"""Functions of other frameworks, as they ship: the only place that loads one to time it.

Released wheels are fetched once, as `trimtab check areal` does. A checkout is named by an environment variable:
TRIMTAB_SLIME=/path/to/slime, TRIMTAB_PRIME_RL=/path/to/prime-rl (a folder, or a git directory).
"""

import builtins
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import torch

from trimtab.sentinel.examination.wheels import wheel
from trimtab.sentinel.loading import Spec, Tree
from trimtab.sentinel.loading.load import load

Made = TypeVar("Made")
Timed = Callable[[], Any]
Maker = Callable[[], Timed]
"""Loads an implementation, builds its inputs and returns the call that is timed."""
COMPILED = " (compiled)"
"""The end of the name of an implementation that runs through torch.compile."""


def released(framework: str, name: str, file: str, **given: Any) -> Any:
    """A function or class of a released framework; `given` replaces names that it reads."""
    return load(Spec(name, file=file), Tree.folder(wheel(framework).folder), given).function


def has_checkout(framework: str) -> bool:
    return bool(_place(framework))


def checkout(framework: str, name: str, file: str) -> Any:
    """The same of a checkout."""
    place = _place(framework)
    tree = Tree.git(place) if not (Path(place) / file).is_file() else Tree.folder(place)
    return load(Spec(name, file=file), tree).function


def _place(framework: str) -> str:
    return os.environ.get(f"TRIMTAB_{framework.upper().replace('-', '_')}", "")


def compiled(function: Any, **how: Any) -> Any:
    """The function through torch.compile. The loader leaves its decorator out, because checks run without a compiler.

    Dynamo does not trace a function whose globals are not a plain dict, and then runs it uncompiled without a word:
    so the globals are copied, and `acted` looks whether a graph was made.
    """
    code = function.__code__.replace()  # an own cache of compiled graphs
    names: dict[str, Any] = {"__builtins__": builtins}
    for name in code.co_names:
        with contextlib.suppress(KeyError):
            names[name] = function.__globals__[name]
    return torch.compile(FunctionType(code, names, code.co_name, function.__defaults__), **how)


def acted(call: Timed) -> Timed:
    """Call once, and refuse to time something as compiled that was not."""
    from torch._dynamo.utils import counters  # takes seconds, so only where something is compiled

    made: Any = counters["stats"]
    before = made["unique_graphs"]
    _ = call()
    if made["unique_graphs"] == before:
        raise RuntimeError("torch.compile did not act, so this would be timed uncompiled")
    return call


def load_all(makers: Mapping[str, Callable[[], Made]]) -> dict[str, Made]:
    """Everyone who can be loaded. A peer that cannot (no network, no compiler) is left out aloud; we never are."""
    found: dict[str, Made] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except Exception as error:
            if name.startswith("Trimtab"):
                raise
            print(f"{name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found
