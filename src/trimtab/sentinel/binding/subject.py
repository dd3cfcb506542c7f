"""A subject: one function, called on a case, with its results named. The only place that runs foreign code.

`call(case, options)` takes its inputs from the views of the case and returns `Out`. Invariants rely only on the facts:
the inputs that it reads, and the level and kind of each result. Every invariant applies unless it is waived with a
reason.
"""

import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case, WrongShape
from trimtab.sentinel.binding.strict import check_word, check_words, choices_of

if TYPE_CHECKING:
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
    draws: bool = False
    """It draws random numbers, so each call gets the same ones. Measured before the search."""
    varies: str = ""
    """Why its results change from call to call, if they do. Measured before the search."""
    block: int = 1
    """How many neighbours are one group, for a function that takes groups by position."""
    invented: frozenset[str] = frozenset()
    """Options whose values nobody gave: for a binding that nobody wrote."""
    by_use: frozenset[str] = frozenset()
    """Fields that no name told, for a binding that nobody wrote."""
    said: str = ""
    """What the function says of itself, in its docstring."""
    guessed: str = ""
    """For a binding that nobody wrote: what was chosen."""
    alternatives: "tuple[Subject, ...]" = ()
    """Other plausible bindings of the same function."""
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


@dataclass(frozen=True)
class Seen:
    """The outcome of one call: values, and the gradient of every result with respect to every leaf."""

    case: Case
    values: Mapping[str, Tensor]
    results: Out
    gradients: Mapping[str, Mapping[str, Tensor]]
    blocked: frozenset[str] = frozenset()
    """Results whose backward pass raises."""


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Random numbers drawn inside are the same each time; the caller's own are as if nothing had been drawn."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        _ = torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def call_subject(subject: Subject, case: Case, options: Mapping[str, Any] | None = None, *, seed: int = 0) -> Out:
    """Call the subject and return its results. If there is none, it did not accept the case."""
    with seeded(seed) if subject.draws else nullcontext():
        out = subject.call(case, subject.options if options is None else options)
    if not out:
        raise case.cannot(f"{subject.name} returned no result")
    for name, result in out.items():
        size = {"token": case.segments.num_tokens, "sequence": case.num_sequences}.get(result.level)
        mixed = size is not None and result.kind in SIGNAL and result.value.ndim != 1
        if size is not None and (result.value.shape[:1] != (size,) or mixed):
            raise WrongShape(list(result.value.shape), [size])
        if result.level == "scalar" and result.value.numel() != 1:
            raise WrongShape(list(result.value.shape), [])
        if not isinstance(result.value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]  foreign code
            raise TypeError(f"{name} is a {type(result.value).__name__}, not a tensor")
    # Numbers from a body in single precision have that precision, also where it returns them as float64.
    return {n: replace(r, value=as_single(r.value)) for n, r in out.items()} if subject.single else out


def as_single(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.float64 else values


def of_kind(out: Out, case: Case, *kinds: Kind) -> list[tuple[str, Result]]:
    """The results that an invariant applies to; if there is none, it cannot be exercised."""
    found = [(name, result) for name, result in out.items() if result.kind in kinds]
    if not found:
        raise case.cannot(f"no result is {' or '.join(f'an {k}' if k[0] in 'aeiou' else f'a {k}' for k in kinds)}")
    return found


def run(subject: Subject, case: Case, options: Mapping[str, Any] | None = None) -> Seen:
    """Call the subject on fresh leaves that require gradient."""
    leaves = {
        n: v.detach().clone().requires_grad_()
        for n, v in sorted(case.tokens.items(), key=lambda item: item[0] not in TRAINED)
        if v.dtype.is_floating_point and (subject.reads is None or n in subject.reads)
    }
    # Fields are passed as copies: a call that writes to them must not damage the case, and autograd would forbid
    # writes to a leaf.
    handed = {n: v.clone() for n, v in leaves.items()}
    fresh = case.with_tokens(**handed).with_sequences(**{n: v.clone() for n, v in case.sequences.items()})
    out = call_subject(subject, fresh, options)
    gradients: dict[str, dict[str, Tensor]] = {}
    blocked: set[str] = set()
    for name, result in out.items():
        if result.value.requires_grad and result.kind not in DATA:
            try:
                found = torch.autograd.grad(
                    result.value.sum(), list(leaves.values()), retain_graph=True, materialize_grads=True
                )
            except RuntimeError:  # it would raise in training too, so it is no silent bug; its values are still checked
                blocked.add(name)
                continue
            asked = subject.promises is not None or result.kind == "importance"
            followed = tuple(leaves) if asked else (*TRAINED, "token_loss", "kl")
            gradients[name] = {n: g for n, g in zip(leaves, found, strict=True) if n in followed}
    return Seen(case, {n: r.value.detach().clone() for n, r in out.items()}, out, gradients, frozenset(blocked))


class _Noting(dict[str, Tensor]):
    """Fields that note which names are read, for calls that read a case without its views."""

    def __init__(self, fields: Mapping[str, Tensor], touched: set[str]) -> None:
        super().__init__(fields)
        self.touched = touched

    def __getitem__(self, name: str) -> Tensor:
        self.touched.add(name)
        return super().__getitem__(name)


def resolve_inputs(subject: Subject, case: Case) -> Subject:
    """Find the inputs of the subject by a call, if its binding does not name them."""
    if subject.inputs:
        return subject
    touched: set[str] = set()
    noting = {n: _Noting({k: v.clone() for k, v in getattr(case, n).items()}, touched) for n in ("tokens", "sequences")}
    call_subject(subject, replace(case, touched=touched, **noting))
    flags = {"trainable", "attention", "response"}
    return replace(subject, inputs=frozenset(touched), reads=subject.reads or frozenset(touched - flags) or None)


SINGLE = 1e-5
"""Relative tolerance of a result that a subject computes in float32 for any input dtype."""


def same(first: Tensor, second: Tensor, *, tolerance: float = 1e-9) -> bool:
    """Equal within a relative tolerance, NaN equal to NaN; exactly equal when the tolerance is 0."""
    if first.shape != second.shape:
        return False
    single = any(one.dtype.is_floating_point and one.dtype != torch.float64 for one in (first, second))
    allowed = max(tolerance, SINGLE) if single and tolerance else tolerance
    return bool(torch.allclose(first.double(), second.double(), rtol=allowed, atol=allowed, equal_nan=True))


TRAINED = ("logp_current", "value", "entropy", "logits")
"""The inputs that may get a gradient from a loss. All others are fixed."""


def same_gradient(first: Tensor, second: Tensor, result: Result, *, tolerance: float = 1e-9) -> bool:
    """Like `same`, in the precision of the result: leaves stay float64 even if a subject casts to float32."""
    single = result.value.dtype != torch.float64
    return same(first, second, tolerance=max(tolerance, SINGLE) if single and tolerance else tolerance)
