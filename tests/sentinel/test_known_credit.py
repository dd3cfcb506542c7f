"""Published formulas of credit that a function is recognised by: charged rewards, and rewards inside their group."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trimtab.sentinel.batch.directed import directed, ordinary
from trimtab.sentinel.binding.callable import of_function
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.known import fitted
from trimtab.sentinel.search import ready

CASES = list(directed())


def fits(fn: Callable[..., object]) -> list[tuple[str, str]]:
    """What an unbound function is found to be."""
    known, why = ready(subject_of(lambda bounds=False: of_function(fn, bounds=bounds)), CASES)
    assert not why
    return [(fit.formula, fit.mistake) for fit in fitted(known, ordinary())]


def last(mask: Tensor) -> Tensor:
    place = mask.size(1) - 1 - mask.long().flip(1).argmax(1)
    return torch.zeros_like(mask).scatter_(1, place[:, None], 1.0) * mask


def kl_in_reward(r: Tensor, kl: Tensor, action_mask: Tensor, kl_coef: float = 0.05) -> Tensor:
    return torch.where(action_mask.bool(), last(action_mask) * r[:, None] - kl_coef * kl, 0.0)


def k3_in_token_reward(
    token_level_scores: Tensor, old_log_probs: Tensor, ref_log_prob: Tensor, response_mask: Tensor, beta: float = 0.1
) -> Tensor:
    gap = ref_log_prob - old_log_probs
    return (token_level_scores - beta * (gap.exp() - 1 - gap)) * response_mask


def kl_alone(log_probs: Tensor, ref_log_probs: Tensor, rewards: Tensor, mask: Tensor, kl_coef: float = 0.1) -> Tensor:
    del rewards
    return -kl_coef * (log_probs - ref_log_probs) * mask


def returns_of_charged(rewards: Tensor, kl: Tensor, mask: Tensor, kl_coef: float = 0.05, gamma: float = 0.9) -> Tensor:
    paid = last(mask) * rewards[:, None] - kl_coef * kl * mask
    out, running = torch.zeros_like(paid), torch.zeros(len(paid), dtype=paid.dtype)
    for t in reversed(range(paid.shape[1])):
        running = torch.where(mask[:, t] > 0, paid[:, t] + gamma * running, running)
        out[:, t] = running
    return out * mask


def advantages_with_baseline(rewards: Tensor, kl: Tensor, mask: Tensor, kl_coef: float = 0.1) -> Tensor:
    return (rewards[:, None] - kl_coef * kl) * mask


def distilled(advantages: Tensor, old_log_probs: Tensor, teacher_log_probs: Tensor, mask: Tensor,
              coef: float = 0.5) -> Tensor:  # fmt: skip
    return torch.where(mask.bool(), advantages - coef * (old_log_probs - teacher_log_probs), 0.0).detach()


def charged_leave_one_out(rewards: Tensor, old_logps: Tensor, ref_logps: Tensor, mask: Tensor,
                          beta: float = 0.05, num_generations: int = 2) -> Tensor:  # fmt: skip
    left = (rewards - beta * ((old_logps - ref_logps) * mask).sum(1)).view(-1, num_generations)
    return (left - (left.sum(1, keepdim=True) - left) / (num_generations - 1)).flatten()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (kl_in_reward, "reward on the last token minus 0.05 × kl"),
        (k3_in_token_reward, "reward of each token minus 0.1 × k3 of KL(logp_old to logp_ref)"),
        (kl_alone, "minus 0.1 × k1 of KL(logp_current to logp_ref)"),
        (returns_of_charged, "return with discount 0.9 of reward on the last token minus 0.05 × kl"),
        (advantages_with_baseline, "reward minus 0.1 × kl"),
        (distilled, "advantage minus 0.5 × k1 of KL(logp_old to logp_ref)"),
        (
            charged_leave_one_out,
            "reward minus the sum of 0.05 × k1 of KL(logp_old to logp_ref) - mean of the others",
        ),
    ],
)
def test_charged_credit_is_recognised(fn: Callable[..., object], formula: str) -> None:
    assert (formula, "") in fits(fn)
    assert not any(mistake for _, mistake in fits(fn))


def by_group(rewards: Tensor, groups: Tensor, one: Callable[[Tensor], Tensor]) -> Tensor:
    out = torch.zeros_like(rewards)
    for name in groups.unique():
        out[groups == name] = one(rewards[groups == name])
    return out


def over_the_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    return by_group(rewards, groups, lambda r: (r - r.mean()) / (r.mean() + 1e-6) if r.mean() > 0 else r * 0)


def then_whitened(rewards: Tensor, groups: Tensor) -> Tensor:
    left = by_group(rewards, groups, lambda r: r - r.mean())
    return (left - left.mean()) / (left.std() + 1e-8)


def best_only(rewards: Tensor, groups: Tensor) -> Tensor:
    def lead(r: Tensor) -> Tensor:
        if len(r) < 2:
            return r * 0
        top = r.topk(2)
        return torch.zeros_like(r).scatter(0, top.indices[:1], top.values[:1] - top.values[1:])

    return by_group(rewards, groups, lead)


def between_extremes(rewards: Tensor, groups: Tensor) -> Tensor:
    return by_group(rewards, groups, lambda r: (r - r.min()) / (r.max() - r.min() + 1e-8))


def of_those_that_vote(prompt_ids: Tensor, rewards: Tensor, valid_mask: Tensor) -> Tensor:
    same = (prompt_ids.unsqueeze(0) == prompt_ids.unsqueeze(1)).to(rewards.dtype) * valid_mask.to(rewards.dtype)
    return rewards - (same @ rewards) / same.sum(-1).clamp(min=1)


def opo(token_level_rewards: Tensor, response_mask: Tensor, index: Tensor) -> Tensor:
    scores, lengths = (token_level_rewards * response_mask).sum(1), response_mask.sum(1)
    out = torch.zeros_like(scores)
    for name in set(index.tolist()):
        own = torch.tensor([one == name for one in index.tolist()])
        out[own] = scores[own] - (scores[own] * lengths[own]).sum() / lengths[own].sum()
    return out[:, None] * response_mask


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (over_the_mean, "reward - group mean, over the positive group mean"),
        (then_whitened, "reward - group mean, whitened over answers, n - 1"),
        (best_only, "lead of the best"),
        (between_extremes, "reward between the extremes of its group"),
        (of_those_that_vote, "reward - group mean, of answers that vote"),
        (opo, "reward - mean by trained length"),
    ],
)
def test_rewards_inside_their_group_are_recognised(fn: Callable[..., object], formula: str) -> None:
    assert fits(fn) == [(formula, "")]
