"""Rewards compared inside their group in less usual ways, and with statistics of those answers that vote."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.known import bounds, charged, credit
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values

OfGroup = Callable[[Tensor], Tensor]
"""The rewards of a group to one number for each of them."""


def _each(one: OfGroup) -> Values:
    def of(c: Cells) -> Tensor:
        out = torch.zeros_like(c.reward)
        for rows in c.groups:
            out[rows] = one(c.reward[rows])
        return out

    return of


def _others(rewards: Tensor) -> list[Tensor]:
    """For each reward, those of the others."""
    return [torch.cat([rewards[:i], rewards[i + 1 :]]) for i in range(len(rewards))]


def _spread_of_others(ddof: int) -> Values:
    """The spread of the others; 1 where there is none, so that nothing is divided."""

    def of(rewards: Tensor) -> Tensor:
        found = [
            one.std(correction=ddof) if len(one) > ddof else torch.zeros((), dtype=one.dtype)
            for one in _others(rewards)
        ]
        spread = torch.stack(found)
        return torch.where(spread > 0, spread, 1.0)

    return _each(of)


def _best_only(rewards: Tensor) -> Tensor:
    """The best answer gets its lead over the second, the others nothing."""
    first, second = rewards.topk(2).values if len(rewards) > 1 else (rewards[0], rewards[0])
    return torch.where(rewards == first, first - second, 0.0)


def _by_trained_length(c: Cells) -> Tensor:
    out = torch.zeros_like(c.reward)
    for rows in c.groups:
        out[rows] = (c.reward[rows] * c.mask.sum(1)[rows]).sum() / c.mask.sum(1)[rows].sum().clamp(min=1)
    return out


def _over_mean(c: Cells, *, positive: bool) -> Tensor:
    mean = credit.CENTRES["group mean"](c)
    found = (c.reward - mean) / mean
    return torch.where(mean > 0, found, 0.0) if positive else found


def advantages(numbers: Sequence[float], named: Mapping[str, float], *, by_token: bool) -> Iterator[Known]:
    """Advantages of answers, one per row; `by_token`: also whitened over the trained tokens."""
    mean, alone = credit.CENTRES["group mean"], credit.CENTRES["mean of the others"]
    yield Known("reward - mean by trained length", lambda c: c.reward - _by_trained_length(c))
    yield Known("reward - group median", lambda c: c.reward - _each(lambda r: r.median().expand_as(r))(c))
    for ddof in (0, 1):
        spread = credit.SPREADS["group spread, n - 1" if ddof else "group spread"]
        told = "spread" if not ddof else "spread, n - 1"
        yield Known(f"lead of the best, over the group {told}", lambda c, s=spread: _each(_best_only)(c) / s(c))
        for name, centre in (("mean of the others", alone), ("group mean", mean)):
            yield Known(
                f"reward - {name}, over the {told} of the others",
                lambda c, d=ddof, m=centre: (c.reward - m(c)) / _spread_of_others(d)(c),
            )
    yield Known("lead of the best", _each(_best_only))
    yield Known("reward - group mean, over the group mean", lambda c: _over_mean(c, positive=False))
    yield Known("reward - group mean, over the positive group mean", lambda c: _over_mean(c, positive=True))
    yield Known("reward between the extremes of its group", _each(lambda r: (r - r.min()) / (r.max() - r.min())))
    yield Known(
        "reward - group mean, times all answers over those that were paid",
        lambda c: (c.reward - mean(c)) * len(c.reward) / (c.reward != 0).sum(),
    )
    for shift in bounds.called(named, "shift", "bias", "offset"):
        yield Known(f"reward - group mean - {shift:g}", lambda c, s=shift: c.reward - mean(c) - s)
    yield from _bounded(numbers, named)
    yield from _whitened(by_token=by_token)


def _bounded(numbers: Sequence[float], named: Mapping[str, float]) -> Iterator[Known]:
    """Advantages or rewards that are clipped, where a setting is called so."""
    usual = [one for one in credit.normalised() if not one.mistake and one.name.startswith("reward")]
    for most in bounds.called(named, "clip", "bound", "max") or [n for n in numbers if n > 1]:
        for one in usual:
            yield Known(f"{one.name}, clipped at {most:g}", lambda c, o=one, k=most: o.of(c).clamp(-k, k))
            if one.name != "reward":
                told = one.name.replace("reward", f"reward clipped at {most:g}", 1)
                yield Known(told, lambda c, o=one, k=most: o.of(c.with_reward(c.reward.clamp(-k, k))))


def _whitened(*, by_token: bool) -> Iterator[Known]:
    """Distances to a centre of the group, then over the batch to mean 0 and spread 1 (REINFORCE++ with baseline)."""
    for centre in ("group mean", "mean of the others", "no centre"):

        def off(c: Cells, centre: str = centre) -> Tensor:
            return c.reward - credit.CENTRES[centre](c)

        name = f"reward - {centre}" if centre != "no centre" else "reward"
        for ddof in (0, 1):
            shown = ", n - 1" if ddof else ""
            yield Known(
                f"{name}, whitened over answers{shown}",
                lambda c, f=off, d=ddof: (f(c) - f(c).mean()) / f(c).std(correction=d),
            )
            yield Known(
                f"{name}, over its spread in the batch{shown}", lambda c, f=off, d=ddof: f(c) / f(c).std(correction=d)
            )
        if by_token:
            yield from charged.whitened(f"{name} at every token", lambda c, f=off: c.rows(f(c)))
            yield Known(f"{name}, over the length", lambda c, f=off: c.rows(f(c) / c.count))


def _voting(c: Cells, rows: Tensor) -> Tensor:
    return rows[c.voters[rows]]


def of_voters() -> Iterator[Known]:
    """Rewards against those answers of their group that vote; nothing where there are none to compare with."""

    def made(c: Cells, one: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        out = torch.zeros_like(c.reward)
        for rows in c.groups:
            for row in rows:
                own = _voting(c, rows)
                out[row] = one(c.reward[row], c.reward[own], c.reward[own[own != row]])
        return out

    def against(spread: Callable[[Tensor], Tensor], *, alone: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def of(own: Tensor, voters: Tensor, others: Tensor) -> Tensor:
            company = others if alone else voters
            return (own - company.mean()) / spread(company) if len(company) else torch.zeros_like(own)

        return of

    spreads: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("", torch.ones_like),
        (", over their spread", lambda r: _or_one(r, 0)),
        (", over their spread, n - 1", lambda r: _or_one(r, 1)),
    )
    for centre, alone in (("group mean", False), ("mean of the others", True)):
        for told, spread in spreads:
            one = against(lambda r, s=spread: s(r).mean(), alone=alone)
            name = f"reward - {centre}, of answers that vote{told}"
            yield Known(name, lambda c, o=one: made(c, o))
            yield Known(f"{name}, 0 for the others", lambda c, o=one: made(c, o) * c.voters)


def _or_one(rewards: Tensor, ddof: int) -> Tensor:
    """The spread; 1 where there is none."""
    if len(rewards) <= ddof:
        return torch.ones((), dtype=rewards.dtype)
    spread = rewards.std(correction=ddof)
    return torch.where(spread > 0, spread, 1.0)
