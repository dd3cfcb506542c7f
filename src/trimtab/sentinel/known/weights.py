"""Importance weights: ratios of trainer to sampler that are dropped outside an interval, or divided by their mean."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.known import bounds, kept, token
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values


def _over_tokens(c: Cells, weight: Tensor) -> Tensor:
    return weight / weight[c.mask > 0].mean()


def _over_sequences(c: Cells, weight: Tensor) -> Tensor:
    return weight / weight[c.mask.sum(1) > 0, 0].mean()


def _within_sequences(c: Cells, weight: Tensor) -> Tensor:
    return weight / c.rows(c.means(weight))


def _shaped(
    top: str, bottom: str, numbers: Sequence[float], named: Mapping[str, float]
) -> Iterator[tuple[str, bool, Values]]:
    """Ratios of each level as they are, clipped and dropped; whether they are those of a sequence."""
    for told, log_ratio in kept.log_ratios(top, bottom):
        of_rows = told != "ratio"
        yield told, of_rows, lambda c, f=log_ratio: f(c).exp()
        for band in bounds.likely(numbers, named):
            shown = bounds.shown(band)
            yield f"{told} clipped to {shown}", of_rows, lambda c, f=log_ratio, b=band: f(c).exp().clamp(*b)
            yield (
                f"{told} where it is in {shown}", of_rows,
                lambda c, f=log_ratio, b=band: f(c).exp() * ((f(c).exp() >= b[0]) & (f(c).exp() <= b[1])),
            )  # fmt: skip
        for cap in (n for n in numbers if n > 1):
            yield (
                f"{told} with log-ratios up to {cap:g}", of_rows,
                lambda c, f=log_ratio, k=cap: f(c).clamp(-k, k).exp(),
            )  # fmt: skip


def importance(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """Weights of tokens and sequences, also divided by their mean."""
    for bottom, top in token.ends(inputs - {"logp_ref"}):
        yield from of_pair(top, bottom, numbers, named)


def of_pair(top: str, bottom: str, numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """Weights from one policy to another."""
    told = f"{top} / {bottom}"
    for name, of_rows, of in _shaped(top, bottom, numbers, named):
        yield Known(f"{told}, {name}", of)
        yield Known(f"{told}, {name}, over its mean", lambda c, of=of: _over_tokens(c, of(c)))
        if of_rows:
            yield Known(f"{told}, {name}, over its mean of sequences", lambda c, of=of: _over_sequences(c, of(c)))
        else:
            yield Known(f"{told}, {name}, over its mean in a sequence", lambda c, of=of: _within_sequences(c, of(c)))
    for keep in kept.decisions(top, bottom, numbers, named, by_band=True):
        yield Known(f"{told} of tokens, {keep.name}", lambda c, k=keep: k.of(c) * c.gap(top, bottom).exp())
        for cap in (n for n in numbers if n > 1):
            yield Known(
                f"{told} of tokens up to {cap:g}, {keep.name}",
                lambda c, k=keep, m=cap: k.of(c) * c.gap(top, bottom).exp().clamp(max=m),
            )


def corrected(inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """A loss per token that is given, times a weight or a decision."""
    for bottom, top in token.ends(inputs - {"logp_ref"}):
        for one in of_pair(top, bottom, numbers, named):
            yield Known(f"token_loss times {one.name}", lambda c, o=one: c["token_loss"] * o.of(c))
        for keep in kept.decisions(top, bottom, numbers, named):
            yield Known(f"token_loss, {keep.name}", lambda c, k=keep: torch.where(k.of(c) > 0, c["token_loss"], 0.0))
