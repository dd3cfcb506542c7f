"""Functions with the numbers of a published formula and another gradient, and right ones that look similar."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.sentinel import bind, check


def mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)


def critic(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, detach: bool) -> Tensor:
    near = old_values + (values - old_values).clamp(-0.2, 0.2)
    near = near.detach() if detach else near
    return mean(torch.max((values - returns) ** 2, (near - returns) ** 2), mask)


def weighted(log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, detach: bool) -> Tensor:
    weight = (log_probs - rollout_log_probs).exp().clamp(max=2.0)
    return mean(-(weight.detach() if detach else weight) * advantages * log_probs, mask)


def clipped(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, detach: bool) -> Tensor:
    ratio = (log_probs - old_log_probs).exp()
    held = ratio.clamp(0.8, 1.2)
    return mean(-torch.min(ratio * advantages, (held.detach() if detach else held) * advantages), mask)


@pytest.mark.parametrize(
    ("loss", "role", "is_right", "options"),
    [(critic, "value_loss", False, {"clip": 0.2}), (weighted, "policy_loss", True, {"cap": 2.0}),
     (clipped, "policy_loss", False, {"clip": 0.2})],
)  # fmt: skip
def test_the_right_numbers_with_another_slope_are_a_suspect(
    loss: Callable[..., Tensor], role: str, is_right: bool, options: dict[str, Any]
) -> None:
    def bound(detach: bool) -> Any:
        names = loss.__code__.co_varnames[:4]
        namespace: dict[str, Any] = {"loss": loss, "detach": detach}
        (setting,) = options
        exec(f"def f({', '.join(names)}, {setting}): return loss({', '.join(names)}, detach=detach)", namespace)
        return bind(namespace["f"], name="f", role=role, options=options)

    assert check(bound(is_right), "known_mistake", examples=1).status == "holds"
    verdict = check(bound(not is_right), "known_mistake", examples=1)
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert "its gradient is another one" in verdict.violation.what


def normalised(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    centre = mean(advantages, response_mask)
    spread = mean((advantages - centre) ** 2, response_mask).sqrt()
    credit = (advantages - centre) / (spread + 1e-8)
    ratio = (log_probs - old_log_probs).exp()
    return mean(-torch.min(ratio * credit, ratio.clamp(0.8, 1.2) * credit), response_mask)


def test_a_loss_that_normalises_its_advantages_has_no_share_per_token() -> None:
    subject = bind(normalised, role="policy_loss", couples="batch")
    assert check(subject, "denominator", examples=1).status == "could not exercise"
    assert check(subject, "expected_gradient", examples=1).status == "could not exercise"
