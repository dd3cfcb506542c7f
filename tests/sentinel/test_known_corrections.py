"""Published decisions and weights of off-policy corrections that a function is recognised by."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.sentinel.test_known_credit import fits
from torch import Tensor


def in_band(lp: Tensor, lp_rollout: Tensor, mask: Tensor, low: float = 0.5, high: float = 2.0) -> Tensor:
    ratio = torch.exp(lp - lp_rollout)
    return ((ratio >= low) & (ratio <= high) & mask.bool()).detach()


def geometric(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, low: float = 0.8, high: float = 1.25
) -> Tensor:
    mean = ((old_log_probs - rollout_log_probs) * mask).sum(1) / mask.sum(1).clamp(min=1)
    return (mean.exp() >= low) & (mean.exp() <= high)


def largest(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, low: float = 0.3, high: float = 3.0
) -> Tensor:
    ratio = torch.exp(old_log_probs - rollout_log_probs)
    fine = ((ratio >= low) & (ratio <= high)) | ~mask.bool()
    return fine.all(1)


def mean_of_k3(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, threshold: float = 0.8) -> Tensor:
    gap = old_log_probs - rollout_log_probs
    return (((gap.exp() - 1 - gap) * mask).sum(1) / mask.sum(1).clamp(min=1)) <= threshold


def mean_of_gaps(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, threshold: float = 0.2) -> Tensor:
    return ((old_log_probs - rollout_log_probs).abs() * mask).sum(1) / mask.sum(1).clamp(min=1) <= threshold


def veto(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, veto_threshold: float = 0.3) -> Tensor:
    absurd = ((old_log_probs - rollout_log_probs) < math.log(veto_threshold)) & mask.bool()
    return ~absurd.any(1)[:, None] & mask.bool()


def below_cap(lp: Tensor, old_lp: Tensor, mask: Tensor, cap: float = 1.5) -> Tensor:
    return ((lp - old_lp).exp() <= cap) & mask.bool()


def by_sign(lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, delta_low: float = 0.1,
            delta_high: float = 0.3) -> Tensor:  # fmt: skip
    apart = lp.exp() - old_lp.exp()
    return torch.where(adv > 0, apart <= delta_high, apart >= -delta_low) & mask.bool()


def uncertain(entropies: Tensor, mask: Tensor, top: float = 0.3) -> Tensor:
    cut = torch.quantile(entropies[mask.bool()], 1 - top)
    return (entropies >= cut) & mask.bool()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (in_band, "ratio in [0.5, 2]"),
        (geometric, "ratio of the sequence in [0.8, 1.25]"),
        (largest, "every ratio of the sequence in [0.3, 3]"),
        (mean_of_k3, "mean k3 of the sequence at most 0.8"),
        (mean_of_gaps, "mean |log-ratio| of the sequence at most 0.2"),
        (veto, "sequences without a ratio below 0.3"),
        (below_cap, "ratio in at most 1.5"),
        (by_sign, "probability not pushed 0.3 up or 0.1 down"),
        (uncertain, "tokens with the top 0.3 of entropy"),
    ],
)
def test_a_decision_is_recognised(fn: Callable[..., object], formula: str) -> None:
    assert fits(fn) == [(formula, "")]


def dropped(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, low: float = 0.5, high: float = 2.0
) -> Tensor:
    ratio = torch.exp(old_log_probs - rollout_log_probs)
    return torch.where((ratio >= low) & (ratio <= high) & mask.bool(), ratio, 0.0).detach()


def normalised(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, cap: float = 2.0) -> Tensor:
    weight = torch.exp(old_log_probs - rollout_log_probs).clamp(max=cap)
    return (weight / (weight * mask).sum() * mask.sum()).detach()


def dropped_sequences(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, low: float = 0.8,
                      high: float = 1.25) -> Tensor:  # fmt: skip
    gap = (old_log_probs - rollout_log_probs) * mask
    mean = (gap.sum(1) / mask.sum(1).clamp(min=1)).exp()
    return (gap.exp() * ((mean >= low) & (mean <= high))[:, None]).detach()


def corrected(
    per_token_loss: Tensor, old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, cap: float = 2.0
) -> Tensor:
    weight = torch.exp(old_log_probs - rollout_log_probs).clamp(max=cap)
    return (per_token_loss * weight * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (dropped, "logp_old / logp_rollout, ratio where it is in [0.5, 2]"),
        (normalised, "logp_old / logp_rollout, ratio clipped to at most 2, over its mean"),
        (dropped_sequences, "logp_old / logp_rollout of tokens, ratio of the sequence in [0.8, 1.25]"),
        (corrected, "token mean of token_loss times logp_old / logp_rollout, ratio clipped to at most 2"),
    ],
)
def test_a_weight_is_recognised(fn: Callable[..., object], formula: str) -> None:
    assert fits(fn) == [(formula, "")]
