"""Published divergences of student and teacher that a function is recognised by."""

from collections.abc import Callable

import pytest
import torch
from tests.sentinel.test_known_credit import fits
from torch import Tensor
from torch.nn import functional


def forward_kl(logits: Tensor, teacher_logits: Tensor, mask: Tensor, temperature: float = 2.0) -> Tensor:
    student = functional.log_softmax(logits / temperature, -1)
    teacher = functional.log_softmax(teacher_logits / temperature, -1)
    per_token = (teacher.exp() * (teacher - student)).sum(-1) * temperature**2
    return (per_token * mask).sum() / mask.sum()


def reverse_kl(logits: Tensor, teacher_logits: Tensor, mask: Tensor) -> Tensor:
    student, teacher = functional.log_softmax(logits, -1), functional.log_softmax(teacher_logits, -1)
    return (student.exp() * (student - teacher)).sum(-1) * mask


def jsd(logits: Tensor, teacher_logits: Tensor, mask: Tensor, beta: float = 0.3, temperature: float = 1.0) -> Tensor:
    student, teacher = (functional.log_softmax(one / temperature, -1) for one in (logits, teacher_logits))
    mixture = torch.log((1 - beta) * student.exp() + beta * teacher.exp())
    up = functional.kl_div(mixture, teacher, reduction="none", log_target=True).sum(-1)
    down = functional.kl_div(mixture, student, reduction="none", log_target=True).sum(-1)
    return ((beta * up + (1 - beta) * down) * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (forward_kl, "token mean of 2² × KL(teacher to student) at temperature 2"),
        (reverse_kl, "KL(student to teacher)"),
        (jsd, "token mean of JSD(0.3) of teacher and student"),
    ],
)
def test_a_divergence_is_recognised(fn: Callable[..., object], formula: str) -> None:
    assert fits(fn) == [(formula, "")]
