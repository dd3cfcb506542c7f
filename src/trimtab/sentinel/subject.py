"""A subject: one function, called on a case, with its results named. The only place that runs foreign code.

`call(case, options)` takes what it wants from the case's views and returns `Out`. Everything an invariant may rely on
is in the facts: which inputs it reads, and the level and kind of each result. Everything applies unless waived with a
reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.sentinel.case import Case

Level = Literal["token", "sequence", "scalar"]
Kind = Literal[
    "loss", "term", "keep", "importance", "advantage", "return", "kl", "weight", "reward", "metric", "observation"
]


@dataclass(frozen=True)
class Result:
    """One named result: token results are over trainable tokens in case order, sequence results one a sequence."""

    value: Tensor
    level: Level
    kind: Kind
    scope: str = "token"
    """For a decision: the level it is taken at."""
    adds_up: bool = True
    """For a scalar: whether the parts' values sum to the whole's; a metric that is a mean or an extremum does not."""


Out = Mapping[str, Result]
Call = Callable[[Case, Mapping[str, Any]], Out]


@dataclass(frozen=True)
class Subject:
    """A function under test.

    combine: how the scalar results of parts make the whole's: "sum", or a callable on (values, parts).
    couples: the widest level whose members may move one another: "token", "sequence", "group" or "batch".
    definition: the same results, worked out the long way.
    """

    name: str
    call: Call
    inputs: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    combine: Literal["sum"] | Callable[[list[Tensor], list[Case]], Tensor] = "sum"
    couples: Literal["token", "sequence", "group", "batch"] = "sequence"
    definition: Call | None = None
    promises: tuple[str, ...] | None = None
    """The invariants it is held to; None for all."""
    waived: Mapping[str, str] = field(default_factory=dict[str, str])
    exact: bool = False
    """Parts must give the whole's numbers bit for bit in float64."""
    stops_gradient: bool = False
    """Part of its value is detached on purpose, so its gradient is not the derivative of its value."""
    reads: frozenset[str] | None = None
    """Case fields it reads; the search leaves all others at rest. None for all."""
    adapt: Callable[[Case], Case] = lambda case: case
    """Makes any case one that this function may be handed."""

    @property
    def label(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({shown})" if shown else self.name


@dataclass(frozen=True)
class Seen:
    """What one call gave: values, and the gradient of every loss with respect to every leaf."""

    values: Mapping[str, Tensor]
    results: Out
    gradients: Mapping[str, Mapping[str, Tensor]]


def called(subject: Subject, case: Case) -> Out:
    """The subject's results; none at all is a case it did not take."""
    out = subject.call(case, subject.options)
    if not out:
        raise case.cannot(f"{subject.name} returned no result")
    return out


def of_kind(out: Out, case: Case, *kinds: Kind) -> list[tuple[str, Result]]:
    """The results an invariant is about; without any, it has nothing to look at."""
    found = [(name, result) for name, result in out.items() if result.kind in kinds]
    if not found:
        raise case.cannot(f"no result is a {' or a '.join(kinds)}")
    return found


def run(subject: Subject, case: Case) -> Seen:
    """Call the subject on fresh leaves that require gradient."""
    leaves = {n: v.detach().clone().requires_grad_() for n, v in case.tokens.items() if v.dtype.is_floating_point}
    fresh = case.with_tokens(**leaves)
    out = called(subject, fresh)
    gradients: dict[str, dict[str, Tensor]] = {}
    for name, result in out.items():
        if result.value.requires_grad:
            found = torch.autograd.grad(
                result.value.sum(), list(leaves.values()), retain_graph=True, materialize_grads=True
            )
            gradients[name] = dict(zip(leaves, found, strict=True))
    return Seen({n: r.value.detach().clone() for n, r in out.items()}, out, gradients)


SINGLE = 1e-5
"""Relative tolerance of a result that a subject computes in float32, whatever it was handed."""


def same(first: Tensor, second: Tensor, *, tolerance: float = 1e-9) -> bool:
    """Equal within a relative tolerance, NaN equal to NaN; exactly equal when the tolerance is 0."""
    if first.shape != second.shape:
        return False
    single = any(one.dtype.is_floating_point and one.dtype != torch.float64 for one in (first, second))
    allowed = max(tolerance, SINGLE) if single and tolerance else tolerance
    return bool(torch.allclose(first.double(), second.double(), rtol=allowed, atol=allowed, equal_nan=True))


TRAINED = ("logp_current", "value", "entropy")
"""The inputs a loss may send gradient into; everything else is held fixed."""


def same_gradient(first: Tensor, second: Tensor, result: Result, *, tolerance: float = 1e-9) -> bool:
    """As `same`, in the precision of the result the gradient is of: leaves are float64 whatever a subject casts to."""
    single = result.value.dtype != torch.float64
    return same(first, second, tolerance=max(tolerance, SINGLE) if single and tolerance else tolerance)
