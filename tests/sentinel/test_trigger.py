"""How the perturbed case differs from the one that is drawn: before and after, as data and in words."""

import json
from typing import Any

import torch
from tests.sentinel.made import TEACHING, sample, verdict

from trimtab.sentinel import bind, check
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.batch.perturb import drifted, in_single, paid, silenced
from trimtab.sentinel.examination.record import verdict_data
from trimtab.sentinel.examination.trigger import MOST, trigger
from trimtab.sentinel.reports import RENDERERS
from trimtab.sentinel.reports.wording import changed


def some_case() -> Case:
    return Case(
        (("p", "a", "o", "a"), ("p", "a")),
        {"logp_current": torch.full((6,), -1.0).double(), "logp_old": -torch.arange(1, 7).double()},
        {"reward": torch.tensor([0.5, 1.0]).double(), "group": torch.tensor([0, 0])},
    )


def words(before: Case, after: Case, *reads: str) -> list[str]:
    changes, rest = trigger(before, after, frozenset(reads))
    said: Any = {"trigger": changes, "trigger_left_out": rest}
    return changed(said)


def test_a_reward_that_was_changed_is_told_with_its_sequence() -> None:
    one = some_case()
    assert trigger(one, paid(one, torch.tensor([False, True]), 100.0)) == (
        [{"field": "reward", "place": "sequence 1", "before": 1.0, "after": 100.0}],
        0,
    )


def test_content_of_padding_is_told_once_and_not_per_token() -> None:
    one = some_case().refilled(0.0)
    assert words(one, one.refilled(float("nan"), extra_columns=2, side="left")) == [
        "content of padding and untrainable tokens: 0 → nan",
        "columns of padding: 0 → 2",
        "side of the padding: right → left",
    ]


def test_a_token_is_told_with_its_place_in_its_sequence() -> None:
    one = some_case()
    logp = one.tokens["logp_current"].clone()
    logp[3] = -30.5
    assert words(one, one.with_tokens(logp_current=logp)) == ["logp_current of token 3 of sequence 0: -1 → -30.5"]


def test_a_field_that_moved_as_a_whole_is_one_change_and_only_fields_that_are_read_are_told() -> None:
    one = some_case().with_tokens(
        logp_rollout=torch.full((6,), -1.0).double(), logp_old=torch.full((6,), -1.0).double()
    )
    far = in_single(drifted(one, 100.0))
    assert words(one, far, "logp_old") == [
        "logp_old of every token: -1 → -101",
        "dtype: torch.float64 → torch.float32",
    ]


def test_sequences_that_went_away_or_moved_and_tokens_that_do_not_train_any_more() -> None:
    one = some_case()
    assert words(one, one.taken([1], as_part=False)) == ["sequences without 0: 2 → 1"]
    assert words(one, one.taken([1, 0], as_part=False)) == ["order of sequences: [0, 1] → [1, 0]"]
    assert words(one, silenced(one, [1])) == ["tokens of sequence 1: p a → p o"]
    (split,) = words(one, one.taken([0], as_part=True))
    assert split == "batch: 2 sequences in one call → split; the first part has 1 of them"


def test_many_changes_are_counted() -> None:
    long = next(case for case in directed() if case.trainable.numel() > MOST)
    moved = long.with_tokens(logp_old=long.tokens["logp_old"] - torch.arange(1, long.trainable.numel() + 1))
    said = words(long, moved, "logp_old")
    assert len(said) == MOST + 1
    assert said[-1] == f"… and {long.trainable.numel() - MOST} more"
    assert trigger(long, long) == ([], 0)


def leaky(log_probs: torch.Tensor, advantages: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    return -(log_probs * advantages).mean() + 0 * response_mask.sum()


def test_a_verdict_holds_its_trigger_and_reports_draw_it_before_the_numbers() -> None:
    subject = bind(leaky, role="policy_loss")
    found = verdict_data("own", subject, check(subject, "mask_content", examples=1))
    assert found["violation"] is not None
    assert found["violation"].get("result") == "loss"
    first = found["violation"].get("trigger", [])[0]
    assert (first["field"], first["before"]) == ("content", 0.0)
    for name in ("text", "markdown", "junit"):
        said = RENDERERS[name](sample([found]), TEACHING, None)
        places = [
            said.index(word) for word in ("changed   content of padding", "before    ", "drawn before the change")
        ]
        assert places == sorted(places)
    (run,) = json.loads(RENDERERS["sarif"](sample([found]), TEACHING, None))["runs"]
    assert "Changed: content of padding and untrainable tokens: 0 →" in run["results"][0]["message"]["text"]
    assert "<li>content of padding and untrainable tokens: 0 →" in RENDERERS["html"](sample([found]), TEACHING, None)


def test_it_is_said_whether_the_case_is_drawn_before_or_after_the_change() -> None:
    subject = bind(leaky, role="policy_loss")
    found = verdict_data("own", subject, check(subject, "credit_over_trainable", examples=1))
    assert found["violation"] is not None
    assert found["violation"].get("trigger", [])[0]["field"] == "tokens"
    assert "drawn after the change" in RENDERERS["text"](sample([found]), TEACHING, None)


def mixed(rewards: torch.Tensor) -> torch.Tensor:
    return rewards - rewards.mean()


def test_the_sample_that_was_changed_is_told_where_others_moved() -> None:
    subject = bind(mixed, role="group_advantage", args={"rewards": "reward"})
    found = verdict_data("own", subject, check(subject, "group_isolation", examples=1))
    assert found["violation"] is not None
    assert {one["field"] for one in found["violation"].get("trigger", [])} >= {"reward"}


def test_a_violation_without_a_second_case_is_told_by_its_sentence() -> None:
    said = RENDERERS["text"](sample([verdict("f", "split", "bug")]), TEACHING, None)
    assert "changing the reward of a suppressed row moves another row's advantage" in said
    assert "drawn before the change" not in said
