"""Policy losses with further terms inside: an entropy bonus, the loss of a value head, a KL that is given."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from trimtab.sentinel.known import bounds, credit, losses, surrogate, token
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values

Part = tuple[str, Values]
NONE: Part = ("", lambda c: torch.zeros_like(c.mask))


def with_more(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """The loss of each token with one or more terms beside that of the policy."""
    bonuses = list(_bonuses(inputs, numbers, named))
    errors = list(_errors(inputs, numbers, named))
    charges = list(_charges(inputs, numbers, named))
    if not (bonuses or errors or charges):
        return
    for base in _bases(inputs, numbers, named):
        for parts in product((*bonuses, NONE), (*errors, NONE), (*charges, NONE)):
            told = "".join(f", {name}" for name, _ in parts if name)

            def whole(c: Cells, base: Known = base, parts: tuple[Part, ...] = parts) -> Tensor:
                return base.of(c) + sum((of(c) for name, of in parts if name), start=torch.zeros_like(c.mask))

            if told:
                yield Known(f"{base.name}{told}", whole, slopes=base.slopes)


def _bases(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """Losses of the policy alone, with the intervals that the settings are called for."""
    if not inputs & {"advantage", "outcome"}:
        yield from losses.of_rewards(inputs, numbers, named)
        return
    near = [bounds.shown(band) for band in bounds.likely(numbers, named)[: losses.FEW]]
    alone = inputs - {"logp_rollout"} if "logp_old" in inputs else inputs
    for one in surrogate.policy_losses(alone, numbers, named):
        if not one.mistake and ("[" not in one.name or any(band in one.name for band in near)):
            yield one


def _coefs(numbers: Sequence[float], named: Mapping[str, float], *words: str) -> list[float]:
    """The coefficients that are called so; any number below 1 where none is."""
    found = [n for n in bounds.called(named, *words) if n]
    return (found or [n for n in numbers if 0 < n < 1])[:3]


def _bonuses(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Part]:
    if "entropy" in inputs:
        for coef in _coefs(numbers, named, "ent", "entropy"):
            yield f"minus {coef:g} × entropy", lambda c, k=coef: -k * c["entropy"]


def _charges(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Part]:
    if "kl" in inputs:
        for coef in _coefs(numbers, named, "kl", "beta"):
            yield f"plus {coef:g} × kl", lambda c, k=coef: k * c["kl"]


def _errors(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Part]:
    coefs = _coefs(numbers, named, "vf", "value", "critic", "v")
    if {"value", "returns"} <= inputs:
        for one in (one for one in token.squared_errors(inputs, numbers) if not one.mistake):
            yield from ((f"plus {k:g} × {one.name}", lambda c, k=k, o=one: k * o.of(c)) for k in coefs)
    elif "value" in inputs and inputs & {"reward", "token_reward"}:
        gammas = bounds.called(named, "gamma", "discount") or [1.0]
        targets: list[Part] = [("reward", lambda c: c.rows(c.reward))]
        targets += [(f"return with discount {g:g}", lambda c, g=g: credit.to_go(c, g)) for g in gammas]
        for (told, target), half, coef in product(targets, (1.0, 0.5), coefs):
            yield (
                f"plus {half * coef:g} × squared error of {told}",
                lambda c, t=target, k=half * coef: k * (c["value"] - t(c)) ** 2,
            )
