"""The definition as a subject of its own: a law that the declared definition breaks is a choice, and no bug."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Call, Out, Subject

STEP = 1e-6
"""Half the step of the central difference."""
LEAVES = ("logp_current", "value", "entropy", "token_loss")
COMPARISONS = ("equals_definition", "twins_agree", "metric_truth", "declared_conventions")
"""Invariants that compare with a declaration. None of them is a law that a definition could break."""


def as_subject(subject: Subject) -> Subject:
    """The same binding with the definition in place of the function. Its gradient is that of its slopes."""
    assert subject.definition is not None
    call = with_slopes(subject.definition)
    return replace(subject, call=call, definition=None, twin=None, boundary=None, single=False)


def with_slopes(definition: Call) -> Call:
    """A definition in plain numbers, as a function that autograd can follow."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        fixed = case.with_tokens(**{name: values.detach() for name, values in case.tokens.items()})
        found = dict(definition(fixed, options))
        for leaf in LEAVES:
            values = case.tokens.get(leaf)
            if values is None or not values.requires_grad:
                continue
            # 0 in value, and the leaf in gradient.
            moves = values - values.detach()
            slopes = _slopes(definition, fixed, leaf, options)
            for name, slope in slopes.items():
                if name in found and bool((slope != 0).any()):
                    result = found[name]
                    found[name] = replace(result, value=result.value + (slope @ moves).reshape(result.value.shape))
        return found

    return call


def _slopes(definition: Call, case: Case, leaf: str, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """For each result, its change per unit of every token of a leaf: [entries, tokens]."""
    columns: dict[str, list[Tensor]] = {}
    for place in range(case.trainable.numel()):
        sides: list[Out] = []
        for step in (-STEP, STEP):
            moved = case.tokens[leaf].clone()
            moved[place] += step
            sides.append(definition(case.with_tokens(**{leaf: moved}), options))
        for name, result in sides[0].items():
            if result.value.dtype.is_floating_point:
                slope = (sides[1][name].value.detach() - result.value.detach()) / (2 * STEP)
                columns.setdefault(name, []).append(slope.reshape(-1))
    return {name: torch.stack(found, 1) for name, found in columns.items()}
