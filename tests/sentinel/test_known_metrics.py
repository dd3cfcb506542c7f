"""Published numbers about a batch that a function is recognised by."""

from collections.abc import Callable

import pytest
import torch
from tests.sentinel.test_known_credit import fits
from torch import Tensor


def longest(response_mask: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    inside = advantages[response_mask.bool()]
    return {
        "advantage/std": inside.std(correction=0).detach(),
        "length/max": response_mask.sum(1).max(),
        "length/mean": response_mask.sum(1).mean(),
    }


def agreement(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    p, q = (one[mask.bool()].exp() for one in (old_log_probs, rollout_log_probs))
    return {"pearson": torch.corrcoef(torch.stack([p, q]))[0, 1], "largest": (p.log() - q.log()).abs().max()}


def perplexity(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    nll = -(rollout_log_probs * mask).sum() / mask.sum()
    return {"ppl": nll.exp(), "beyond": (((log_probs - rollout_log_probs).exp() > 2.0) * mask).sum() / mask.sum()}


@pytest.mark.parametrize(
    ("fn", "formulas"),
    [
        (
            longest,
            (
                "standard deviation of advantage",
                "largest number of trained tokens",
                "mean number of trained tokens",
            ),
        ),
        (
            agreement,
            (
                "correlation of probabilities of logp_rollout and logp_old",
                "maximum of |k1| of KL(logp_rollout to logp_old)",
            ),
        ),
        (perplexity, ("perplexity of logp_rollout",)),
    ],
)
def test_a_metric_is_recognised(fn: Callable[..., object], formulas: tuple[str, ...]) -> None:
    found = fits(fn)
    assert not any(mistake for _, mistake in found)
    assert set(formulas) <= {formula for formula, _ in found}
