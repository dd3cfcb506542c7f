"""One entry of the corpus: a right function, its wrong twin, and how a maintainer binds them."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from trimtab.sentinel.binding.subject import Call, Subject

DIALECTS = (
    "verl", "trl", "openrlhf", "slime", "areal", "nemo_rl", "prime_rl", "skyrl", "open_instruct", "tutorials", "numpy",
)  # fmt: skip
CORPORA = ("corpus", "held", "second", "third", "fourth", "fifth", "sixth")
CONFIGS = ("config", "cfg", "args", "loss_config", "algo_config")
"""Argument names of config objects."""


@dataclass(frozen=True)
class Entry:
    """One function of a dialect, in two versions of the same name and signature.

    name         its name in `right.py` and `wrong.py`: a function, a class, or `Class.method`
    bug          one sentence: what the wrong twin does, and where this kind of bug was shipped
    bound        binds either version by names and role only
    definition   the same results in plain loops
    neutral      the name does not tell what the function is
    unusual      some argument names are known to no lexicon
    several      it returns several values, or a loss with metrics
    single       it computes in float32 inside
    random       it draws random numbers: "inside" (the result does not depend on them) or "result"
    pads_finite  it multiplies by the mask, which is right as long as padding is finite
    differs      how the twins are told apart if not by value or slope: whether (right, wrong) differ
    corpus       the folder of its dialect: "corpus", or "held" to "sixth" for functions written by others, blind
    """

    name: str
    dialect: str
    role: str | None
    bug: str
    bound: Callable[[Any], Subject]
    definition: Call
    neutral: bool = False
    unusual: bool = False
    several: bool = False
    single: bool = False
    random: str = ""
    pads_finite: bool = False
    differs: Callable[[Any, Any], bool] | None = None
    corpus: str = "corpus"

    @cached_property
    def right(self) -> Any:
        return self.version("right")

    @cached_property
    def wrong(self) -> Any:
        return self.version("wrong")

    def version(self, which: str) -> Any:
        """The right or the wrong function, class or method."""
        found: Any = importlib.import_module(self.module(which))
        for part in self.name.split("."):
            found = getattr(found, part)
        return found

    def module(self, which: str) -> str:
        return f"tests.right.{self.corpus}.{self.dialect}.{which}"

    @property
    def is_module(self) -> bool:
        return inspect.isclass(self.right) and issubclass(self.right, nn.Module)

    @property
    def is_method(self) -> bool:
        """A method that needs `self`, but not the forward pass of a module."""
        return "." in self.name

    @property
    def takes_config(self) -> bool:
        return any(name in CONFIGS for name in self._parameters)

    @property
    def has_options(self) -> bool:
        """Some keyword has a default other than None."""
        return any(p.default not in (p.empty, None) for p in self._parameters.values())

    @property
    def _parameters(self) -> Any:
        owner = importlib.import_module(self.module("right"))
        named = self.name.split(".")[0]
        found = dict(inspect.signature(self.right).parameters)
        if "." in self.name:
            found |= inspect.signature(getattr(owner, named)).parameters
        return found


def entries(corpus: str = "corpus") -> list[Entry]:
    """All entries of a corpus, dialect after dialect."""
    found: list[Entry] = []
    for dialect in DIALECTS:
        found += importlib.import_module(f"tests.right.{corpus}.{dialect}.entries").ENTRIES
    return [replace(entry, corpus=corpus) for entry in found]
