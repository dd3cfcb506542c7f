"""Policy losses with their gradient and observations in one pass: the only place that writes a gradient by hand.

Each function stands for the formula of its name. It gives the weighted token losses, their slopes (d loss /
d logp_current) and the formula's observations. A rejected token arrives with ratio and pull 0.
Products are taken in the order in which autograd takes them, so that slopes in float64 are the same bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.layout import Keep, PerToken, Scalar, Segments
from trimtab.signal.parts import Part
from trimtab.signal.ratio import Ratio
from trimtab.signal.tensors import exceeds, is_plain

Losses = tuple[PerToken, PerToken, dict[str, Tensor]]
"""Weighted token losses, slopes, observations."""


@dataclass(frozen=True)
class Given:
    """What a fused loss reads; nothing carries a gradient, and what is rejected is 0."""

    pull: PerToken
    """-advantage * importance * weight: the slope of a token whose ratio is 1. Every loss is proportional to it."""
    logp_current: PerToken
    ratio: PerToken | None = None
    """exp(logp_current - logp_anchor), bounded."""
    selected: Keep | None = None


def reinforce(given: Given) -> Losses:
    """-A * logp"""
    return given.pull * given.logp_current, given.pull.clone(), {}


def clipped(given: Given, *, band: tuple[float, float]) -> Losses:
    """-min(r A, clamp(r) A); where the clip is the smaller of the two, the gradient is stopped."""
    ratio = cast("Tensor", given.ratio)
    free, bounded = ratio * given.pull, ratio.clamp(*band).mul_(given.pull)
    stopped = exceeds(bounded, free)
    losses = torch.maximum(free, bounded, out=bounded)
    return losses, zero_where(stopped, free, out=free), {"clipped_tokens": stopped}


def dual_clipped(given: Given, *, band: tuple[float, float], cap: float) -> Losses:
    """clipped, held below cap * |A| where the advantage is negative."""
    inner, slopes, seen = clipped(given, band=band)
    ceiling = cap * given.pull
    capped = (given.pull > 0) & (inner > ceiling)
    return torch.where(capped, ceiling, inner), zero_where(capped, slopes), {**seen, "capped_tokens": capped}


def covariance_clipped(given: Given, *, band: tuple[float, float]) -> Losses:
    """clipped without the selected tokens."""
    selected = cast("Tensor", given.selected)
    inner, slopes, seen = clipped(given, band=band)
    return zero_where(selected, inner), zero_where(selected, slopes), {**seen, "selected_tokens": selected.clone()}


def clipped_importance(given: Given, *, band: tuple[float, float]) -> Losses:
    """-sg(clamp(r)) * A * logp"""
    ratio = cast("Tensor", given.ratio)
    bounded = ratio.clamp(*band)
    slopes = bounded * given.pull
    return slopes * given.logp_current, slopes, {"clipped_tokens": bounded != ratio}


def soft_gated(given: Given, *, temperature_positive: float, temperature_negative: float) -> Losses:
    """-A * (4 / tau) * s, s = sigmoid(tau (r - 1)); its slope is -4 A r s (1 - s)."""
    ratio = cast("Tensor", given.ratio)
    tau = torch.full_like(ratio, temperature_negative).masked_fill_(given.pull < 0, temperature_positive)
    gate = torch.tanh(0.5 * tau * (ratio - 1)).add_(1).mul_(0.5)
    slopes = 4 * given.pull * ratio * gate * (1 - gate)
    return given.pull * (4 / tau) * gate, slopes, {"clipped_tokens": torch.zeros_like(ratio, dtype=torch.bool)}


FUSED: dict[str, Callable[..., Losses]] = {
    "policy_loss.reinforce": reinforce,
    "policy_loss.clipped": clipped,
    "policy_loss.dual_clipped": dual_clipped,
    "policy_loss.covariance_clipped": covariance_clipped,
    "policy_loss.clipped_importance": clipped_importance,
    "policy_loss.soft_gated": soft_gated,
}
"""Every loss that is fused, by the name of its formula."""

OWN_SLOPE = frozenset({"policy_loss.reinforce", "policy_loss.clipped_importance"})
"""Losses that read the log-prob itself. Their gradient does not go through the ratio: it does not stop where the ratio
is bounded."""


@dataclass(frozen=True)
class Term:
    """The policy term: its share of the loss, with gradient, and what it is made of."""

    loss: Scalar
    tokens: Callable[[PerToken], PerToken]
    """Each token's loss without its weight, detached, given -advantage * importance; computed where somebody asks."""
    seen: Mapping[str, Tensor]


def policy_term(part: Part, given: Given, logp_current: PerToken, inside: Tensor | None) -> Term:
    """The sum of a fused loss. `inside`: 1 where the ratio was not bounded, None if it never was."""
    name, settings = part.formula.name, part.own_settings
    losses, slopes, seen = FUSED[name](given, **settings)
    if inside is not None and name not in OWN_SLOPE:
        slopes *= inside

    def tokens(pull: PerToken) -> PerToken:
        return FUSED[name](replace(given, pull=pull), **settings)[0]

    return Term(cast("Tensor", _Known.apply(logp_current, losses.sum(), slopes)), tokens, seen)


def fused_loss(
    part: Part, logp_current: PerToken, logp_anchor: PerToken | None, advantage: PerToken, weight: PerToken
) -> Scalar:
    """One policy loss by itself, for a trainer that has its advantages: sum of weight_t * loss_t, with its gradient.

    `fused_loss(part("policy_loss.clipped", band=(0.8, 1.28)), logp, logp_old, advantage, weight).backward()`

    Nothing is corrected, measured or checked on the way. A loss that is not fused is refused.
    """
    name = part.formula.name
    if name not in FUSED or "selected" in part.formula.inputs:
        raise SignalError(f"fused_loss: {name} cannot run by itself. There are {', '.join(sorted(FUSED))}.")
    logp, value, inside = logp_current.detach(), None, None
    if logp_anchor is not None:
        ratio = Ratio(logp - logp_anchor.detach(), Segments(torch.tensor([len(logp)]), len(logp)))
        value, inside = ratio.value(sums_too=False), ratio.inside
    pull = (weight * advantage.detach()).neg_()
    return policy_term(part, Given(pull, logp, value), logp_current, inside).loss


class _Known(torch.autograd.Function):
    """A number whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, logp_current: Tensor, value: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise SignalError(
                "token_loss: a second derivative was asked for (create_graph=True), and the gradient of the fast path "
                'is made by hand, so it would be wrong. Use the formulas as written: with use_path("reference").'
            )
        (slopes,) = ctx.saved_tensors
        is_one = is_plain(arrived[0]) and arrived[0].item() == 1
        return slopes if is_one else slopes * arrived[0], None, None


BITS = {4: torch.int32, 8: torch.int64}


def zero_where(flags: Keep, values: PerToken, out: PerToken | None = None) -> PerToken:
    """0 where a flag is true, whatever stands there, and the value elsewhere: by the bits of a number.

    torch.where takes ten times as long where flags are mixed: it jumps, and this does not.
    """
    bits = BITS[values.dtype.itemsize]
    held = None if out is None else out.view(bits)
    return torch.bitwise_and(values.view(bits), flags.to(bits).sub_(1), out=held).view(values.dtype)
