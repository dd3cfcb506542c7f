"""Facts of a binding that nobody wrote: masks under other names, whitening beside groups, settings at usable values."""

from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Subject, check
from trimtab.sentinel.binding.callable import of_function
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.binding.words import fields_of


def guessed(fn: Any) -> Subject:
    return subject_of(lambda bounds=False: of_function(fn, bounds=bounds))


def test_the_only_mask_of_numbers_per_token_says_which_of_them_count() -> None:
    assert fields_of(["per_token_logps", "advantages", "attention_mask"])["attention_mask"] == "trainable"
    assert fields_of(["per_token_logps", "attention_mask", "loss_mask"])["attention_mask"] == "attention"
    assert fields_of(["logits", "input_ids", "attention_mask"])["attention_mask"] == "attention"
    assert fields_of(["rewards", "attention_mask"])["attention_mask"] == "attention"


def whitened_baseline(token_level_rewards: Tensor, response_mask: Tensor, index: Any) -> Tensor:
    scores = (token_level_rewards * response_mask).sum(-1)
    names = list(index)
    centre = torch.stack([scores[[i for i, n in enumerate(names) if n == name]].mean() for name in names])
    credit = (scores - centre)[:, None] * response_mask
    mean = (credit * response_mask).sum() / response_mask.sum().clamp(min=1)
    spread = (((credit - mean) ** 2 * response_mask).sum() / response_mask.sum().clamp(min=1)).sqrt()
    return (credit - mean) / (spread + 1e-6) * response_mask


def of_another_group(token_level_rewards: Tensor, response_mask: Tensor, index: Any) -> Tensor:
    scores = (token_level_rewards * response_mask).sum(-1)
    names = list(index)
    centre = torch.stack([scores[[i for i, n in enumerate(names) if n == name]].mean() for name in names])
    return (scores - centre.roll(1))[:, None] * response_mask


def test_advantages_that_are_whitened_after_a_baseline_couple_the_batch() -> None:
    assert guessed(whitened_baseline).couples == "batch"
    assert check(guessed(whitened_baseline), "group_isolation", examples=1).status != "bug"
    assert guessed(of_another_group).couples == "group"
    found = check(guessed(of_another_group), "group_isolation", examples=1)
    assert found.status == "suspect"  # which samples may move one another is a guess, too


def by_length(
    log_probs: Tensor, ref_log_probs: Tensor, advantages: Tensor, mask: Tensor, beta: float = 0.1, max_length: int = 8
) -> Tensor:
    gap = ref_log_probs - log_probs
    loss = -advantages * log_probs + beta * (gap.exp() - gap - 1)
    return (loss * mask).sum() / (len(loss) * max_length)


def test_a_length_of_0_switches_nothing_off() -> None:
    assert dict(guessed(by_length).penalties) == {"beta": "logp_ref"}


def inside(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, config: Any) -> Tensor:
    ratio = (log_probs - rollout_log_probs).exp()
    return mask.bool() & (ratio >= config.mask_low) & (ratio <= config.mask_high)


def test_a_decision_that_keeps_nothing_where_policies_agree_was_given_settings_it_cannot_use() -> None:
    subject = guessed(inside)
    assert subject.options["config"].mask_high > 1
    assert check(subject, "options_take_sides", examples=1).status == "holds"


def weighed(per_token_loss: Tensor, log_probs: Tensor, old_log_probs: Tensor, cap: float) -> Tensor:
    return per_token_loss * (log_probs - old_log_probs).detach().exp().clamp(max=cap)


def test_log_probs_that_only_weigh_a_loss_need_no_gradient() -> None:
    assert check(guessed(weighed), "connected", examples=1).status == "holds"


def share_solved(scores: Tensor, index: Any) -> float:
    names = list(index)
    best = [max(float(s) for s, n in zip(scores, names, strict=True) if n == name) for name in dict.fromkeys(names)]
    return sum(one > 0.5 for one in best) / len(best)


def test_one_number_about_rewards_of_groups_is_a_metric() -> None:
    assert guessed(share_solved).role == "metric"
