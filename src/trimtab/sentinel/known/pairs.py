"""What the two answers of a pair score, and what the settings of a preference loss mean."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.known import bounds
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Values

Sides = Callable[[Cells], tuple[list[int], list[int]]]
"""The rows of the chosen answers, and those of the rejected ones."""
LIKELIHOOD = ("sft", "nll", "alpha", "ce", "lm", "likelihood")
"""Words of settings that weigh the likelihood of the chosen answer beside its preference."""


def sides(*, by_position: bool) -> Sides:
    """`by_position`: the pairs are rows two by two, chosen first; else the best and the worst answer of each group."""

    def of(c: Cells) -> tuple[list[int], list[int]]:
        if by_position:
            return list(range(0, len(c.mask), 2)), list(range(1, len(c.mask), 2))
        return [first for first, _ in c.case.pairs], [second for _, second in c.case.pairs]

    return of


def apart(values: Tensor, rows: tuple[list[int], list[int]]) -> Tensor:
    """By how much the chosen answer of each pair has more of something."""
    found = values[rows[0]] - values[rows[1]]
    if not bool((found != 0).any()):
        raise ValueError("nothing is preferred, so this says nothing about a loss")
    return found


def scores(inputs: frozenset[str]) -> Iterator[tuple[str, Values]]:
    """One number per answer: its log-prob, against the reference where there is one, or the score of a model."""
    if {"logp_current", "logp_ref"} <= inputs:
        yield "of sums", lambda c: _summed(c, c.gap("logp_current", "logp_ref"))
        yield "of means", lambda c: c.means(c.gap("logp_current", "logp_ref"))
    if "logp_current" in inputs:
        free = " without the reference" if "logp_ref" in inputs else ""
        yield f"of sums{free}", lambda c: _summed(c, c["logp_current"])
        yield f"of means{free}", lambda c: c.means(c["logp_current"])
    for name in sorted(inputs & {"value", "token_reward"}) if "logp_current" not in inputs else ():
        yield f"of mean {name}s", lambda c, n=name: c.means(c[n])
        yield f"of last {name}s", lambda c, n=name: (c[n] * c.last).sum(1)
        yield f"of summed {name}s", lambda c, n=name: _summed(c, c[n])
    if not inputs & {"logp_current", "value", "token_reward"}:
        yield "of rewards", lambda c: c.reward


def _summed(c: Cells, values: Tensor) -> Tensor:
    return (values * c.mask).sum(1)


@dataclass(frozen=True)
class Target:
    """A margin that the chosen answer should win by. `wrong` says why it does not belong on this side of beta."""

    size: float
    before_beta: bool
    wrong: str = ""


@dataclass(frozen=True)
class Meant:
    """What the settings of a preference loss can mean."""

    betas: list[float]
    targets: list[Target]
    shares: list[float]
    """Of labels that are flipped."""
    hinges: list[float]
    likelihoods: list[float]
    """Weights of the likelihood of the chosen answer."""
    preferences: list[float]
    """Weights of the preference beside it."""
    desirable: list[float]
    undesirable: list[float]


def meant(numbers: Sequence[float], named: Mapping[str, float]) -> Meant:
    """By their names where these say it, else every number."""
    targets = {name: v for name, v in named.items() if set(words_of(name)) & {"gamma", "margin", "target"}}
    weights = {name for name in named if set(words_of(name)) & {*LIKELIHOOD, "weight", "desirable", "undesirable"}}
    free = {name: v for name, v in named.items() if name not in targets and name not in weights}
    betas = bounds.called(free, "beta", "coef", "scale", "penalty", "tau", "temperature")
    return Meant(
        betas=betas or [n for n in numbers if n > 0] or [1.0],
        targets=list(_targets(numbers, targets, betas=betas)),
        shares=[s for s in bounds.called(named, "smoothing", "smooth", "label", "eps") if 0 < s < 0.5],
        hinges=list(dict.fromkeys([1.0, *bounds.called(named, "delta", "margin", "hinge")])),
        likelihoods=bounds.called(named, *LIKELIHOOD) or [1.0],
        preferences=[v for n, v in named.items() if {"preference", "weight"} <= set(words_of(n))] or [1.0],
        desirable=bounds.called(named, "desirable", "chosen", "positive") or [1.0],
        undesirable=bounds.called(named, "undesirable", "rejected", "negative") or [1.0],
    )


def _targets(numbers: Sequence[float], named: Mapping[str, float], *, betas: Sequence[float]) -> Iterator[Target]:
    """SimPO takes gamma off after beta; `gamma_beta_ratio` is gamma over beta, and goes before it."""
    for name, size in named.items():
        if "gamma" not in words_of(name):
            yield from (Target(size, before) for before in (False, True))
            continue
        is_ratio = bool(set(words_of(name)) & {"ratio", "over"})
        inside = f"{name} is multiplied by beta, and SimPO takes it off after beta"
        outside = f"{name} is a multiple of beta, and beta is not multiplied in"
        yield Target(size, before_beta=is_ratio)
        yield Target(size, before_beta=not is_ratio, wrong=outside if is_ratio else inside)
    if not named:
        own = [n for n in dict.fromkeys(numbers) if n > 0 and n not in betas]
        yield from (Target(size, before) for size in own for before in (False, True))
