"""Policy losses with their gradient and observations in one pass: the only place that writes a gradient by hand.

Each function stands for the formula of its name. It gives the token losses, the slopes of the weighted loss
(d loss / d logp_current) and the formula's observations. A rejected token arrives with ratio, advantage and credit 0.
Products are taken in the order in which autograd takes them, so that float64 gives the same bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.fields import Field
from trimtab.signal.layout import Keep, PerToken, Scalar
from trimtab.signal.reduce import sequence_sum
from trimtab.signal.tensors import as_torch

Losses = tuple[PerToken, PerToken, dict[str, Tensor]]
"""Token losses, slopes, observations."""


@dataclass(frozen=True)
class Given:
    """What a fused loss reads; nothing carries a gradient, and what is rejected is 0."""

    advantage: PerToken
    credit: PerToken
    """weight * importance * advantage: what a token's log-prob is pushed by."""
    logp_current: PerToken
    ratio: PerToken | None = None
    """exp(logp_current - logp_anchor), bounded."""
    selected: Keep | None = None


def reinforce(given: Given) -> Losses:
    """-A * logp"""
    return -given.advantage * given.logp_current, -given.credit, {}


def clipped(given: Given, *, band: tuple[float, float]) -> Losses:
    """-min(r A, clamp(r) A); where the clip is the smaller of the two, the gradient is stopped."""
    ratio = cast("Tensor", given.ratio)
    free, bounded = ratio * given.advantage, ratio.clamp(*band).mul_(given.advantage)
    stopped = bounded < free
    losses = torch.minimum(free, bounded, out=bounded).neg_()
    return losses, zero_where(stopped, ratio).mul_(given.credit).neg_(), {"clipped_tokens": stopped}


def dual_clipped(given: Given, *, band: tuple[float, float], cap: float) -> Losses:
    """clipped, held below cap * |A| where the advantage is negative."""
    inner, slopes, seen = clipped(given, band=band)
    ceiling = -cap * given.advantage
    capped = (given.advantage < 0) & (inner > ceiling)
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
    losses = -bounded * given.advantage * given.logp_current
    return losses, -bounded * given.credit, {"clipped_tokens": bounded != ratio}


def soft_gated(given: Given, *, temperature_positive: float, temperature_negative: float) -> Losses:
    """-A * (4 / tau) * s, s = sigmoid(tau (r - 1)); its slope is -4 A r s (1 - s)."""
    ratio = cast("Tensor", given.ratio)
    tau = torch.full_like(ratio, temperature_negative).masked_fill_(given.advantage > 0, temperature_positive)
    gate = torch.tanh(0.5 * tau * (ratio - 1)).add_(1).mul_(0.5)
    slopes = -4 * given.credit * ratio * gate * (1 - gate)
    return -given.advantage * (4 / tau) * gate, slopes, {"clipped_tokens": torch.zeros_like(ratio, dtype=torch.bool)}


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
"""Losses whose gradient does not go through the ratio: it does not stop where the ratio is bounded."""


@dataclass(frozen=True)
class Term:
    """The policy term: its share of the loss, with gradient, and what it is made of."""

    loss: Scalar
    tokens: PerToken
    """Each token's loss, before importance and weight; detached."""
    seen: Mapping[str, Tensor]


def policy_term(
    name: str, settings: Mapping[str, Any], given: Given, logp_current: PerToken,
    *, inside: Tensor | None, coefficient: Field,
) -> Term:  # fmt: skip
    """The weighted sum of a fused loss. `inside`: 1 where the ratio was not bounded, None if it never was.

    `coefficient` is importance times weight.
    """
    losses, slopes, seen = FUSED[name](given, **settings)
    if inside is not None and name not in OWN_SLOPE:
        slopes *= inside
    if coefficient.is_shared:
        value = torch.dot(sequence_sum(losses, coefficient.segments), as_torch(coefficient.values))
    else:
        value = (losses * coefficient.values).sum()
    return Term(cast("Tensor", _Known.apply(logp_current, value, slopes)), losses, seen)


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
        return slopes * arrived[0], None, None


BITS = {4: torch.int32, 8: torch.int64}


def zero_where(flags: Keep, values: PerToken) -> PerToken:
    """0 where a flag is true, whatever stands there, and the value elsewhere: by the bits of a number.

    torch.where takes ten times as long where flags are mixed: it jumps, and this does not.
    """
    bits = BITS[values.dtype.itemsize]
    return values.view(bits).bitwise_and(flags.to(bits).sub_(1)).view(values.dtype)
