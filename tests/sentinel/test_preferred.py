"""Preference losses and what is watched beside them: right ones are known, and a slip in one of them is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from trimtab.sentinel import Subject, at, bind, check
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import directed, ordinary
from trimtab.sentinel.known import fitted
from trimtab.sentinel.search import ready

Reads = Callable[[Case], Tensor]


def _totals(case: Case, name: str, *, mean: bool) -> Tensor:
    mask = case.padded("trainable", with_prompt=False)
    total = (case.padded(name, with_prompt=False) * mask).sum(1)
    return total / mask.sum(1).clamp(min=1) if mean else total


def of_pair(name: str, which: int, *, mean: bool = False) -> Reads:
    """The summed numbers of the chosen (0) or of the rejected answers (1), or their mean."""

    def of(case: Case) -> Tensor:
        if not case.pairs:
            raise case.cannot("no group has two rewards")
        found = _totals(case, name, mean=mean)[[pair[which] for pair in case.pairs]]
        if mean and name == "logp_current" and bool((found >= 0).any()):
            raise case.cannot("what is certain has no odds")
        return found

    return of


def offset(case: Case) -> Tensor:
    reward = case.sequence("reward").detach()
    return torch.stack([reward[a] - reward[b] for a, b in case.pairs])


SUMS: dict[str, Reads] = {"chosen": of_pair("logp_current", 0), "rejected": of_pair("logp_current", 1)}
MEANS: dict[str, Reads] = {
    "chosen": of_pair("logp_current", 0, mean=True),
    "rejected": of_pair("logp_current", 1, mean=True),
}
REFERENCE: dict[str, Reads] = {"ref_chosen": of_pair("logp_ref", 0), "ref_rejected": of_pair("logp_ref", 1)}
SCORES: dict[str, Reads] = {"chosen": of_pair("value", 0, mean=True), "rejected": of_pair("value", 1, mean=True)}
BATCH: dict[str, Reads] = {
    "every": lambda case: _totals(case, "logp_current", mean=False),
    "ref_every": lambda case: _totals(case, "logp_ref", mean=False),
}


def preference(fn: Callable[..., Any], args: dict[str, Reads], **more: Any) -> Subject:
    return bind(fn, role="preference", args=args, **more)


# --- odds, margins, targets ---------------------------------------------------------------------------------------


def orpo(chosen: Tensor, rejected: Tensor, beta: float = 0.1) -> Tensor:
    log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return -beta * logsigmoid(log_odds).mean()


def orpo_added(chosen: Tensor, rejected: Tensor, beta: float = 0.1) -> Tensor:
    log_odds = (chosen - rejected) + (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return -beta * logsigmoid(log_odds).mean()


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -logsigmoid(chosen - rejected).mean()


def bradley_terry_turned(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -logsigmoid(rejected - chosen).mean()


def with_margin(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    return -logsigmoid(chosen - rejected - margin).mean()


def with_margin_added(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    return -logsigmoid(chosen - rejected + margin).mean()


def simpo(chosen: Tensor, rejected: Tensor, beta: float = 2.0, gamma: float = 0.5) -> Tensor:
    return -logsigmoid(beta * (chosen - rejected - gamma / beta)).mean()


def simpo_scaled(chosen: Tensor, rejected: Tensor, beta: float = 2.0, gamma: float = 0.5) -> Tensor:
    return -logsigmoid(beta * (chosen - rejected - gamma)).mean()


def simpo_by_ratio(chosen: Tensor, rejected: Tensor, beta: float = 2.0, gamma_beta_ratio: float = 0.5) -> Tensor:
    return -logsigmoid(beta * (chosen - rejected - gamma_beta_ratio)).mean()


def simpo_by_ratio_unscaled(
    chosen: Tensor, rejected: Tensor, beta: float = 2.0, gamma_beta_ratio: float = 0.5
) -> Tensor:
    return -logsigmoid(beta * (chosen - rejected) - gamma_beta_ratio).mean()


# --- against a reference ------------------------------------------------------------------------------------------


def robust(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1,
           label_smoothing: float = 0.2) -> Tensor:  # fmt: skip
    x = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
    of_pairs = -logsigmoid(x) * (1 - label_smoothing) + logsigmoid(-x) * label_smoothing
    return (of_pairs / (1 - 2 * label_smoothing)).mean()


def robust_over_one_share(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor,
                          beta: float = 0.1, label_smoothing: float = 0.2) -> Tensor:  # fmt: skip
    x = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
    of_pairs = -logsigmoid(x) * (1 - label_smoothing) + logsigmoid(-x) * label_smoothing
    return (of_pairs / (1 + 2 * label_smoothing)).mean()


def ipo_of_half_beta(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor,
                     beta: float = 0.1) -> Tensor:  # fmt: skip
    return (((chosen - ref_chosen) - (rejected - ref_rejected) - 1 / 2 * beta) ** 2).mean()


def kto(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, every: Tensor, ref_every: Tensor,
        beta: float = 0.1, desirable_weight: float = 1.5, undesirable_weight: float = 0.5) -> Tensor:  # fmt: skip
    kl = (every - ref_every).mean().clamp(min=0).detach()
    good = 1 - torch.sigmoid(beta * (chosen - ref_chosen - kl))
    bad = 1 - torch.sigmoid(beta * (kl - (rejected - ref_rejected)))
    return torch.cat((desirable_weight * good, undesirable_weight * bad)).mean()


def kto_below_zero(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, every: Tensor,
                   ref_every: Tensor, beta: float = 0.1, desirable_weight: float = 1.5,
                   undesirable_weight: float = 0.5) -> Tensor:  # fmt: skip
    kl = (every - ref_every).mean().detach()
    good = 1 - torch.sigmoid(beta * (chosen - ref_chosen - kl))
    bad = 1 - torch.sigmoid(beta * (kl - (rejected - ref_rejected)))
    return torch.cat((desirable_weight * good, undesirable_weight * bad)).mean()


def kto_with_one_side_turned(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor,
                               every: Tensor, ref_every: Tensor, beta: float = 0.1, desirable_weight: float = 1.5,
                               undesirable_weight: float = 0.5) -> Tensor:  # fmt: skip
    kl = (every - ref_every).mean().clamp(min=0).detach()
    good = desirable_weight * (1 - torch.sigmoid(beta * (chosen - ref_chosen - kl)))
    bad = undesirable_weight * (1 - torch.sigmoid(beta * (rejected - ref_rejected - kl)))
    return torch.cat((good, bad)).mean()


def with_likelihood(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1,
                    sft_loss_weight: float = 0.2) -> Tensor:  # fmt: skip
    x = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
    return (-logsigmoid(x)).mean() + sft_loss_weight * (-chosen).mean()


def with_unlikelihood(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1,
                      sft_loss_weight: float = 0.2) -> Tensor:  # fmt: skip
    x = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
    return (-logsigmoid(x)).mean() - sft_loss_weight * (-chosen).mean()


RIGHT: list[tuple[Callable[..., Any], dict[str, Reads], str]] = [
    (orpo, MEANS, "mean over pairs of 0.1 × minus log-sigmoid of the log-odds ratio (ORPO)"),
    (bradley_terry, SCORES, "mean over pairs of minus log-sigmoid, 1 × difference of mean values"),
    (with_margin, {**SCORES, "margin": offset},
     "mean over pairs of minus log-sigmoid, 1 × difference of mean values minus the difference of rewards"),
    (simpo, MEANS, "mean over pairs of minus log-sigmoid, 2 × difference of means minus 0.5"),
    (simpo_by_ratio, MEANS, "mean over pairs of minus log-sigmoid, 2 × (difference of means minus 0.5)"),
    (robust, SUMS | REFERENCE,
     "mean over pairs of minus log-sigmoid, robust to 0.2, 0.1 × difference of sums"),
    (kto, SUMS | REFERENCE | BATCH,
     "mean of KTO with beta 0.1, weights 1.5 and 0.5, in pairs, against the mean log-ratio of all answers, "
     "at least 0"),
    (with_likelihood, SUMS | REFERENCE,
     "1 × mean over pairs of minus log-sigmoid, 0.1 × difference of sums, plus 0.2 × the mean of minus the summed "
     "log-probs that are chosen"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args", "formula"), RIGHT, ids=[fn.__name__ for fn, _, _ in RIGHT])
def test_a_right_loss_is_known_and_not_suspected(fn: Callable[..., Any], args: dict[str, Reads], formula: str) -> None:
    subject, why = ready(preference(fn, args), list(directed()))
    assert not why
    assert [(fit.formula, fit.mistake) for fit in fitted(subject, ordinary())] == [(formula, "")]
    assert check(subject, "known_mistake").status == "holds"


WRONG: list[tuple[Callable[..., Any], dict[str, Reads], str]] = [
    (orpo_added, MEANS, "were `chosen - rejected - ("),
    (bradley_terry_turned, SCORES, "`rejected - chosen` were `chosen - rejected`"),
    (with_margin_added, {**SCORES, "margin": offset}, "were `chosen - rejected - margin`"),
    (simpo_scaled, MEANS, "gamma is multiplied by beta"),
    (simpo_by_ratio_unscaled, MEANS, "gamma_beta_ratio is a multiple of beta"),
    (robust_over_one_share, SUMS | REFERENCE, "were `1 - 2 * label_smoothing`"),
    (ipo_of_half_beta, SUMS | REFERENCE, "`1 / 2 * beta` were `1 / 2 / beta`"),
    (kto_below_zero, SUMS | REFERENCE | BATCH, "the published loss holds it at 0"),
    (kto_with_one_side_turned, SUMS | REFERENCE | BATCH, "were `kl - (rejected - ref_rejected)`"),
    (with_unlikelihood, SUMS | REFERENCE, "+ sft_loss_weight * (-chosen).mean()"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fn", "args", "told"),
    [pytest.param(*one, id=one[0].__name__, marks=pytest.mark.slow if i % 3 else ()) for i, one in enumerate(WRONG)],
)
def test_a_slip_in_a_loss_is_told(fn: Callable[..., Any], args: dict[str, Reads], told: str) -> None:
    verdict = check(preference(fn, args), "known_mistake")
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert told in verdict.violation.what


# --- what is watched ----------------------------------------------------------------------------------------------


def _watched(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1) -> Any:
    good, bad = beta * (chosen - ref_chosen), beta * (rejected - ref_rejected)
    return good.mean(), bad.mean(), (good - bad).mean(), (good > bad).double().mean(), chosen.mean()


def _watched_turned(
    chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1
) -> Any:
    good, bad = beta * (chosen - ref_chosen), beta * (ref_rejected - rejected)
    return good.mean(), bad.mean(), (good - bad).mean(), (good > bad).double().mean(), chosen.mean()


def _as_metrics(fn: Callable[..., Any], args: dict[str, Reads], *names: str) -> Subject:
    return preference(fn, args, returns={name: at(i, "metric") for i, name in enumerate(names)})


WATCHED = ("chosen", "rejected", "margin", "accuracy", "logp")


def _formulas(subject: Subject) -> dict[str, str]:
    subject, why = ready(subject, list(directed()))
    assert not why
    return {fit.result: fit.formula for fit in fitted(subject, ordinary()) if not fit.mistake}


def test_implicit_rewards_margins_and_accuracy_are_known() -> None:
    subject = _as_metrics(_watched, SUMS | REFERENCE, *WATCHED)
    assert _formulas(subject) == {
        "chosen": "mean over pairs of 0.1 × scores of sums, chosen",
        "rejected": "mean over pairs of 0.1 × scores of sums, rejected",
        "margin": "mean over pairs of 0.1 × difference of sums",
        "accuracy": "share of pairs with a difference of sums above 0",
        "logp": "mean over pairs of 1 × scores of sums, chosen",
    }
    assert check(subject, "known_mistake").status == "holds"


@pytest.mark.slow
def test_a_margin_with_one_reward_turned_around_is_told() -> None:
    verdict = check(_as_metrics(_watched_turned, SUMS | REFERENCE, *WATCHED), "known_mistake")
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert "`ref_rejected - rejected` were `rejected - ref_rejected`" in verdict.violation.what


def test_log_odds_that_are_watched_are_known() -> None:
    def odds(chosen: Tensor, rejected: Tensor) -> Any:
        log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return log_odds.mean(), logsigmoid(log_odds).mean()

    assert _formulas(_as_metrics(odds, MEANS, "odds", "ratio")) == {
        "odds": "mean over pairs of the log-odds ratio",
        "ratio": "mean over pairs of the log-sigmoid of the log-odds ratio (ORPO)",
    }


def test_implicit_rewards_of_all_answers_are_known() -> None:
    def rewards(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, beta: float = 0.1) -> Tensor:
        return beta * ((log_probs - ref_log_probs) * mask).sum(-1)

    subject = bind(rewards, role="preference", returns={"reward": at((), "reward", level="sequence")})
    assert _formulas(subject) == {"reward": "0.1 × scores of sums"}


def test_a_reference_that_is_not_used_is_left_out() -> None:
    def free(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1,
             reference_free: bool = True) -> Tensor:  # fmt: skip
        against = 0.0 if reference_free else ref_chosen - ref_rejected
        return -logsigmoid(beta * (chosen - rejected - against)).mean()

    subject = preference(free, SUMS | REFERENCE, variants={"reference_free": (False,)})
    assert _formulas(subject) == {"loss": "mean over pairs of minus log-sigmoid, 0.1 × difference of sums"}
    assert check(subject, "known_mistake").status == "holds"


def test_a_loss_of_its_own_is_left_alone() -> None:
    def own(chosen: Tensor, rejected: Tensor, beta: float = 0.1) -> Tensor:
        return torch.tanh(-beta * (chosen - rejected)).square().mean()

    assert check(preference(own, SUMS), "known_mistake").status == "could not exercise"
