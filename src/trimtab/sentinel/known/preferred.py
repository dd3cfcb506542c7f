"""Losses over pairs of a chosen and a rejected answer, and the numbers that are watched beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.sentinel.known import rated
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.pairs import Meant, Sides, apart, meant, scores, sides
from trimtab.sentinel.known.token import Known, Values


@dataclass(frozen=True)
class Margin:
    """One number per pair: by how much the chosen answer is preferred."""

    told: str
    of: Values
    beta: float = 1.0
    is_plain: bool = True
    """It is beta times a difference of scores, and nothing is taken off."""
    mistake: str = ""


def formulas(
    inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float], *, is_loss: bool
) -> Iterator[Known]:
    """Published formulas over pairs. Metrics come first where the result is not the loss."""
    settings = meant(numbers, named)
    for by_position in (False, True):
        rows = sides(by_position=by_position)
        if not is_loss:
            yield from _watched(inputs, settings, rows)
        yield from _losses(inputs, settings, rows)


def _losses(inputs: frozenset[str], settings: Meant, rows: Sides) -> Iterator[Known]:
    """One number per pair, their mean and their sum."""
    terms = list(_terms(inputs, settings, rows))
    for one in terms:
        yield Known(f"mean over pairs of {one.name}", lambda c, f=one.of: f(c).mean(), one.mistake)
        yield Known(f"sum over pairs of {one.name}", lambda c, f=one.of: f(c).sum(), one.mistake)
        yield one
    yield from rated.losses(inputs, settings, rows)
    if "logp_current" in inputs:
        for beta in settings.betas:  # TRL subtracts it from the likelihood
            yield Known(f"{beta:g} × {LOG_ODDS}", lambda c, b=beta: b * functional.logsigmoid(_log_odds(c, rows)))
        for one in terms:
            yield from () if one.mistake else _with_likelihood(one, settings, rows)


LOG_ODDS = "log-sigmoid of the log-odds ratio (ORPO)"


def _terms(inputs: frozenset[str], settings: Meant, rows: Sides) -> Iterator[Known]:
    """One number per pair."""
    for margin in _margins(inputs, settings, rows):
        for name, of in _of_margin(settings, margin):
            yield Known(f"{name}, {margin.told}", lambda c, f=of, m=margin.of: f(m(c)), margin.mistake)
    for beta in settings.betas if "logp_current" in inputs else ():
        yield Known(
            f"{beta:g} × minus {LOG_ODDS}",
            lambda c, b=beta: -b * functional.logsigmoid(_log_odds(c, rows)),
        )
    yield from rated.of_pairs(inputs, settings, rows)


def _margins(inputs: frozenset[str], settings: Meant, rows: Sides) -> Iterator[Margin]:
    betas = settings.betas if "logp_current" in inputs else list(dict.fromkeys([1.0, *settings.betas]))
    for told, of in scores(inputs):
        for beta in betas:

            def scaled(c: Cells, f: Values = of, b: float = beta) -> Tensor:
                return b * apart(f(c), rows(c))

            yield Margin(f"{beta:g} × difference {told}", scaled, beta)
            for target in settings.targets:
                off = target.size * (beta if target.before_beta else 1.0)
                inside = f"{beta:g} × (difference {told} minus {target.size:g})"
                outside = f"{beta:g} × difference {told} minus {target.size:g}"
                yield Margin(
                    inside if target.before_beta else outside, lambda c, f=scaled, o=off: f(c) - o, beta,
                    is_plain=False, mistake=target.wrong,
                )  # fmt: skip
            if "reward" in inputs and "rewards" not in told:
                yield Margin(
                    f"{beta:g} × difference {told} minus the difference of rewards",
                    lambda c, f=scaled: f(c) - apart(c.reward, rows(c)), beta, is_plain=False,
                )  # fmt: skip


def _of_margin(settings: Meant, margin: Margin) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    yield "minus log-sigmoid", lambda x: -functional.logsigmoid(x)
    for share in settings.shares:

        def smoothed(x: Tensor, s: float = share) -> Tensor:
            return -(1 - s) * functional.logsigmoid(x) - s * functional.logsigmoid(-x)

        yield f"minus log-sigmoid, smoothed by {share:g}", smoothed
        yield f"minus log-sigmoid, robust to {share:g}", lambda x, s=share: _robust(x, s)
    if margin.is_plain:
        yield "hinge", lambda x: torch.relu(1 - x)
        for width in (one for one in settings.hinges if one != 1):
            yield f"hinge of width {width:g}", lambda x, w=width: torch.relu(w - x)
        beta = margin.beta
        yield f"squared distance to 1 / (2 × {beta:g})", lambda x: (x / beta - 1 / (2 * beta)) ** 2
        yield "squared distance to 1 / 2", lambda x: (x - 0.5) ** 2


def _robust(x: Tensor, share: float) -> Tensor:
    """Unbiased where a share of the labels is flipped (cDPO turned around)."""
    plain, flipped = -functional.logsigmoid(x), -functional.logsigmoid(-x)
    return ((1 - share) * plain - share * flipped) / (1 - 2 * share)


def _log_odds(c: Cells, rows: Sides) -> Tensor:
    """Of the mean log-probs: log p - log(1 - p), chosen minus rejected (ORPO)."""
    logp = c.means(c["logp_current"])
    return apart(logp - torch.log1p(-torch.exp(logp)), rows(c))


def _with_likelihood(one: Known, settings: Meant, rows: Sides) -> Iterator[Known]:
    """The loss of the pairs, and minus the log-prob of the chosen answers beside it."""
    for told, of in _likelihoods(rows):
        for weight in settings.likelihoods:
            for first in settings.preferences:

                def both(c: Cells, f: Values = of, w: float = weight, p: float = first) -> Tensor:
                    return p * one.of(c).mean() + w * f(c)

                yield Known(f"{first:g} × mean over pairs of {one.name}, plus {weight:g} × {told}", both)


def _likelihoods(rows: Sides) -> Iterator[tuple[str, Values]]:
    def summed(c: Cells) -> Tensor:
        return -(c["logp_current"] * c.mask).sum(1)[rows(c)[0]]

    yield "the token mean of minus the log-probs that are chosen", lambda c: summed(c).sum() / c.count[rows(c)[0]].sum()
    yield "the mean of minus the summed log-probs that are chosen", lambda c: summed(c).mean()
    yield (
        "the mean of minus the mean log-probs that are chosen",
        lambda c: (summed(c) / c.count[rows(c)[0]]).mean(),
    )


def _watched(inputs: frozenset[str], settings: Meant, rows: Sides) -> Iterator[Known]:
    """Implicit rewards, by how much the chosen one is larger, and how often it is."""
    for told, of in scores(inputs):
        yield Known(f"share of pairs with a difference {told} above 0", lambda c, f=of: _won(c, f, rows).mean())
        yield Known(f"whether a difference {told} is above 0", lambda c, f=of: _won(c, f, rows))
        for beta in dict.fromkeys([*settings.betas, 1.0]):
            values: tuple[tuple[str, Values], ...] = (
                (f"{beta:g} × difference {told}", lambda c, f=of, b=beta: b * apart(f(c), rows(c))),
                (f"{beta:g} × scores {told}, chosen", lambda c, f=of, b=beta: b * f(c)[rows(c)[0]]),
                (f"{beta:g} × scores {told}, rejected", lambda c, f=of, b=beta: b * f(c)[rows(c)[1]]),
            )
            for name, value in values:
                yield Known(f"mean over pairs of {name}", lambda c, f=value: f(c).mean())
                yield Known(name, value)
            yield Known(f"{beta:g} × scores {told}", lambda c, f=of, b=beta: b * f(c))
    if "logp_current" in inputs:
        yield from (Known(told, of) for told, of in _likelihoods(rows))
        odds: tuple[tuple[str, Values], ...] = (
            ("log-odds ratio", lambda c: _log_odds(c, rows)),
            (LOG_ODDS, lambda c: functional.logsigmoid(_log_odds(c, rows))),
        )
        for name, value in odds:
            yield Known(f"mean over pairs of the {name}", lambda c, f=value: f(c).mean())
            yield Known(name, value)
    yield from rated.baselines(inputs, rows)


def _won(c: Cells, score: Values, rows: Sides) -> Tensor:
    return (apart(score(c), rows(c)) > 0).double()
