"""The only place that trains from a data file: which row a ticket asks, and which rows are held out.

`table` reads the file. A changed file is another task.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Environment, OneTurn, Problem, Split, is_exact, split_of
from trimtab.rollout.tasks.table import read_problems
from trimtab.rollout.tokenizer import CHAT_OPENING

if TYPE_CHECKING:
    from pathlib import Path

    from trimtab.config.train import TaskSettings

NEEDS_ANSWER = ("task", "exact", "numeric", "math_verify")
"""Rewards that compare with the right answer. A reward of your own may not need one."""


@dataclass(frozen=True)
class FileTask:
    """Problems of a file. Every epoch visits each training row once, in an order of its own."""

    rows: tuple[Problem, ...]
    validation: tuple[Problem, ...]
    test: tuple[Problem, ...]
    seed: int
    where: str
    alphabet: str
    _orders: dict[int, list[int]] = field(default_factory=dict[int, list[int]], compare=False, repr=False)

    @property
    def name(self) -> str:
        return "file"

    def train(self, ticket: int) -> Problem:
        epoch, place = divmod(ticket, len(self.rows))
        return self.rows[self._order(epoch)[place]]

    def held_out(self, split: Split, count: int) -> list[Problem]:
        """Up to `count` problems; fewer if the file has fewer."""
        if split == "train":
            raise ConfigError("held_out: the split 'train' is not held out. Ask for validation or test.")
        return list((self.validation if split == "validation" else self.test)[:count])

    def environment(self, problem: Problem) -> Environment:
        return OneTurn(problem)

    def demonstration(self, problem: Problem) -> tuple[str, ...]:
        if not problem.answer:
            raise ConfigError(
                f"{self.where}: the row of prompt {problem.text[:60]!r} has no answer, so the warm start has nothing "
                "to teach. Set train.warm_start_steps=0, or give every row an answer."
            )
        return (problem.answer,)

    def judge(self, problem: Problem, answer: str, *, ended: bool) -> float:
        return is_exact(problem, answer, ended=ended)

    def _order(self, epoch: int) -> list[int]:
        """The rows of one epoch; two epochs are remembered, because a batch may reach into the next."""
        if epoch not in self._orders:
            order = list(range(len(self.rows)))
            random.Random(stream_seed(self.seed, "epoch", epoch)).shuffle(order)
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return self._orders[epoch]


def open_file(settings: "TaskSettings", seed: int) -> FileTask:
    """The problems of `settings.file`, and the held-out ones set apart."""
    assert settings.file is not None
    needs_answer = settings.reward in NEEDS_ANSWER
    problems = read_problems(settings.file, settings.options, needs_answer=needs_answer)
    if settings.eval_file is None:
        split = {name: [p for p in problems if split_of(p.text) == name] for name in ("train", "validation", "test")}
        _check_sizes(settings.file, len(problems), {name: len(rows) for name, rows in split.items()})
        rows, validation, test = split["train"], _settled(split["validation"]), _settled(split["test"])
    else:
        held = _settled(read_problems(settings.eval_file, settings.options, needs_answer=needs_answer))
        _check_leak(settings.file, problems, settings.eval_file, held)
        if len(held) < 2:
            raise ConfigError(
                f"{settings.eval_file}: has {len(held)} different prompt, so there is none left for the test. "
                "Give at least 2: half of them are for validation, half are for the test at the end."
            )
        middle = (len(held) + 1) // 2
        rows, validation, test = problems, held[:middle], held[middle:]
    used = [*rows, *validation, *test]
    return FileTask(tuple(rows), tuple(validation), tuple(test), seed, str(settings.file), alphabet_of(used))


def alphabet_of(problems: Sequence[Problem]) -> str:
    """Every character of the prompts and answers, and of what opens an answer in a chat."""
    found: set[str] = set()
    for problem in problems:
        found.update(problem.text, problem.answer, "" if isinstance(problem.prompt, str) else CHAT_OPENING)
    return "".join(sorted(found))


def _settled(problems: Sequence[Problem]) -> list[Problem]:
    """Different prompts in an order that does not depend on the file's."""
    different = {problem.text: problem for problem in reversed(problems)}
    return sorted(different.values(), key=lambda problem: hashlib.sha256(problem.text.encode()).digest()[::-1])


def _check_sizes(path: "Path", total: int, sizes: dict[str, int]) -> None:
    empty = [name for name, size in sizes.items() if not size]
    if empty:
        raise ConfigError(
            f"{path}: none of its {total} prompts falls into {' and '.join(empty)} (a tenth each, by a hash of the "
            "prompt), so the run could not be measured. Give more rows, or an eval_file."
        )


def _check_leak(path: "Path", problems: Sequence[Problem], eval_path: "Path", held: Sequence[Problem]) -> None:
    trained = {problem.text for problem in problems}
    leaked = [problem.text for problem in held if problem.text in trained]
    if leaked:
        raise ConfigError(
            f"{eval_path}: {len(leaked)} of its {len(held)} prompts are in {path} too (first: {leaked[0][:80]!r}), so "
            "the held-out accuracy would measure memory. Remove them from one of the two."
        )
