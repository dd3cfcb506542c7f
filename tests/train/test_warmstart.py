import math

import pytest

from trimtab.config.train import TaskSettings, TrainSettings
from trimtab.rollout.task import Problem, open_task
from trimtab.train import warmstart
from trimtab.train.policy import Policy, new_policy
from trimtab.train.warmstart import demonstrations, warm_start


def test_right_answers_train_and_prompts_do_not(policy: Policy, small: TrainSettings) -> None:
    task = open_task(small.task, seed=0)
    given = demonstrations(policy, task, [Problem("12=", "21"), Problem("345=", "543")])
    assert given.length.tolist() == [6, 8]
    for ids, trains, prompt, answer in zip(
        given.ids.split([6, 8]), given.trainable.split([6, 8]), ("12=", "345="), ("21", "543"), strict=True
    ):
        assert policy.tokenizer.decode(ids[~trains]) == prompt
        assert policy.tokenizer.decode(ids[trains]) == f"{answer}<eos>"


def test_what_the_environment_says_does_not_train(small: TrainSettings) -> None:
    task = open_task(TaskSettings(name="calculator"), seed=0)
    policy = new_policy(small.model, task.alphabet, seed=0)
    problem = task.train(0)
    given = demonstrations(policy, task, [problem])
    turns = task.demonstration(problem)
    assert len(turns) == 2
    assert policy.tokenizer.decode(given.ids[given.trainable]) == "".join(f"{turn}<eos>" for turn in turns)
    assert given.turn.unique().tolist() == [0, 1]


def test_supervised_steps_lower_the_loss_however_they_are_cut(policy: Policy, small: TrainSettings) -> None:
    first = warm_start(policy, small.model_copy(update={"warm_start_steps": 1}))
    last = warm_start(policy, small.model_copy(update={"warm_start_steps": 15, "max_tokens_per_micro_batch": 40}))
    assert last < 0.6 * first


def test_it_says_how_far_it_is(policy: Policy, small: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(warmstart, "SAY_SECONDS", math.inf)
    _ = warm_start(policy, small.model_copy(update={"warm_start_steps": 2}), say=said.append)
    assert said == []  # a quick one needs no words
    monkeypatch.setattr(warmstart, "SAY_SECONDS", 0.0)
    loss = warm_start(policy, small.model_copy(update={"warm_start_steps": 2}), say=said.append)
    assert [one.split(" supervised")[0] for one in said] == ["warm start: 1 of 2", "warm start: 2 of 2"]
    assert said[1].endswith(f", {loss:.3f} nats per token")


def test_it_stops_when_asked(policy: Policy, small: TrainSettings) -> None:
    before = [parameter.clone() for parameter in policy.model.parameters()]
    _ = warm_start(policy, small, stopped=lambda: True)
    assert all((a == b).all() for a, b in zip(before, policy.model.parameters(), strict=True))
