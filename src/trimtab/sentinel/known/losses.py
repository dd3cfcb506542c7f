"""Policy losses per token beside the clipped one: gated, soft, geometric, dropped outside an interval, regressed."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.sentinel.known import bounds, credit, kept, surrogate, weights
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values

Settings = Mapping[str, float]


def policy_losses(inputs: frozenset[str], numbers: Sequence[float], named: Settings) -> Iterator[Known]:
    """The loss of each token, to minimise, for every policy that the current one is compared with."""
    if "logp_current" not in inputs:
        return
    if not inputs & {"advantage", "outcome"}:
        yield from of_rewards(inputs, numbers, named)
        return
    own = "advantage" if "advantage" in inputs else "outcome"
    for behind in (n for n in ("logp_old", "logp_rollout") if n in inputs):
        yield from _soft(own, behind, numbers, named)
        yield from _geometric(own, behind, numbers, named)
        yield from _gated(own, behind, numbers, named)
        yield from _tapered(own, behind, numbers)
        yield from _regressed(own, behind, numbers)
    if {"logp_old", "logp_rollout"} <= inputs:
        yield from _corrected(own, numbers, named)


def _levels(behind: str) -> tuple[tuple[str, Values], ...]:
    return tuple((told, lambda c, f=of: f(c).exp()) for told, of in kept.log_ratios("logp_current", behind))


def _soft(own: str, behind: str, numbers: Sequence[float], named: Settings) -> Iterator[Known]:
    """SAPO: a sigmoid of the ratio, with a temperature for each sign of the advantage."""
    heats = bounds.called(named, "tau", "temperature", "temp") or [n for n in numbers if n > 0]
    for told, ratio in _levels(behind)[:2]:
        for up, down in ((a, b) for a in heats for b in heats):

            def soft(c: Cells, r: Values = ratio, up: float = up, down: float = down) -> Tensor:
                a = surrogate.credit_of(c, own)
                tau = torch.where(a > 0, up, down)
                return -a * torch.sigmoid(tau * (r(c) - 1)) * 4 / tau

            yield Known(f"sigmoid at {up:g} up and {down:g} down, {told} to {behind}", soft)


def _geometric(own: str, behind: str, numbers: Sequence[float], named: Settings) -> Iterator[Known]:
    """GMPO: log-ratios are clipped token by token, on the side where it binds, before their mean."""
    offsets = [(-low, high) for low, high in bounds.sides(numbers, named)]
    logs = [(torch.tensor(b[0]).log().item(), torch.tensor(b[1]).log().item()) for b in bounds.likely(numbers, named)]
    for low, high in dict.fromkeys((*offsets, *(band for band in logs if abs(band[0]) + abs(band[1]) < bounds.FREE))):
        for by_row in (False, True):

            def whole(c: Cells, low: float = low, high: float = high, by_row: bool = by_row) -> Tensor:
                a = surrogate.credit_of(c, own)
                a = c.rows(c.means(a)) if by_row else a
                gap = c.gap("logp_current", behind)
                held = torch.where(a > 0, gap.clamp(max=high), gap.clamp(min=low))
                return -a * c.rows(c.means(held)).exp()

            told = f"geometric mean of ratios to {behind} clipped to e^[{low:.3g}, {high:.3g}]"
            yield Known(f"{told}, mean advantage" if by_row else told, whole)


def _shapes(own: str, behind: str, numbers: Sequence[float]) -> Iterator[Known]:
    """What a decision can be laid on."""

    def reinforce(c: Cells) -> Tensor:
        return -surrogate.credit_of(c, own) * c["logp_current"]

    for told, ratio in _levels(behind):
        yield Known(f"unclipped, {told} to {behind}", lambda c, r=ratio: -surrogate.credit_of(c, own) * r(c))
        yield Known(f"REINFORCE weighted by its {told} to {behind}", lambda c, r=ratio: r(c) * reinforce(c))
    yield Known("REINFORCE", reinforce)
    for cap in (n for n in numbers if n > 1):
        yield Known(
            f"REINFORCE weighted by its ratio to {behind} up to {cap:g}",
            lambda c, k=cap: c.gap("logp_current", behind).exp().clamp(max=k) * reinforce(c),
        )


def _gated(own: str, behind: str, numbers: Sequence[float], named: Settings) -> Iterator[Known]:
    """Losses of the tokens that a decision keeps: IcePop, DPPO, IPO, CISPO with the gate of PPO."""
    decisions = [
        *kept.by_sign("logp_current", behind, own, numbers, named),
        *kept.decisions("logp_current", behind, numbers, named, by_band=True),
    ]
    for most in bounds.thresholds(numbers, named):
        apart: Values = lambda c: (c["logp_current"].exp() - c[behind].exp()).abs()  # noqa: E731
        decisions.append(Known(f"probabilities {most:g} apart", lambda c, f=apart, t=most: (f(c) <= t).double()))
    taus = [n for n in bounds.called(named, "tau", "kl", "coef", "beta") if n]
    for keep in decisions:
        for shape in _shapes(own, behind, numbers):

            def left(c: Cells, k: Known = keep, s: Known = shape) -> Tensor:
                return torch.where(k.of(c) > 0, s.of(c), 0.0)

            yield Known(f"{shape.name}, {keep.name}", left)
            for tau in taus if shape.name.startswith("unclipped, ratio to") else ():
                yield Known(
                    f"{shape.name}, {keep.name}, plus {tau:g} × the squared log-ratio",
                    lambda c, f=left, t=tau: f(c) + t * c.gap("logp_current", behind) ** 2,
                )
    for told, ratio in _levels(behind)[:2]:
        for band in bounds.likely(numbers, named):
            for gate in (one for one in decisions if "not pushed out" in one.name and one.name.startswith(told)):
                yield Known(
                    f"REINFORCE weighted by its {told} to {behind} in {bounds.shown(band)}, {gate.name}",
                    lambda c, r=ratio, b=band, g=gate: (
                        -r(c).clamp(*b) * g.of(c) * surrogate.credit_of(c, own) * c["logp_current"]
                    ),
                )


def _tapered(own: str, behind: str, numbers: Sequence[float]) -> Iterator[Known]:
    """TOPR: whole for positive advantages, weighted by a bounded ratio for negative ones. VESPO: a smooth weight."""
    for told, ratio in _levels(behind):
        for cap in dict.fromkeys((1.0, *(n for n in numbers if n > 0))):

            def tapered(c: Cells, r: Values = ratio, k: float = cap) -> Tensor:
                a = surrogate.credit_of(c, own)
                return -torch.where(a > 0, 1.0, r(c).clamp(max=k)) * a * c["logp_current"]

            yield Known(f"REINFORCE, weighted for negative advantages by its {told} to {behind} up to {cap:g}", tapered)

    def smooth(c: Cells) -> Tensor:
        a, weight = surrogate.credit_of(c, own), _levels(behind)[2][1](c)
        up, down = torch.exp(3 + 2 * weight.log() - 3 * weight), torch.exp(2 + 3 * weight.log() - 2 * weight)
        return -torch.where(a >= 0, up, down) * a * c["logp_current"]

    yield Known(f"REINFORCE under a gamma weight of its product to {behind}", smooth)


def _regressed(own: str, behind: str, numbers: Sequence[float]) -> Iterator[Known]:
    """DRO and Kimi 1.5: REINFORCE and a squared log-ratio."""
    for beta in (n for n in numbers if 0 < n <= 1):
        for half in (0.5, 1.0):

            def pulled(c: Cells, k: float = half * beta) -> Tensor:
                drift = k * c.gap("logp_current", behind) ** 2
                return -surrogate.credit_of(c, own) * c["logp_current"] + drift

            yield Known(f"REINFORCE plus {half * beta:g} × the squared log-ratio to {behind}", pulled)


def _corrected(own: str, numbers: Sequence[float], named: Settings) -> Iterator[Known]:
    """The clipped loss of the update under a weight or a decision towards the sampler."""
    factors = [*weights.of_pair("logp_old", "logp_rollout", numbers, named)]
    factors = [one for one in factors if " over its mean" not in one.name]
    factors += kept.decisions("logp_old", "logp_rollout", numbers, named, by_band=True)
    for told, ratio in _levels("logp_old")[:2]:
        for band in bounds.likely(numbers, named)[:FEW]:

            def clipped(c: Cells, r: Values = ratio, b: bounds.Band = band) -> Tensor:
                a = surrogate.credit_of(c, own)
                return torch.maximum(-a * r(c), -a * r(c).clamp(*b))

            for one in factors:
                name = f"clipped to {bounds.shown(band)}, {told} to logp_old, times {one.name}"
                yield Known(name, lambda c, f=clipped, o=one: o.of(c) * f(c))


FEW = 6
"""How many intervals a clip is tried with, where there are many weights beside it."""


def of_rewards(inputs: frozenset[str], numbers: Sequence[float], named: Settings) -> Iterator[Known]:
    """Losses of functions that are given rewards and make their advantages themselves."""
    for told, own in _earned(inputs, numbers, named):
        yield Known(f"REINFORCE of {told}", lambda c, a=own: -a(c) * c["logp_current"])
        for behind in (n for n in ("logp_old", "logp_rollout") if n in inputs):
            for level, ratio in _levels(behind)[:2]:
                yield Known(f"unclipped, {level} to {behind}, of {told}", lambda c, a=own, r=ratio: -a(c) * r(c))
                for band in bounds.likely(numbers, named)[:FEW]:
                    yield Known(
                        f"clipped to {bounds.shown(band)}, {level} to {behind}, of {told}",
                        lambda c, a=own, r=ratio, b=band: torch.maximum(-a(c) * r(c), -a(c) * r(c).clamp(*b)),
                    )


def _earned(inputs: frozenset[str], numbers: Sequence[float], named: Settings) -> Iterator[tuple[str, Values]]:
    """Advantages made of rewards."""
    yield "reward", lambda c: c.rows(c.reward)
    gammas = bounds.called(named, "gamma", "discount") or [n for n in numbers if 0.5 <= n <= 1] or [1.0]
    value = next((v for v in ("value_old", "value") if v in inputs), "")
    for gamma in gammas:
        yield f"return with discount {gamma:g}", lambda c, g=gamma: credit.to_go(c, g)
        if value:
            yield (
                f"return with discount {gamma:g} minus {value}",
                lambda c, g=gamma: credit.to_go(c, g) - c[value],
            )
    if value:
        yield f"reward minus {value}", lambda c: c.rows(c.reward) - c[value]
    for one in credit.normalised():
        if not one.mistake and one.name.startswith("reward -"):
            yield one.name, lambda c, o=one: c.rows(o.of(c))
