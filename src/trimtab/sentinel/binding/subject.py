"""A subject: one function that can be called on a case, with its results named.

`call(case, options)` takes its inputs from the views of the case and returns `Out`. Invariants rely only on the facts:
the inputs that it reads, and the level and kind of each result. Every invariant applies unless it is waived with a
reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case, WrongShape
from trimtab.sentinel.binding.strict import check_word, check_words, choices_of

if TYPE_CHECKING:
    from trimtab.sentinel.binding.calling import Memory
    from trimtab.sentinel.loading import Boundary

Level = Literal["token", "sequence", "scalar", "cell"]
"""`cell`: one entry per cell of the padded view of the case, for functions that build masks."""
Kind = Literal[
    "loss", "term", "keep", "importance", "advantage", "return", "kl", "logp", "entropy", "value", "weight", "reward",
    "mask", "metric", "observation", "statistic", "carried", "count",
]  # fmt: skip
Layout = Literal["flat", "padded", "list", "packed"]
Reduction = Literal["sum", "mean", "max", "min"]
Values = Callable[[Case], Tensor]
LEVELS, KINDS, REDUCTIONS, LAYOUTS = (choices_of(one) for one in (Level, Kind, Reduction, Layout))

SIGNAL: tuple[Kind, ...] = ("loss", "term", "keep", "importance", "advantage", "return", "kl", "weight", "reward")
"""Kinds that reach the update. The others are only read by people."""
DATA: tuple[Kind, ...] = (
    "advantage", "return", "reward", "keep", "weight", "mask", "metric", "statistic", "observation", "count",
)  # fmt: skip
"""Kinds that a trainer uses as numbers. Nobody follows a gradient through them."""


@dataclass(frozen=True)
class Result:
    """One named result. Token results are over trainable tokens in case order; sequence results are one per sequence.

    Result.token(case, advantages, "advantage", layout="padded")     returned in the layout of the view
    Result.sequence(rewards, "reward")                               one per sequence
    Result.scalar(loss, "loss")
    Result.scalar(clipfrac, "metric", range=(0, 1), agreed=0.0)      0 where all policies agree
    Result.scalar(kl_max, "metric", of="kl", reduction="max")        must be the maximum of a field of the case
    """

    value: Tensor
    level: Level
    kind: Kind
    scope: str = "token"
    """For a decision: its level."""
    adds_up: bool = True
    """For a scalar: whether the values of parts sum to that of the whole. A mean or an extremum does not."""
    of: str | Values | None = None
    """The source of the result: a field of the case, or a function of it. For `carried`, the field it must equal."""
    reduction: Reduction | None = None
    """For a metric: how parts combine into the whole, and how it is computed from `of`."""
    population: Literal["token", "sequence"] = "token"
    """The entries that a mean averages."""
    range: tuple[float, float] | None = None
    """Its allowed range. A metric must be able to come near both ends; an importance must stay inside."""
    agreed: float | None = None
    """Its value where all policies agree; by default 1 for an importance and 0 for a KL."""
    pair: tuple[str, str] | None = None
    """For an importance: its two policies, numerator first."""
    outside: Tensor | None = None
    """Its values at cells without a trainable token."""

    def __post_init__(self) -> None:
        check_word("level of a result", self.level, LEVELS)
        check_word("kind of a result", self.kind, KINDS)
        if self.reduction is not None:
            check_word("reduction of a result", self.reduction, REDUCTIONS)

    @staticmethod
    def token(case: Case, values: Any, kind: Kind, *, layout: Layout = "padded", **facts: Any) -> "Result":
        """A result in the layout of a view, mapped back to trainable tokens. `facts` may include view arguments.

        A list may also come joined, as one tensor; a packed row may come as [tokens] or as [1, tokens].
        """
        values = _as_tensors(values)
        view = {k: facts.pop(k) for k in ("with_prompt", "side", "shift", "drop_first") if k in facts}
        outside = None
        if layout == "padded":
            outside = case.outside_padded(values, **view) if values.shape[:2] == _shape(case, view) else None
            inside = case.from_padded(values, **view)
        elif layout == "list":
            values = case.cut(values, **view) if isinstance(values, Tensor) else values
            inside = case.from_list(values, **view)
            full = torch.cat(list(values)) if values else torch.zeros(0)
            outside = full[~case.flags(with_prompt=view.get("with_prompt", True))]
        elif layout == "packed":
            values = values[0] if values.shape[:2] == (1, case.trainable.numel()) else values
            inside, outside = case.from_packed(values), values[~case.trainable]
        else:
            inside = values
        return Result(inside, "token", kind, outside=outside, **facts)

    @staticmethod
    def cell(case: Case, values: Any, kind: Kind = "mask", **facts: Any) -> "Result":
        """One entry per cell of the padded view: a mask that must equal the trainable tokens of the case."""
        values = _as_tensors(values)
        view = {k: facts.pop(k) for k in ("with_prompt", "side", "shift", "drop_first") if k in facts}
        shape = _shape(case, view)
        if tuple(values.shape) != tuple(shape):
            raise WrongShape(list(values.shape), list(shape))
        facts.setdefault("of", lambda other: other.padded("trainable", dtype=torch.float64, **view))
        return Result(values, "cell", kind, **facts)

    @staticmethod
    def sequence(values: Any, kind: Kind, **facts: Any) -> "Result":
        return Result(_tensor(values), "sequence", kind, **facts)

    @staticmethod
    def scalar(value: Any, kind: Kind, **facts: Any) -> "Result":
        if kind in ("metric", "statistic"):
            facts.setdefault("adds_up", facts.get("reduction") == "sum")
        return Result(_tensor(value), "scalar", kind, **facts)


def _as_tensors(values: Any) -> Any:
    """Arrays of numpy as tensors."""
    if isinstance(values, np.ndarray):
        return torch.as_tensor(values)
    if isinstance(values, list | tuple) and any(isinstance(one, np.ndarray) for one in values):
        return [torch.as_tensor(one) for one in values]
    return values


def _shape(case: Case, view: Mapping[str, Any]) -> torch.Size:
    return case.padded("attention", dtype=torch.bool, **view).shape


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if isinstance(values, list | tuple) and any(isinstance(v, Tensor) for v in values):
        return torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values])
    return torch.as_tensor(values, dtype=torch.float64)


Out = Mapping[str, Result]
Call = Callable[[Case, Mapping[str, Any]], Out]
Combine = Literal["sum", "mean", "mean over ranks"] | Callable[[list[Tensor], list[Case]], Tensor]


@dataclass(frozen=True)
class Subject:
    """A function under test.

    inputs       fields it reads, by their names in views; if left out, they are found by a call
    options      its configuration; `variants` are other values, each of which must change something; `indifferent`
                 are other values, each of which must change nothing
    impossible   option values that must be refused with an error
    combine      how scalar results of parts combine into that of the whole: what the trainer does with micro-batches
    couples      the widest level whose members may affect one another: "token", "sequence", "group" or "batch"; left
                 out, what the role says, or "sequence"
    definition   the same results, computed with plain loops; `twin` is another implementation of the same formula
    conventions  declared choices (denominator, ddof, …) that must equal the detected ones
    penalties    options that are coefficients of a penalty: name to the field it is about (logp_ref, entropy)
    temperature  the option that logits are divided by
    ranks        how processes share a case, for a function that communicates: "data" or "context"
    """

    name: str
    call: Call
    inputs: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    combine: Combine | None = None
    couples: Literal["token", "sequence", "group", "batch"] | None = None
    definition: Call | None = None
    promises: tuple[str, ...] | None = None
    """The invariants to check; None for all."""
    waived: Mapping[str, str] = field(default_factory=dict[str, str])
    exact: bool = False
    """Parts must give the numbers of the whole bit for bit in float64."""
    stops_gradient: bool = False
    """Part of its value is detached on purpose, so its gradient is not the derivative of its value."""
    reads: frozenset[str] | None = None
    """Case fields that it reads; the search does not vary the others. None for all."""
    adapt: Callable[[Case], Case] = lambda case: case
    """Turns any case into one that this function accepts."""
    role: str | None = None
    variants: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    impossible: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    indifferent: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    twin: Call | None = None
    conventions: Mapping[str, str] = field(default_factory=dict[str, str])
    penalties: Mapping[str, str] = field(default_factory=dict[str, str])
    temperature: str | None = None
    ranks: Literal["data", "context"] | None = None
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Texts that its body compares a setting with."""
    half: bool = False
    """Its callers hand it log-probs in half precision."""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that the function itself gives a value, for those who ask which numbers it knows."""
    single: bool = False
    """Its body computes in single precision, whatever its inputs are. Measured before the search."""
    coarse: str = ""
    """The input that its body rounds to half precision, if it does. Measured before the search."""
    normalises: bool = False
    """Its loss centres and scales the advantages itself, so it couples samples. Measured before the search."""
    draws: bool = False
    """It draws random numbers, so each call gets the same ones. Measured before the search."""
    varies: str = ""
    """Why its results change from call to call, if they do. Measured before the search."""
    block: int = 1
    """How many neighbours are one group, for a function that takes groups by position."""
    invented: frozenset[str] = frozenset()
    """Options whose values nobody gave: for a binding that nobody wrote."""
    mentioned: frozenset[str] = frozenset()
    """Options that its source speaks of, at values that nobody gave: for a binding that nobody wrote."""
    by_use: frozenset[str] = frozenset()
    """Fields that no name told, for a binding that nobody wrote."""
    said: str = ""
    """What the function says of itself, in its docstring."""
    guessed: str = ""
    """For a binding that nobody wrote: what was chosen."""
    alternatives: "tuple[Subject, ...]" = ()
    """Other plausible bindings of the same function."""
    memory: "Memory | None" = field(default=None, repr=False, compare=False)
    """The calls of the search that it is in."""
    boundary: "Boundary | None" = None
    """The loaded function of a target, for executed lines, stubs and reproduction files."""

    def __post_init__(self) -> None:
        if self.couples is None:  # what its role says
            object.__setattr__(self, "couples", coupled_by(self.role))
        check_words(vars(self))

    @property
    def fields(self) -> frozenset[str] | None:
        """The fields that it reads or that its binding names; all others are at rest. None for all."""
        return None if self.reads is None else self.reads | self.inputs

    @property
    def label(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({shown})" if shown else self.name

    def reading(self, *names: str) -> bool:
        """Whether it reads any of these fields."""
        return any(name in self.inputs for name in names)


def coupled_by(role: str | None) -> str:
    """The widest level whose members may affect one another in functions of a role."""
    from trimtab.sentinel.binding.bind import ROLES

    return ROLES[role].couples if role in ROLES else "sequence"
