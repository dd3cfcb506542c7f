"""Functions that one small change makes a published formula."""

import torch
from torch import Tensor

from trimtab.sentinel import Subject, bind, check
from trimtab.sentinel.batch.directed import ordinary
from trimtab.sentinel.known import paths, repaired
from trimtab.sentinel.search import ready


def found(subject: Subject) -> list[tuple[str, str, str]]:
    """(formula, change, place) of every repair."""
    subject, why = ready(subject, list(ordinary()))
    assert not why
    return [(one.formula, one.change, one.place) for one in repaired(subject, ordinary(), paths(subject, ordinary()))]


def _narrow(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, eps: float = 0.2) -> Tensor:
    ratio = torch.exp(log_probs - old_log_probs)
    bounded = torch.clamp(ratio, 1 - eps, 1 - eps)
    return (torch.max(-ratio * advantages, -bounded * advantages) * mask).sum() / mask.sum()


def test_a_sign_in_a_bound_is_told_with_its_line() -> None:
    [(formula, change, place)] = found(bind(_narrow, role="policy_loss", options={"eps": 0.2}))
    assert formula == "token mean of clipped to [0.8, 1.2], ratio to logp_old"
    assert change == "`1 - eps` were `1 + eps`"
    assert place == f"_narrow, line {_narrow.__code__.co_firstlineno + 2}"


def test_the_finding_is_a_suspect_that_names_the_change() -> None:
    verdict = check(bind(_narrow, role="policy_loss", options={"eps": 0.2}), "known_mistake")
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert "if `1 - eps` were `1 + eps`" in verdict.violation.what


def _clipped(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, eps: float = 0.2) -> Tensor:
    ratio = torch.exp(log_probs - old_log_probs)
    bounded = torch.clamp(ratio, 1 - eps, 1 + eps)
    return (torch.max(-ratio * advantages, -bounded * advantages) * mask).sum() / mask.sum()


def test_a_published_formula_is_left_alone() -> None:
    assert found(bind(_clipped, role="policy_loss", options={"eps": 0.2})) == []


def _of_its_own(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    ratio = torch.exp(log_probs - old_log_probs)
    return (-advantages * torch.tanh(ratio).square() * mask).sum() / mask.sum()


def test_a_method_of_its_own_is_left_alone() -> None:
    assert found(bind(_of_its_own, role="policy_loss")) == []


def _steps(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 0.9, lam: float = 0.8) -> Tensor:
    out, running, after = (
        torch.zeros_like(rewards),
        torch.zeros(len(rewards)).double(),
        torch.zeros(len(rewards)).double(),
    )
    for t in reversed(range(rewards.shape[1])):
        on = mask[:, t] > 0
        delta = rewards[:, t] + gamma * after - values[:, t]
        running = torch.where(on, delta + gamma / lam * running, running)
        after = torch.where(on, values[:, t], after)
        out[:, t] = running
    return out * mask


def test_a_recursion_is_repaired_too() -> None:
    subject = bind(
        _steps, role="returns", args={"rewards": "token_reward", "values": "value", "mask": "trainable"},
        options={"gamma": 0.9, "lam": 0.8},
    )  # fmt: skip
    [(formula, change, _)] = found(subject)
    assert (formula, change) == ("GAE(0.9, 0.8)", "`gamma / lam` were `gamma * lam`")


def _scaled(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return 1.7 * (log_probs - ref_log_probs)


def test_a_change_that_drops_an_input_is_no_repair() -> None:
    """Without its factor it would be k1; a factor of its own is no slip of a hand."""
    assert found(bind(_scaled, role="kl")) == []


def test_the_function_is_as_before_afterwards() -> None:
    before = _narrow.__code__
    assert found(bind(_narrow, role="policy_loss", options={"eps": 0.2}))
    assert _narrow.__code__ is before


class Loss(torch.nn.Module):
    """Settings on an object, and a helper of its own."""

    def __init__(self, eps: float = 0.2) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        ratio = torch.exp(log_probs - old_log_probs)
        bounded = ratio.clamp(1 - self.eps, 1 + self.eps)
        return _mean(torch.max(-ratio * advantages, -bounded * advantages), mask)


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() * mask.sum()


def test_a_slip_in_a_helper_is_found_there() -> None:
    def loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, eps: float) -> Tensor:
        return Loss(eps)(log_probs, old_log_probs, advantages, mask)

    [(_, change, place)] = found(bind(loss, role="policy_loss", options={"eps": 0.2}))
    assert change == "`(x * mask).sum() * mask.sum()` were `(x * mask).sum() / mask.sum()`"
    assert place == f"_mean, line {_mean.__code__.co_firstlineno + 1}"


def _weighted(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """A weight of its own, which a lower instead of an upper bound would turn into 1."""
    ratio = torch.exp(log_probs - old_log_probs)
    weight = torch.clamp(torch.exp(log_probs), max=1.0)
    return (-ratio * advantages * weight * mask).sum() / mask.sum()


def test_a_change_that_switches_a_part_off_is_no_repair() -> None:
    assert found(bind(_weighted, role="policy_loss")) == []


def _bonus(log_probs: Tensor, ref_log_probs: Tensor, entropy: Tensor, mask: Tensor) -> Tensor:
    """An estimate with a bonus of its own; with the branches exchanged, trained tokens would have k1 alone."""
    return torch.where(mask.bool(), log_probs - ref_log_probs + entropy, log_probs - ref_log_probs)


def test_a_change_after_which_an_input_plays_no_part_is_no_repair() -> None:
    assert found(bind(_bonus, role="kl")) == []
