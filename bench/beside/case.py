"""The only place that says what both sides train: model, prompts, reward, batch and optimiser.

Prompts and rewards are Trimtab's tasks; TRL gets the same prompts in the same order. Every model has a vocabulary of
64 characters. In the long-tailed case the model is left as it was drawn: each of the 64 ids, the end token included,
is about as likely as the others, so that lengths are geometric with mean 64, cut at 96: mean 49, a fifth of them cut.
Its reward is a coin hidden in the text, and its learning rate so low that the lengths stay what they are.
"""

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trimtab.config.train import ModelSettings, TaskSettings, TrainSettings
from trimtab.rollout.task import OneTurn, Problem, Split, Task, distinct, open_task
from trimtab.train.policy import load, new_policy, save
from trimtab.train.warmstart import warm_start

CHARACTERS = "0123456789=abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
"""With the three special tokens, 64 ids."""
PROMPTS, ANSWERS = 32, 8
RECIPE = "start_on_policy"
"""REINFORCE with group mean and std, token mean: what TRL's `dapo` loss is when every batch is used once."""


@dataclass(frozen=True)
class Case:
    """One model on one task."""

    name: str
    text: str
    model: ModelSettings
    task: TaskSettings
    max_new_tokens: int
    lr: float
    warm_start_steps: int
    is_learnable: bool = True
    seed: int = 0

    def open_task(self) -> Task:
        return open_task(self.task, self.seed)


SMALL = ModelSettings(hidden_size=64, num_layers=2, num_heads=4, mlp_size=256)
LARGER = ModelSettings(hidden_size=128, num_layers=4, num_heads=4, mlp_size=512)
CASES = {
    one.name: one
    for one in (
        Case("small", "0.14M parameters, sort-5", SMALL, TaskSettings(), 8, 2e-4, 50),
        Case("larger", "1.07M parameters, sort-5", LARGER, TaskSettings(), 8, 1e-4, 50),
        Case(
            "long", "0.14M parameters, long-tailed answers", SMALL,
            TaskSettings(name="bench.beside.case:coins"), 96, 1e-7, 0, is_learnable=False,
        ),
    )
}  # fmt: skip


class Coins:
    """Six characters as the prompt; the reward is one bit of a hash of the answer, so nothing can be learned."""

    name: str = "coins"
    alphabet: str = CHARACTERS

    def __init__(self, settings: TaskSettings, seed: int) -> None:
        del settings
        self._seed: int = seed

    def train(self, ticket: int) -> Problem:
        return self._drawn(f"{self._seed} {ticket}")

    def held_out(self, split: Split, count: int) -> list[Problem]:
        drawn = (self._drawn(f"{split} {number}") for number in range(100 * count))
        return distinct(drawn, split, count, name=self.name, widen="draw more")

    def environment(self, problem: Problem) -> OneTurn:
        return OneTurn(problem)

    def demonstration(self, problem: Problem) -> tuple[str, ...]:
        return (problem.answer,)

    def judge(self, problem: Problem, answer: str, *, ended: bool) -> float:
        del ended
        return float(hashlib.sha256(f"{problem.text}{answer}".encode()).digest()[0] & 1)

    def _drawn(self, name: str) -> Problem:
        stream = random.Random(name)
        return Problem(prompt="".join(stream.choice(CHARACTERS) for _ in range(5)) + "=", answer="0")


def coins(settings: TaskSettings, seed: int) -> Coins:
    return Coins(settings, seed)


def write_start(case: Case, folder: Path) -> None:
    """The model that both sides start from, as a folder that transformers loads."""
    policy = new_policy(case.model, CHARACTERS, case.seed)
    if case.warm_start_steps:
        settings = TrainSettings(model=case.model, task=case.task, warm_start_steps=case.warm_start_steps)
        _ = warm_start(policy, settings)
    save(policy, folder)


def accuracy(case: Case, folder: Path) -> float:
    """Greedy held-out accuracy of a model folder, by the same judge for both sides."""
    from trimtab.rollout.weights import digest
    from trimtab.train.evaluate import evaluate
    from trimtab.train.policy import published
    from trimtab.train.setup import new_collector, new_engine

    policy = load(folder)
    settings = TrainSettings(task=case.task, max_new_tokens=case.max_new_tokens)
    judge = new_collector(policy, settings, engine=new_engine(policy, settings, exact=True))
    state = published(policy.model)
    judge.engine.load(state, 0, digest(state))
    with torch.inference_mode():
        found: Any = evaluate(judge, case.open_task().held_out("test", 512), max_new_tokens=case.max_new_tokens)
    return float(found.accuracy)
