"""Violations that only pass on a NaN or an infinity that another law reports. The only place that looks for its source.

A sum over parts is NaN where one part is NaN. That says nothing about the sum: `degenerate_bounded` tells of the part.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.subject import Out, Subject
from trimtab.sentinel.invariants.bounded import EMPTY, FAR
from trimtab.sentinel.invariants.declare import Violation

REPORTS_NONFINITE = "degenerate_bounded"
OWN = (REPORTS_NONFINITE, "nonfinite_isolation")
"""Invariants about NaN and infinity themselves."""


def passes_on(violation: Violation) -> bool:
    """Whether its numbers hold NaN or infinity."""
    return _holds_nonfinite((violation.observed, violation.expected))


def _holds_nonfinite(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_nonfinite(one) for one in cast("Sequence[object]", value))
    return isinstance(value, float) and not math.isfinite(value)


def condition_of_sources(subject: Subject, look: Callable[[Subject], object]) -> str:
    """What all calls that returned NaN or infinity have in common, among what a run rarely meets; empty for nothing."""
    sources: list[Case] = []

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        out = subject.call(case, options)
        if not all(bool(torch.isfinite(one.value.detach().double()).all()) for one in out.values()):
            sources.append(case)
        return out

    look(replace(subject, call=call))
    if sources and all(not bool(case.trainable.any()) for case in sources):
        return EMPTY
    if sources and all(_are_far(case) for case in sources):
        return f"two policies are more than {FAR:g} apart in the log-prob of a token"
    return ""


def _are_far(case: Case) -> bool:
    held = [case.tokens[n].detach()[case.trainable].double() for n in LOGPS if n in case.tokens]
    if not held or not held[0].numel():
        return False
    policies = torch.stack(held)
    return float((policies.max(0).values - policies.min(0).values).max()) > FAR
