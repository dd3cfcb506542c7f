"""Bindings that nobody wrote: what a function is taken for, how its arguments are filled, and what stays a guess."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trimtab.sentinel import Subject, examine
from trimtab.sentinel.binding.callable import CannotCall, of_function, of_method
from trimtab.sentinel.binding.discover import subjects_of
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.binding.words import field_of, fields_of, is_group_size, words_of


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("old_log_probs", "logp_old"), ("lp_ref", "logp_ref"), ("vllm_logprobs", "logp_rollout"), ("adv", "advantage"),
        ("newlogprob", "logp_current"), ("response_mask", "trainable"), ("sample_mask", "in_use"), ("coef_1", "ratio"),
        ("ppo_kl", "minus_log_ratio"), ("ref_logprobs_diff", "gap_to_ref"), ("num_items_in_batch", "count"),
        ("eos_token_id", "eos_id"), ("prompt_ids", "group"), ("kl_coef", None), ("how", None), ("cliprange", None),
    ],
)  # fmt: skip
def test_a_name_tells_its_field_or_nothing(name: str, field: str | None) -> None:
    assert field_of(name) == field


def test_names_beside_each_other_tell_more() -> None:
    assert words_of("newlogprob") == ["new", "logprob"]
    assert fields_of(["newlogprob", "b_logprobs"]) == {"newlogprob": "logp_current", "b_logprobs": "logp_old"}
    assert is_group_size("num_samples_per_prompt")
    assert not is_group_size("num_prompts")


def guessed(fn: Any) -> Subject:
    return subject_of(lambda bounds=False: of_function(fn, bounds=bounds))


def by_name(rewards: Tensor, index: Any) -> Tensor:
    means: dict[Any, list[Tensor]] = defaultdict(list)
    for reward, name in zip(rewards, index, strict=True):
        means[name].append(reward)
    return torch.stack([r - torch.stack(means[n]).mean() for r, n in zip(rewards, index, strict=True)])


def by_matrix(rewards: Tensor, prompts: Tensor) -> Tensor:
    return torch.stack([r - rewards[(prompts == p).all(1)].mean() for r, p in zip(rewards, prompts, strict=True)])


def by_position(rewards: Tensor, num_generations: int) -> Tensor:
    grouped = rewards.view(-1, num_generations)
    return (grouped - grouped.mean(1, keepdim=True)).flatten()


def by_key(data: dict[str, Tensor]) -> Tensor:
    out = data["rewards"].clone()
    for g in data["group_ids"].unique():
        own = data["group_ids"] == g
        out[own] = data["rewards"][own] - data["rewards"][own].mean()
    return out


@pytest.mark.parametrize(
    "fn", [by_name, by_key, *(pytest.param(fn, marks=pytest.mark.slow) for fn in (by_matrix, by_position))]
)
def test_groups_come_in_many_forms(fn: Any) -> None:
    subject = guessed(fn)
    assert subject.role in ("reward_normalisation", "group_advantage")
    assert subject.couples == "group"
    assert not [v for v in examine(subject, examples=1) if v.status in ("bug", "suspect")]


def of_rows(advantages: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    return -((advantages.unsqueeze(1) * log_probs) * mask).sum() / mask.sum()


def of_tokens(advantages: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    return -((advantages * log_probs) * mask).sum() / mask.sum()


@pytest.mark.parametrize(("fn", "shape"), [(of_rows, "[rows]"), (of_tokens, "[rows, width]")])
def test_the_shape_that_does_not_broadcast_is_kept(fn: Any, shape: str) -> None:
    assert f"advantages = advantage {shape}," in guessed(fn).guessed


class Clipped(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.low, self.high = config.clip_low, config.clip_high

    def forward(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        ratio = (log_probs - old_log_probs).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(1 - self.low, 1 + self.high) * advantages)
        return (loss * mask).sum() / mask.sum()


@pytest.mark.slow
def test_a_module_with_a_config_object_is_a_loss_and_its_findings_stay_guesses() -> None:
    subject = subject_of(lambda bounds=False: of_method(Clipped, "forward", bounds=bounds))
    assert subject.role == "policy_loss"
    assert subject.invented == {"config"}
    assert not [v for v in examine(subject, examples=1) if v.status in ("bug", "suspect")]


def banded(log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: Any) -> Tensor:
    ratio = (log_probs - rollout_log_probs).exp()
    keep = (ratio > config.low) & (ratio < config.high)
    return -(ratio * advantages * mask * keep).sum() / mask.sum()


def test_bounds_are_not_taken_for_distances() -> None:
    held = guessed(banded).options["config"]
    assert (held.low, held.high) == (0.8, 1.28)


def test_numpy_and_lists_are_spoken() -> None:
    def gae(rewards: Any, values: Any, gamma: float = 0.9, lam: float = 0.8) -> Any:
        out, after, running = np.zeros(len(rewards)), 0.0, 0.0
        for t in reversed(range(len(rewards))):
            running = rewards[t] + gamma * after - values[t] + gamma * lam * running
            out[t], after = running, values[t]
        return out

    subject = guessed(gae)
    assert subject.role == "returns"
    assert not [v for v in examine(subject, examples=1) if v.status in ("bug", "suspect")]


def test_what_nobody_knows_is_said() -> None:
    def odd(wobble: Tensor) -> Tensor:
        return wobble

    with pytest.raises(CannotCall, match="nothing is known about wobble"):
        guessed(odd)


@pytest.mark.slow
def test_a_file_is_read_function_by_function(tmp_path: Path) -> None:
    file = tmp_path / "some_losses.py"
    file.write_text(
        "def right(log_probs, advantages, mask):\n    return -(log_probs * advantages * mask).sum() / mask.sum()\n\n"
        "def wrong(log_probs, advantages, mask):\n    return -(log_probs * advantages * mask).mean()\n"
    )
    right, wrong = subjects_of(str(file))
    assert isinstance(right, Subject)
    assert isinstance(wrong, Subject)
    assert not [v for v in examine(right, examples=1) if v.status in ("bug", "suspect")]
    found = {v.invariant: v.status for v in examine(wrong, examples=1) if v.status in ("bug", "suspect")}
    assert "known_mistake" in found
    assert set(found.values()) <= {"suspect", "bug"}
