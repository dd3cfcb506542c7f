"""Preference losses that rate each answer on its own, against a baseline or a target, and not against its partner."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.pairs import Meant, Sides
from trimtab.sentinel.known.token import Known, Values


def losses(inputs: frozenset[str], settings: Meant, rows: Sides) -> Iterator[Known]:
    """KTO: each answer against the distance of the batch to the reference, which cannot be negative."""
    if not {"logp_current", "logp_ref"} <= inputs:
        return
    for side, taken in _labelled(inputs, rows):
        for told, baseline, mistake in _distances(rows):
            for beta in settings.betas:
                for good in settings.desirable:
                    for bad in settings.undesirable:
                        one = _rated(taken, baseline, beta, good, bad)
                        name = f"KTO with beta {beta:g}, weights {good:g} and {bad:g}, {side}, against {told}"
                        yield Known(f"mean of {name}", lambda c, f=one: f(c).mean(), mistake)
                        yield Known(f"sum of {name}", lambda c, f=one: f(c).sum(), mistake)
                        yield Known(name, one, mistake)


def baselines(inputs: frozenset[str], rows: Sides) -> Iterator[Known]:
    """The estimate of the distance to the reference that KTO reports."""
    if {"logp_current", "logp_ref"} <= inputs:
        yield from (Known(told, of) for told, of, _ in _distances(rows) if told != "0")


def _labelled(inputs: frozenset[str], rows: Sides) -> Iterator[tuple[str, Sides]]:
    yield "in pairs", rows
    if "outcome" in inputs:

        def by_outcome(c: Cells) -> tuple[list[int], list[int]]:
            good = (c.outcome > 0).tolist()
            return [i for i, is_good in enumerate(good) if is_good], [
                i for i, is_good in enumerate(good) if not is_good
            ]

        yield "by outcome", by_outcome


def _ratios(c: Cells) -> Tensor:
    return (c.gap("logp_current", "logp_ref") * c.mask).sum(1)


def _distances(rows: Sides) -> Iterator[tuple[str, Values, str]]:
    def paired(c: Cells) -> Tensor:
        chosen, rejected = rows(c)
        return _ratios(c)[[*chosen, *rejected]].mean()

    free = "the estimate of a KL becomes negative, and the published loss holds it at 0"
    every: tuple[tuple[str, Values], ...] = (("all answers", lambda c: _ratios(c).mean()), ("the pairs", paired))
    for told, of in every:
        yield f"the mean log-ratio of {told}, at least 0", lambda c, f=of: f(c).clamp(min=0), ""
        yield f"the mean log-ratio of {told}", of, free
    yield "0", lambda c: torch.zeros((), dtype=torch.float64), ""


def _rated(rows: Sides, baseline: Values, beta: float, good: float, bad: float) -> Values:
    def of(c: Cells) -> Tensor:
        chosen, rejected = rows(c)
        ratios, middle = _ratios(c), baseline(c)
        wins = good * torch.sigmoid(-beta * (ratios[chosen] - middle))
        return torch.cat([wins, bad * torch.sigmoid(-beta * (middle - ratios[rejected]))])

    return of


Two = Callable[[Tensor, Tensor], Tensor]
"""A loss from the implicit rewards of the chosen and of the rejected answer."""
OF_TWO: dict[str, Two] = {
    "APO-zero": lambda a, b: torch.sigmoid(-a) + torch.sigmoid(b),
    "APO-down": lambda a, b: torch.sigmoid(a) + torch.sigmoid(-(a - b)),
    "NCA": lambda a, b: -functional.logsigmoid(a) - 0.5 * functional.logsigmoid(-a) - 0.5 * functional.logsigmoid(-b),
}


def of_pairs(inputs: frozenset[str], settings: Meant, rows: Sides) -> Iterator[Known]:
    """Losses with one number per pair that look at both answers apart."""
    if not {"logp_current", "logp_ref"} <= inputs:
        return
    for beta in settings.betas:

        def both(c: Cells, b: float = beta) -> tuple[Tensor, Tensor]:
            chosen, rejected = rows(c)
            return b * _ratios(c)[chosen], b * _ratios(c)[rejected]

        for name, of in OF_TWO.items():
            yield Known(f"{name} with beta {beta:g}", lambda c, f=of, two=both: f(*two(c)))
        yield Known(f"SPPO with beta {beta:g}", lambda c, two=both, b=beta: _to_one_half(*two(c), b))
        for share in (0.0, *settings.shares):
            told = f"DPO with beta {beta:g}, weighted by the policy (WPO)" + (
                f", smoothed by {share:g}" if share else ""
            )
            yield Known(told, lambda c, two=both, s=share: _weighed(c, rows, two(c), s))


def _to_one_half(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Hard labels of SPPO: log-ratios go to 1 / (2 beta) and minus that."""
    return ((chosen - 0.5) / beta) ** 2 + ((rejected + 0.5) / beta) ** 2


def _weighed(c: Cells, rows: Sides, two: tuple[Tensor, Tensor], share: float) -> Tensor:
    likely = c.means(c["logp_current"])
    chosen, rejected = rows(c)
    weight = (likely[chosen] + likely[rejected]).exp().clamp(max=1)
    margin = two[0] - two[1]
    return -weight * ((1 - share) * functional.logsigmoid(margin) + share * functional.logsigmoid(-margin))
