"""Published losses over pairs that a function is recognised by."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trimtab.sentinel import bind
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import directed, ordinary
from trimtab.sentinel.known import fitted
from trimtab.sentinel.search import ready


def of_pair(name: str, which: int, *, mean: bool = False) -> Callable[[Case], Tensor]:
    """The summed log-probs of the chosen or of the rejected answers, or their mean."""

    def of(case: Case) -> Tensor:
        if not case.pairs:
            raise case.cannot("no group has two rewards")
        mask = case.padded("trainable", with_prompt=False)
        total = (case.padded(name, with_prompt=False) * mask).sum(1)
        total = total / mask.sum(1).clamp(min=1) if mean else total
        return total[[pair[which] for pair in case.pairs]]

    return of


def dpo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1) -> Tensor:
    return -functional.logsigmoid(beta * ((chosen - rejected) - (ref_chosen - ref_rejected))).mean()


def smoothed(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1,
             label_smoothing: float = 0.2) -> Tensor:  # fmt: skip
    x = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
    return (-(1 - label_smoothing) * functional.logsigmoid(x) - label_smoothing * functional.logsigmoid(-x)).mean()


def ipo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1) -> Tensor:
    return (((chosen - ref_chosen) - (rejected - ref_rejected) - 1 / (2 * beta)) ** 2).mean()


def hinge(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1) -> Tensor:
    return torch.relu(1 - beta * ((chosen - rejected) - (ref_chosen - ref_rejected))).mean()


def simpo(chosen: Tensor, rejected: Tensor, beta: float = 2.0, gamma: float = 0.5) -> Tensor:
    return -functional.logsigmoid(beta * (chosen - rejected) - gamma).mean()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (dpo, "mean over pairs of minus log-sigmoid, 0.1 × difference of sums"),
        (smoothed, "mean over pairs of minus log-sigmoid, smoothed by 0.2, 0.1 × difference of sums"),
        (ipo, "mean over pairs of squared distance to 1 / (2 × 0.1), 0.1 × difference of sums"),
        (hinge, "mean over pairs of hinge, 0.1 × difference of sums"),
        (simpo, "mean over pairs of minus log-sigmoid, 2 × difference of means minus 0.5"),
    ],
)
def test_a_preference_loss_is_recognised(fn: Callable[..., Tensor], formula: str) -> None:
    free = fn is simpo
    args: dict[str, Callable[[Case], Tensor]] = {
        "chosen": of_pair("logp_current", 0, mean=free),
        "rejected": of_pair("logp_current", 1, mean=free),
    }
    if not free:
        args |= {"ref_chosen": of_pair("logp_ref", 0), "ref_rejected": of_pair("logp_ref", 1)}
    known, why = ready(bind(fn, role="preference", args=args), list(directed()))
    assert not why
    assert [(fit.formula, fit.mistake) for fit in fitted(known, ordinary())] == [(formula, "")]
