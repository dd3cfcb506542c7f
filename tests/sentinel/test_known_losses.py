"""Published losses that a function is recognised by: soft, gated, geometric and regressed ones."""

from collections.abc import Callable

import pytest
import torch
from tests.sentinel.test_known_credit import fits
from torch import Tensor


def mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def soft(lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Tensor:
    tau = torch.where(adv > 0, tau_pos, tau_neg)
    return mean(-adv * torch.sigmoid(tau * ((lp - old_lp).exp() - 1)) * 4 / tau, mask)


def geometric(lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, eps_low: float = 0.2,
              eps_high: float = 0.4) -> Tensor:  # fmt: skip
    gap = lp - old_lp
    sign = torch.sign(adv)
    held = sign * torch.min(sign * gap, sign * gap.clamp(-eps_low, eps_high))
    ratio = ((held * mask).sum(1) / mask.sum(1).clamp(min=1)).exp()
    return mean(-adv * ratio[:, None], mask)


def dropped(lp: Tensor, rollout_log_probs: Tensor, adv: Tensor, mask: Tensor, low: float = 0.5,
            high: float = 2.0) -> Tensor:  # fmt: skip
    ratio = torch.exp(lp - rollout_log_probs)
    return mean(torch.where((ratio >= low) & (ratio <= high), -ratio * adv, 0.0), mask)


def one_sided(lp: Tensor, rollout_log_probs: Tensor, adv: Tensor, mask: Tensor, low: float = 0.5,
              high: float = 2.0) -> Tensor:  # fmt: skip
    ratio = torch.exp(lp - rollout_log_probs)
    gone = torch.where(adv > 0, ratio > high, ratio < low)
    return mean(torch.where(gone, 0.0, -ratio * adv), mask)


def tapered(lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor) -> Tensor:
    weight = torch.where(adv > 0, 1.0, (lp - old_lp).exp().clamp(max=1.0)).detach()
    return mean(-weight * adv * lp, mask)


def by_probability(lp: Tensor, rollout_log_probs: Tensor, adv: Tensor, mask: Tensor, delta_low: float = 0.1,
                   delta_high: float = 0.3, kl_tau: float = 0.01) -> Tensor:  # fmt: skip
    gap, apart = lp - rollout_log_probs, lp.exp() - rollout_log_probs.exp()
    keep = torch.where(adv > 0, apart <= delta_high, apart >= -delta_low)
    return mean(torch.where(keep, -gap.exp() * adv, 0.0) + kl_tau * gap**2, mask)


def regressed(lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, dro_beta: float = 0.1) -> Tensor:
    return mean(-(adv * lp - dro_beta / 2 * (lp - old_lp) ** 2), mask)


def gated(
    lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, eps_low: float = 0.2, eps_high: float = 0.28
) -> Tensor:
    ratio = torch.exp(lp - old_lp).detach()
    gone = torch.where(adv > 0, ratio > 1 + eps_high, ratio < 1 - eps_low)
    return mean(-ratio.clamp(1 - eps_low, 1 + eps_high) * adv * lp * ~gone, mask)


def masked_ppo(lp: Tensor, old_log_probs: Tensor, rollout_log_probs: Tensor, adv: Tensor, mask: Tensor,
               eps: float = 0.2, cap: float = 2.0) -> Tensor:  # fmt: skip
    ratio = torch.exp(lp - old_log_probs)
    weight = torch.exp(((old_log_probs - rollout_log_probs) * mask).sum(1) / mask.sum(1).clamp(min=1)).clamp(max=cap)
    loss = -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
    return mean(loss * weight[:, None].detach(), mask)


def of_rewards(lp: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    return -((lp * mask).sum(1) * rewards).mean()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (soft, "token mean of sigmoid at 1 up and 1.05 down, ratio to logp_old"),
        (geometric, "token mean of geometric mean of ratios to logp_old clipped to e^[-0.2, 0.4]"),
        (dropped, "token mean of unclipped, ratio to logp_rollout, ratio in [0.5, 2]"),
        (one_sided, "token mean of unclipped, ratio to logp_rollout, ratio not pushed out of [0.5, 2]"),
        (tapered, "token mean of REINFORCE, weighted for negative advantages by its ratio to logp_old up to 1"),
        (
            by_probability,
            "token mean of unclipped, ratio to logp_rollout, probability not pushed 0.3 up or 0.1 down, "
            "plus 0.01 × the squared log-ratio",
        ),
        (regressed, "token mean of REINFORCE plus 0.05 × the squared log-ratio to logp_old"),
        (
            gated,
            "token mean of REINFORCE weighted by its ratio to logp_old in [0.8, 1.28], "
            "ratio not pushed out of [0.8, 1.28]",
        ),
        (
            masked_ppo,
            "token mean of clipped to [0.8, 1.2], ratio to logp_old, times logp_old / logp_rollout, "
            "ratio of the sequence clipped to at most 2",
        ),
        (of_rewards, "mean over sequences of their token sums of REINFORCE of reward"),
    ],
)
def test_a_policy_loss_is_recognised(fn: Callable[..., object], formula: str) -> None:
    found = fits(fn)
    assert (formula, "") in found
    assert not any(mistake for _, mistake in found)


def ppo_with_entropy(lp: Tensor, old_lp: Tensor, adv: Tensor, entropy: Tensor, mask: Tensor, eps: float = 0.2,
                     ent_coef: float = 0.01) -> Tensor:  # fmt: skip
    ratio = torch.exp(lp - old_lp)
    loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - eps, 1 + eps))
    return mean(loss, mask) - ent_coef * mean(entropy, mask)


def actor_critic(lp: Tensor, old_lp: Tensor, adv: Tensor, values: Tensor, returns: Tensor, entropy: Tensor,
                 mask: Tensor, clip: float = 0.2, vf_coef: float = 0.5, ent_coef: float = 0.01) -> Tensor:  # fmt: skip
    ratio = torch.exp(lp - old_lp)
    loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip, 1 + clip))
    return mean(loss, mask) + vf_coef * 0.5 * mean((values - returns) ** 2, mask) - ent_coef * mean(entropy, mask)


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (ppo_with_entropy, "token mean of clipped to [0.8, 1.2], ratio to logp_old, minus 0.01 × entropy"),
        (
            actor_critic,
            "token mean of clipped to [0.8, 1.2], ratio to logp_old, minus 0.01 × entropy, "
            "plus 0.5 × 0.5 × squared error",
        ),
    ],
)
def test_a_loss_with_more_terms_is_recognised(fn: Callable[..., object], formula: str) -> None:
    assert fits(fn) == [(formula, "")]


def huber(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, reach: float = 0.2) -> Tensor:
    def error(one: Tensor) -> Tensor:
        return torch.nn.functional.smooth_l1_loss(one, returns, reduction="none")

    held = old_values + (values - old_values).clamp(-reach, reach)
    return mean(torch.max(error(values), error(held)), mask)


def test_a_huber_loss_is_recognised() -> None:
    assert fits(huber) == [("token mean of Huber error up to 1, clipped at 0.2", "")]


def counted_on_both_sides(
    lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, eps_low: float = 0.2, eps_high: float = 0.3
) -> Tensor:
    gap = lp - old_lp
    return mean(((gap != gap.clamp(-eps_low, eps_high)) & (adv > 0)).double(), mask)


def where_a_dual_clip_binds(
    lp: Tensor, old_lp: Tensor, adv: Tensor, mask: Tensor, eps: float = 0.2, dual: float = 3.0
) -> Tensor:
    ratio = (lp - old_lp).exp()
    return mean((((ratio < 1 - eps) | (ratio > dual)) & (adv < 0)).double(), mask)


def test_a_clip_fraction_of_both_sides_is_a_mistake_unless_both_bind() -> None:
    """Under a dual clip, negative advantages are bounded from both sides, so counting both is right."""
    ((formula, mistake),) = fits(counted_on_both_sides)
    assert "for positive advantages" in formula
    assert "counts both sides of the band" in mistake
    assert [mistake for _, mistake in fits(where_a_dual_clip_binds) if mistake] == []
