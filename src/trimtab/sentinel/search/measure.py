"""What a subject is like, measured before the search: does it draw random numbers, and how precise is it?

The only place that finds out about a function by calling it for its own sake.
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trimtab.sentinel.batch.case import CannotRepresent, Case, WrongShape
from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.subject import Out, Subject

ROUNDING = 1e-9
"""Another order of a sum changes it by less."""
UNSEEN = 1e-12
"""A relative change that single precision cannot show."""
COARSE = 0.01
"""A change that single precision cannot miss."""


def measured(subject: Subject, cases: list[Case]) -> Subject:
    """The subject with what its first accepted case shows of it."""
    for case in cases:
        with suppress(CannotRepresent, WrongShape, Exception):
            own = subject.adapt(case)
            known = replace(subject, draws=_draws(subject, own))
            known = replace(known, varies=_varies(known, own))
            known = replace(known, single=not known.varies and _is_single(known, own))
            known = replace(known, normalises=_normalises(known, own))
            if known.guessed and known.normalises and known.couples in ("token", "sequence"):
                known = replace(known, couples="batch")
            return replace(known, coarse=_coarse(known, cases) if known.single else "")
    return subject


def _coarse(subject: Subject, cases: list[Case]) -> str:
    """The log-probs or logits that a body rounds to half precision, on every case that shows it; empty for none."""
    for name in (n for n in (*LOGPS, "logits") if subject.reads is None or n in subject.reads):
        for half in (torch.float16, torch.bfloat16):
            shown = [_rounds(subject, case, name, half) for case in cases]
            told = [one for one in shown if one is not None]
            if len(told) >= ENOUGH and all(told):
                return name
    return ""


ENOUGH = 3
"""Number of cases that must show the same: on one of them, a share of tokens may be the same by chance."""


def _rounds(subject: Subject, case: Case, name: str, half: torch.dtype) -> bool | None:
    """Whether rounding one field changes no bit although a small change of it does; None where that shows nothing."""
    with suppress(CannotRepresent, WrongShape, Exception), torch.no_grad():
        own = subject.adapt(case)
        values = own.tokens[name]
        rounded, moved = values.to(half).double(), values * (1 + COARSE)
        if torch.equal(rounded, values.float().double()):
            return None
        base = call_subject(subject, own)
        if _alike(base, call_subject(subject, own.with_tokens(**{name: moved}))):
            return None
        return _alike(base, call_subject(subject, own.with_tokens(**{name: rounded})))
    return None


def _normalises(subject: Subject, case: Case) -> bool:
    """Whether a loss stays the same when all advantages are doubled and moved, and not when one of them is."""
    if not subject.reading("advantage", "outcome") or not subject.reading("logp_current"):
        return False
    own, outcome = case.tokens["advantage"], case.sequences["outcome"]
    even = case.with_tokens(advantage=2 * own + 0.5).with_sequences(outcome=2 * outcome + 0.5)
    ramp = torch.arange(own.numel(), dtype=torch.float64)
    uneven = case.with_tokens(advantage=own * (1 + ramp)).with_sequences(outcome=outcome * torch.arange(len(outcome)))
    with torch.no_grad():
        base, first, second = (call_subject(subject, one) for one in (case, even, uneven))
    losses = [name for name, result in base.items() if result.kind in ("loss", "term")]
    return bool(losses) and all(
        same(base[n].value, first[n].value, tolerance=STABLE) and not same(base[n].value, second[n].value)
        for n in losses
    )


STABLE = 1e-4
"""A stabiliser beside a spread shows less than this."""


def _draws(subject: Subject, case: Case) -> bool:
    """Whether a call moves one of the generators of random numbers."""
    before = _generators()
    with torch.no_grad():
        _ = call_subject(subject, case)
    return before != _generators()


def _generators() -> tuple[bytes, bytes, object]:
    numpy_state: Any = np.random.get_state(legacy=False)["state"]
    numbers = numpy_state["key"].tobytes() + bytes(str(numpy_state["pos"]), "ascii")
    return torch.get_rng_state().numpy().tobytes(), numbers, random.getstate()


def _varies(subject: Subject, case: Case) -> str:
    with torch.no_grad():
        first, again, other = (call_subject(subject, case, seed=seed) for seed in (0, 0, 1))
    if not _alike(first, again):
        return "its results change from call to call, although inputs and random seed are the same"
    return "" if _close(first, other) else "its results depend on random numbers that it draws"


def _close(first: Out, second: Out) -> bool:
    """Whether two calls gave the same numbers up to rounding: a shuffled sum is no random result."""
    return all(
        same(one.value, second[name].value, tolerance=ROUNDING)
        for name, one in first.items()
        if name in second and one.value.dtype.is_floating_point
    )


def _is_single(subject: Subject, case: Case) -> bool:
    """Whether a change of an input that matters is lost in single precision: no bit of any result changes."""
    with torch.no_grad():
        base = call_subject(subject, case)
        if not any(result.value.dtype == torch.float64 for result in base.values()):
            return False
        for unseen, moved in _changes(case, subject.reads):
            if not _alike(base, call_subject(subject, moved)) and any(
                _alike(base, call_subject(subject, one)) for one in unseen
            ):
                return True
    return False


def _changes(case: Case, reads: frozenset[str] | None) -> Iterator[tuple[tuple[Case, ...], Case]]:
    """Each float field rounded to single precision, and moved by less than that (for a body that rounds differences and
    not inputs); and the same field changed so that nobody can miss it."""
    for name, values in (*case.tokens.items(), *case.sequences.items()):
        if not values.dtype.is_floating_point or (reads is not None and name not in reads):
            continue
        rounded, moved = values.float().double(), values * (1 + COARSE)
        if torch.equal(rounded, values):
            continue
        change = case.with_tokens if name in case.tokens else case.with_sequences
        nudged = values * (1 + UNSEEN)
        yield (change(**{name: rounded}), change(**{name: nudged})), change(**{name: moved})


def _alike(first: Out, second: Out) -> bool:
    """Whether two calls gave the same bits."""
    return all(
        torch.equal(one.value.nan_to_num(), second[name].value.nan_to_num())
        for name, one in first.items()
        if name in second and one.value.dtype.is_floating_point
    )
