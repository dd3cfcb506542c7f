"""Calls of a subject: the only place that runs foreign code.

A search asks for the same batches again and again, one law after the other. What came out is remembered.
"""

import random
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case, WrongShape
from trimtab.sentinel.binding.subject import DATA, SIGNAL, Kind, Out, Result, Subject

TRAINED = ("logp_current", "value", "entropy", "logits")
"""The inputs that may get a gradient from a loss. All others are fixed."""


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


class Memory:
    """The latest calls of one search, and what came out of them."""

    def __init__(self, size: int = 512) -> None:
        self._size = size
        self._seen: OrderedDict[object, tuple[Subject, Seen]] = OrderedDict()

    def run(self, subject: Subject, case: Case, options: Mapping[str, Any]) -> Seen:
        plain = tuple((name, _plain(value)) for name, value in options.items())
        how = (id(subject.call), subject.single, subject.draws, subject.reads, subject.promises is None)
        key = (how, plain, case.content)
        if key not in self._seen:
            self._seen[key] = subject, _run(subject, case, options)  # the subject keeps the id of its call taken
            if len(self._seen) > self._size:
                _ = self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        return self._seen[key][1]


def _plain(value: Any) -> object:
    """A value that is equal only for equal options: itself if it is simple, else its identity."""
    if value is None or isinstance(value, str | int | float):
        return type(value), value
    if isinstance(value, tuple | list):
        entries: Sequence[Any] = value
        return type(entries), tuple(_plain(one) for one in entries)
    return id(value)


def run(subject: Subject, case: Case, options: Mapping[str, Any] | None = None) -> Seen:
    """Call the subject on fresh leaves that require gradient; or remember what the same call gave."""
    chosen = subject.options if options is None else options
    is_watched = case.touched is not None or case.written is not None
    if subject.memory is None or is_watched or not torch.is_grad_enabled():
        return _run(subject, case, chosen)
    return subject.memory.run(subject, case, chosen)


def _run(subject: Subject, case: Case, options: Mapping[str, Any]) -> Seen:
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
