"""Inputs that several dialects share: the only place that knows how their callers arrange a batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case


def cells(name: str, **view: Any) -> Callable[[Case], Tensor]:
    """[rows, width] of the tokens after the prompt."""
    return lambda case: case.padded(name, **{"with_prompt": False, **view})


def in_pairs(name: str) -> Callable[[Case], Tensor]:
    """One number per sequence, for a function that takes groups of two, one after the other."""

    def taken(case: Case) -> Tensor:
        groups = case.sequences["group"].tolist()
        pairs = [groups[i : i + 2] for i in range(0, len(groups), 2)]
        alone = any(len(pair) < 2 or pair[0] != pair[1] for pair in pairs)
        if not groups or alone or len({pair[0] for pair in pairs}) < len(pairs):
            raise case.cannot("it takes groups of two sequences that follow each other")
        return case.sequence(name)

    return taken


def response_width(case: Case) -> int:
    return case.padded("attention", with_prompt=False).shape[1]


def prompted(case: Case) -> Case:
    """The case, if every sequence has a prompt, so that every trained token is predicted from a position."""
    if any(not kinds or kinds[0] != "p" for kinds in case.kinds):
        raise case.cannot("a sequence without a prompt has no position that predicts its first token")
    return case


def whole_tokens(case: Case) -> int:
    """Trained tokens of the whole optimiser step."""
    return case.whole.segments.num_tokens


def detached(case: Case, name: str) -> list[list[float]]:
    """One list of numbers per sequence, over the tokens after its prompt."""
    return [one.detach().tolist() for one in case.list(name, with_prompt=False)]


def as_array(values: Tensor) -> Any:
    return values.detach().double().numpy()


def written(fn: Callable[..., Any], *inputs: Tensor) -> bool:
    """Whether a call changes one of its inputs."""
    before = [one.clone() for one in inputs]
    fn(*inputs)
    return any(not torch.equal(a, b) for a, b in zip(before, inputs, strict=True))
