"""The only place that draws generated problems: training ones by ticket, held-out ones the same in every run."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Environment, OneTurn, Problem, Split, distinct, is_exact, tries


class Judge(Protocol):
    """The reward of an episode by its last turn."""

    def __call__(self, problem: Problem, answer: str, *, ended: bool) -> float: ...


def answer_at_once(problem: Problem) -> tuple[str, ...]:
    """The demonstration of a task with one turn."""
    return (problem.answer,)


@dataclass(frozen=True)
class Kind:
    """What makes one generated task differ from another; only `problem` has to be written for most.

    `problem` draws from the whole space, whichever split the drawn prompt falls in.
    """

    name: str
    alphabet: str
    problem: Callable[[random.Random], Problem]
    judge: Judge = is_exact
    environment: Callable[[Problem], Environment] = OneTurn
    demonstration: Callable[[Problem], tuple[str, ...]] = answer_at_once


@dataclass(frozen=True)
class Generated:
    """A `Task` that makes its problems, so that a run needs no data file.

    >>> from trimtab.rollout.tasks.digits import reverse
    >>> task = Generated(reverse(3), seed=0)
    >>> task.train(7) == task.train(7)
    True
    """

    kind: Kind
    seed: int

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def alphabet(self) -> str:
        return self.kind.alphabet

    def train(self, ticket: int) -> Problem:
        return self._draw(random.Random(stream_seed(self.seed, "train", ticket)), "train", 1)[0]

    def held_out(self, split: Split, count: int) -> list[Problem]:
        return self._draw(random.Random(stream_seed("held out", split)), split, count)

    def environment(self, problem: Problem) -> Environment:
        return self.kind.environment(problem)

    def demonstration(self, problem: Problem) -> tuple[str, ...]:
        return self.kind.demonstration(problem)

    def judge(self, problem: Problem, answer: str, *, ended: bool) -> float:
        return self.kind.judge(problem, answer, ended=ended)

    def _draw(self, stream: random.Random, split: Split, count: int) -> list[Problem]:
        candidates = (self.kind.problem(stream) for _ in range(tries(count)))
        return distinct(candidates, split, count, name=self.name, widen="make the task larger (train.task.size)")
