"""Formulas that nobody declared: what a function equals, what it is called, and what it is silent about."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trimtab.sentinel import Subject, bind, check
from trimtab.sentinel.batch.directed import directed, ordinary
from trimtab.sentinel.binding.callable import of_function
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.known import fitted
from trimtab.sentinel.known.said import told_otherwise
from trimtab.sentinel.search import ready

CASES = list(directed())


def fits(subject: Subject) -> list[tuple[str, str]]:
    known, why = ready(subject, CASES)
    assert not why
    return [(fit.formula, fit.mistake) for fit in fitted(known, ordinary())]


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    gap = ref_log_probs - log_probs
    return gap.exp() - 1 - gap


def turned(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    gap = log_probs - ref_log_probs
    return gap.exp() - 1 - gap


def curved(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    return torch.sin(log_probs - ref_log_probs)


def test_a_published_formula_is_recognised_and_left_alone() -> None:
    assert fits(bind(k3, role="kl")) == [("k3 of KL(logp_current to logp_ref)", "")]
    assert check(bind(k3, role="kl"), "known_mistake", examples=1).status == "holds"


def test_a_known_mistake_is_a_suspect_that_names_formula_and_mistake() -> None:
    verdict = check(bind(turned, role="kl"), "known_mistake", examples=1)
    assert verdict.status == "suspect"
    assert verdict.violation is not None
    assert "k3 of KL(logp_current to logp_ref), turned around: the log-ratio is turned around" in verdict.violation.what


def test_a_formula_of_ones_own_is_nobodys_mistake() -> None:
    assert fits(bind(curved, role="kl")) == []
    assert check(bind(curved, role="kl"), "known_mistake", examples=1).status == "could not exercise"


def test_a_definition_is_believed() -> None:
    subject = bind(turned, role="kl", definition=bind(turned, role="kl").call)
    assert check(subject, "known_mistake", examples=1).reason == "its binding says what it computes"


def penalised(log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor, advantages: Tensor, mask: Tensor,
              eps: float = 0.2, beta: float = 0.04, sign: float = 1.0) -> Tensor:  # fmt: skip
    ratio = torch.exp(log_probs - old_log_probs)
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
    gap = ref_log_probs - log_probs
    loss = loss + sign * beta * (gap.exp() - 1 - gap)
    return (loss * mask).sum() / mask.sum()


@pytest.mark.parametrize(("sign", "mistake"), [(1.0, ""), (-1.0, "the KL is taken from the loss instead of added")])
def test_a_loss_is_recognised_with_its_penalty(sign: float, mistake: str) -> None:
    ((formula, found),) = fits(bind(penalised, role="policy_loss", options={"sign": sign}))
    assert formula.startswith("token mean of clipped to [0.8, 1.2], ratio to logp_old, ")
    assert formula.endswith("0.04 × k3 of KL(logp_current to logp_ref)")
    assert found == mistake


def modes(per_token_loss: Tensor, mask: Tensor, mode: str = "token-mean") -> Tensor:
    if mode in ("token-mean", "seq-mean-token-sum"):
        return (per_token_loss * mask).sum() / mask.sum()
    raise ValueError(mode)


def test_every_text_that_a_body_asks_for_is_tried_and_held_against_its_name() -> None:
    found = fits(bind(modes, role="aggregation"))
    assert ("token mean of token_loss", "") in found
    assert (
        "token mean of token_loss",
        "mode='seq-mean-token-sum' asks for a mean over sequences of token sums",
    ) in found


@pytest.mark.parametrize(
    ("name", "result", "options", "formula", "told"),
    [
        ("f", "loss", {"clip_low": 0.2, "clip_high": 0.28}, "clipped to [0.72, 1.2]", "clip_high=0.28 bounds it"),
        ("f", "loss", {"clip_low": 0.2, "clip_high": 0.28}, "clipped to [0.8, 1.28]", ""),
        ("f", "approx_kl", {}, "token mean of ratio logp_old / logp_current", "approx_kl says how far"),
        ("rloo", "advantage", {}, "reward - group mean", "rloo asks for the mean of the others"),
        ("grpo", "advantage", {}, "reward - group mean", ""),
        ("f", "advantage", {"scale": "group"}, "reward - group mean, over the batch spread", "scale='group'"),
        ("f", "kl", {"kind": "k2"}, "k3 of KL(a to b)", "kind='k2' asks for k2"),
    ],
)  # fmt: skip
def test_names_and_settings_ask_for_formulas(
    name: str, result: str, options: dict[str, object], formula: str, told: str
) -> None:
    found = list(told_otherwise(name, result, options, formula))
    assert bool(found) == bool(told)
    assert not told or found[0].startswith(told)


def ends(responses: Tensor, eos_token_id: int, pad_token_id: int, *, drop: int = 0) -> Tensor:
    is_end = responses.eq(eos_token_id).long()
    return ((is_end.cumsum(1) - is_end * (1 - drop) == 0) & responses.ne(pad_token_id)).long()


def without_its_end(responses: Tensor, eos_token_id: int, pad_token_id: int) -> Tensor:
    return ends(responses, eos_token_id, pad_token_id, drop=1)


def up_to_its_end(responses: Tensor, eos_token_id: int, pad_token_id: int) -> Tensor:
    return ends(responses, eos_token_id, pad_token_id)


@pytest.mark.parametrize(("fn", "told"), [(up_to_its_end, ""), (without_its_end, "the token that ends the answer")])
def test_a_mask_of_ids_is_compared_in_every_cell(fn: Callable[..., Tensor], told: str) -> None:
    found = fits(subject_of(lambda bounds=False: of_function(fn, bounds=bounds)))
    assert [mistake.startswith(told) and bool(mistake) == bool(told) for _, mistake in found] == [True]


def kept(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, low: float = 0.5, high: float = 2.0) -> Tensor:
    """Sequences whose geometric mean ratio lies in a band."""
    gap = ((log_probs - old_log_probs) * mask).sum(1)
    return (((gap.exp() >= low) & (gap.exp() <= high))[:, None] & mask.bool()).double()


def test_a_docstring_is_a_statement() -> None:
    (fit,) = fits(bind(kept, role="keep"))
    assert fit == (
        "product of the sequence in [0.5, 2]",
        "its docstring says that the mean is geometric, and this is the product",
    )


@pytest.mark.parametrize(
    ("said", "formula", "told"),
    [
        ("Leave-one-out over the answers of a prompt.", "reward - group mean", "its docstring says that the others"),
        ("Over the deviation of their prompt.", "reward - group mean, over the batch spread", "its docstring speaks"),
        ("Over the deviation of the whole batch.", "reward - group mean, over the batch spread", ""),
        ("The k3 estimate.", "token mean of k1 of KL(a to b)", "its docstring says k3"),
        ("The k1 or the k3 estimate.", "k1 of KL(a to b)", ""),
    ],
)
def test_what_a_docstring_asks_for(said: str, formula: str, told: str) -> None:
    found = next(told_otherwise("f", "value", {}, formula, said=said), "")
    assert found.startswith(told)
    assert bool(found) == bool(told)


def grouped(rewards: Tensor, groups: Tensor, *, norm_by_std: bool = True) -> Tensor:
    out = torch.zeros_like(rewards)
    for one in groups.unique():
        own = rewards[groups == one]
        out[groups == one] = (own - own.mean()) / (own.std() + 1e-6) if norm_by_std else own
    return out


def test_a_switch_about_the_spread_leaves_the_centre_alone() -> None:
    subject = bind(
        grouped, role="reward_normalisation", options={"norm_by_std": True}, variants={"norm_by_std": (False,)}
    )
    told = [mistake for _, mistake in fits(subject) if mistake]
    assert told == ["norm_by_std is about the spread, and it also turns 'reward - group mean' into 'reward'"]


def late(token_rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0) -> Tensor:
    out, after, carry = torch.zeros_like(values), torch.zeros(len(values)), torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        own = mask[:, t] > 0
        step = token_rewards[:, t] + gamma * lam * after - values[:, t]  # lambda does not belong here
        carry = torch.where(own, step + gamma * lam * carry, carry)
        after = torch.where(own, values[:, t], after)
        out[:, t] = carry * mask[:, t]
    return out


def test_a_mistake_that_a_factor_of_one_hides_shows_with_another_number() -> None:
    subject = bind(late, role="returns", args={"token_rewards": "token_reward"}, variants={"lam": (0.5,)})
    assert any("exchanged" in formula or "twice" in formula for formula, mistake in fits(subject) if mistake)
