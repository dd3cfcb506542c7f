"""Bindings that nobody wrote, for functions whose names say little: what their bodies, layouts and words tell."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trimtab.sentinel import Subject, examine
from trimtab.sentinel.binding.callable import CannotCall, of_function
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.binding.usage import fields_by_use
from trimtab.sentinel.binding.words import fields_of


def guessed(fn: Any) -> Subject:
    return subject_of(lambda bounds=False: of_function(fn, bounds=bounds))


def at_the_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    columns = torch.arange(mask.shape[1])
    last = torch.where(mask.bool(), columns, -1).max(dim=1).values
    return torch.where(columns == last.unsqueeze(1), rewards.unsqueeze(1), 0.0) * mask


def test_columns_may_be_compared_with_one_number_per_row() -> None:
    assert "rewards = reward [rows]" in guessed(at_the_last_token).guessed


def test_rewards_that_meet_a_column_of_rewards_are_still_refused() -> None:
    def slipped(rewards: Tensor) -> Tensor:
        return (rewards > rewards.unsqueeze(1)).double().mean(0)

    with pytest.raises(CannotCall, match="broadcast"):
        guessed(slipped)


@dataclass
class Inputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    loss_mask: Tensor


def with_flags(inputs: Inputs) -> Tensor:
    gap = inputs.trainer_logprobs - inputs.inference_logprobs
    return (gap**2)[inputs.loss_mask & ~(gap.abs() > 3.0)].sum()


def test_masks_in_a_batch_are_tried_as_flags() -> None:
    assert guessed(with_flags).role == "kl_in_loss"


def of_scores(scores: Tensor, toks: Tensor) -> Tensor:
    table = (scores[:, :-1] / 0.7).log_softmax(dim=-1)
    return table.gather(2, toks[:, 1:].unsqueeze(2)).squeeze(2)


def to_weights(rewards: Tensor) -> Tensor:
    return torch.softmax(rewards, dim=0) * rewards.numel()


def test_what_a_log_softmax_is_taken_of_is_logits_whatever_it_is_called() -> None:
    subject = guessed(of_scores)
    assert subject.role == "logp"
    assert not [v for v in examine(subject, examples=1) if v.status in ("bug", "suspect")]
    assert "rewards = reward" in guessed(to_weights).guessed


def distilled(pupil: Tensor, guide: Tensor, live: Tensor) -> Tensor:
    first, second = torch.log_softmax(pupil, dim=-1), torch.log_softmax(guide, dim=-1)
    return ((second.exp() * (second - first)).sum(-1) * live).sum() / live.sum()


def test_two_tables_of_logits_are_student_and_teacher() -> None:
    told = fields_by_use(distilled, ["guide", "pupil"], {"live": "trainable"})
    assert told == {"pupil": "logits", "guide": "teacher_logits"}


def test_a_better_name_for_a_mask_leaves_weights_to_be_weights() -> None:
    assert fields_of(["w", "live"]) == {"live": "trainable", "w": "ratio"}
    assert fields_of(["x", "w"]) == {"w": "trainable", "x": "token_loss"}


def odds(policy_chosen_logps: Tensor, policy_rejected_logps: Tensor) -> Tensor:
    return -torch.nn.functional.logsigmoid(policy_chosen_logps - policy_rejected_logps)


def in_halves(per_token_logps: Tensor, loss_mask: Tensor) -> Tensor:
    chosen, rejected = (per_token_logps * loss_mask).sum(-1).chunk(2)
    return -torch.nn.functional.logsigmoid(chosen - rejected).mean()


@pytest.mark.parametrize("fn", [odds, in_halves])
def test_pairs_of_answers_are_refused_by_name(fn: Any) -> None:
    with pytest.raises(CannotCall, match=r"pair.*bind it with role='preference'"):
        guessed(fn)


def near_one_way(guess: Tensor, anchor: Tensor, goal: Tensor, live: Tensor) -> Tensor:
    near = anchor + (guess - anchor).clamp(-0.2, 0.2)
    return (torch.max((guess - goal) ** 2, (near - goal) ** 2) * live).sum() / live.sum()


def near_another_way(guess: Tensor, anchor: Tensor, goal: Tensor, live: Tensor) -> Tensor:
    near = torch.clamp(guess, min=anchor - 0.2, max=anchor + 0.2)
    return (torch.max((guess - goal).square(), (near - goal).square()) * live).sum() / live.sum()


@pytest.mark.parametrize("fn", [near_one_way, near_another_way])
def test_a_clipped_squared_error_is_about_values(fn: Any) -> None:
    told = fields_by_use(fn, ["guess", "anchor", "goal"], {"live": "trainable"})
    assert told == {"guess": "value", "anchor": "value_old", "goal": "returns"}


def backwards(guesses: list[Tensor], gains: list[Tensor], gamma: float = 0.9, lam: float = 0.95) -> list[Tensor]:
    found = []
    for guess, gain in zip(guesses, gains, strict=True):
        out, last, after = torch.zeros_like(guess), 0.0, 0.0
        for t in reversed(range(len(guess))):
            delta = gain[t] + gamma * after - guess[t]
            last = delta + gamma * lam * last
            after = guess[t]
            out[t] = last
        found.append(out.detach())
    return found


def test_the_error_of_one_step_tells_rewards_from_values() -> None:
    assert fields_by_use(backwards, ["guesses", "gains"], {}) == {"gains": "reward", "guesses": "value"}


def test_two_assignments_in_one_line_are_followed() -> None:
    def solved(hits: list[float], tasks: list[int]) -> list[float]:
        scores, owners = torch.tensor(hits), torch.tensor(tasks)
        return [float(scores[owners == owner].mean()) for owner in owners.unique()]

    assert fields_by_use(solved, ["hits", "tasks"], {}) == {"tasks": "group", "hits": "reward"}


def test_a_single_letter_is_any_numbers_unless_its_use_says_more() -> None:
    def weigh(t: Any, i: Any, hi: float) -> list[Tensor]:
        return [torch.exp(one.detach() - other).clamp(max=hi) for one, other in zip(t, i, strict=True)]

    subject = guessed(weigh)
    assert subject.role == "importance"
    assert subject.options["hi"] > 1  # the end of an interval, and no distance from 1


def kept(log_probs: list[Tensor], old_log_probs: list[Tensor], loss_masks: list[Tensor]) -> Tensor:
    found = []
    for new, old, mask in zip(log_probs, old_log_probs, loss_masks, strict=True):
        found.append(torch.where(mask.bool(), old - new, 0.0).sum().expand_as(new) < 0.1)
    return torch.cat(found)


def test_a_list_of_rows_may_come_back_as_one_line() -> None:
    subject = guessed(kept)
    assert subject.role == "keep"
    assert "all answers in one line" in subject.guessed


def packed_advantages(
    values: np.ndarray, rewards: np.ndarray, dones: np.ndarray, response_masks: np.ndarray, gamma: float = 0.9
) -> np.ndarray:
    """Packed rows: dones is 1 at the last token of each sequence."""
    after = np.zeros(values.shape[0])
    out = np.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        after = after * (1 - dones[:, t])
        here = response_masks[:, t] > 0
        after = np.where(here, rewards[:, t] + gamma * after, after)
        out[:, t] = np.where(here, after - values[:, t], 0.0)
    return out


def without_ends(
    values: np.ndarray, rewards: np.ndarray, dones: np.ndarray, response_masks: np.ndarray, gamma: float = 0.9
) -> np.ndarray:
    """Packed rows: dones is 1 at the last token of each sequence."""
    return packed_advantages(values, rewards, dones[:, :] * 0, response_masks, gamma)


@pytest.mark.slow
def test_packed_rows_hold_several_sequences() -> None:
    right, wrong = ([v.invariant for v in examine(guessed(fn), examples=1) if v.status in ("bug", "suspect")]
                    for fn in (packed_advantages, without_ends))  # fmt: skip
    assert right == []
    assert "sample_isolation" in wrong


def rolled(data: dict[str, Tensor]) -> Tensor:
    """Position t is about token t + 1."""
    mask = torch.roll(data["loss_mask"], shifts=-1, dims=-1).bool()
    mask[:, -1] = False
    old = torch.roll(data["logprobs"], shifts=-1, dims=-1)
    return torch.where(mask, old - data["ref_logp"], 0.0)


def test_what_a_body_rolls_lies_one_position_before_its_token() -> None:
    subject = guessed(rolled)
    assert subject.role == "kl"
    assert not [v for v in examine(subject, examples=1) if v.status in ("bug", "suspect")]


def test_reasons_are_words_and_boundaries_are_told_by_cu() -> None:
    def paid(scores: list[float], finish_reasons: list[str]) -> list[float]:
        return [s if reason == "stop" else 0.0 for s, reason in zip(scores, finish_reasons, strict=True)]

    def totals(log_probs: Tensor, old_log_probs: Tensor, cu: Tensor) -> Tensor:
        owner = torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff())
        return torch.zeros(len(cu) - 1).double().index_add(0, owner, log_probs - old_log_probs)

    assert "finish_reasons = ended [rows]" in guessed(paid).guessed
    assert "cu = boundaries" in guessed(totals).guessed


def test_a_config_that_is_enabled_does_something() -> None:
    def rescale(batch: dict[str, Any], cfg: Any) -> dict[str, Any]:
        if not cfg["enabled"]:
            return batch
        return {**batch, "rewards": batch["rewards"].clamp(max=cfg["target_max"])}

    assert guessed(rescale).role == "reward_normalisation"


def test_numbers_under_a_mask_are_any_numbers() -> None:
    def collapse(readings: list[Tensor], flags: list[Tensor]) -> Tensor:
        return torch.cat([one[flag.bool()] for one, flag in zip(readings, flags, strict=True)]).mean()

    assert fields_by_use(collapse, ["readings", "flags"], {}) == {"flags": "trainable", "readings": "token_loss"}
