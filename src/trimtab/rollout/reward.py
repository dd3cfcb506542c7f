"""The only place that turns an answer into a verdict: a reward, or the reason why there is none.

Judges of this package are small and run here; those of the user and of other packages run in `reward_pool`.
"""

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from trimtab.errors import ConfigError, MissingExtra, unknown_name
from trimtab.rollout.episode import Status
from trimtab.rollout.numeric import number_in
from trimtab.rollout.task import Problem, Prompt, Task, is_exact
from trimtab.signal.door import LARGEST

if TYPE_CHECKING:
    from trimtab.config.train import TaskSettings


@dataclass(frozen=True)
class Attempt:
    """One episode as a judge sees it."""

    problem: Problem
    answer: str
    """The text of the last turn."""
    completion: str
    """All that the policy wrote."""
    ids: tuple[int, ...]
    """The ids of `completion`."""
    ended: bool
    """The policy closed its last turn itself."""
    earned: float | None = None
    """What the environment itself paid; None if it leaves that to the task."""


@dataclass(frozen=True)
class Verdict:
    """What a judge says. `reward` is nan unless `status` is ok.

    >>> Verdict.of(1.0).status, Verdict.of(None).status, Verdict.of(float("inf")).status
    ('ok', 'abstain', 'error')
    """

    status: Status
    reward: float
    message: str = ""

    @classmethod
    def of(cls, reward: float | None) -> "Verdict":
        """A number is a reward, None abstains, and a number that is not finite is an error."""
        if reward is None:
            return cls("abstain", math.nan)
        if not math.isfinite(reward):
            return cls("error", math.nan, f"the reward is {reward}; only finite numbers can be learned from")
        if abs(reward) > LARGEST:
            return cls(
                "error", math.nan, f"the reward is {reward:g}; float32 cannot compare numbers beyond {LARGEST:g}"
            )
        return cls("ok", float(reward))

    @classmethod
    def failed(cls, status: Status, message: str) -> "Verdict":
        return cls(status, math.nan, message)


class Scorer(Protocol):
    """Judges episodes, as many at a time as there are."""

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """One verdict for each attempt, in order; a judge that fails costs its own attempt, never the call."""
        ...

    def close(self) -> None:
        """End whatever the scorer started."""
        ...


@dataclass(frozen=True)
class Here:
    """A `Scorer` that calls a judge in this process."""

    judge: Callable[[Attempt], float | None]

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        return [self._judge(attempt) for attempt in attempts]

    def close(self) -> None:
        """Nothing was started."""

    def _judge(self, attempt: Attempt) -> Verdict:
        try:
            return Verdict.of(self.judge(attempt))
        except ConfigError:  # a setting or a row is wrong, so every answer would fail
            raise
        except Exception as error:  # a task of the user's own may raise; one answer must not end the run
            return Verdict.failed("error", f"{type(error).__name__}: {error}")


def exact(attempt: Attempt) -> float:
    """1 for the right text, closed by the policy itself; else 0."""
    return is_exact(attempt.problem, attempt.answer, ended=attempt.ended)


def numeric(attempt: Attempt) -> float:
    """1 for the right number (after `####`, or else the last one), closed by the policy itself; else 0."""
    right = number_in(attempt.problem.answer)
    if right is None:
        raise ConfigError(
            f"reward numeric: the right answer {attempt.problem.answer!r} holds no number, so nothing can be compared. "
            "Use another reward, or repair the row."
        )
    return float(attempt.ended and number_in(attempt.answer) == right)


Columns = Mapping[str, Sequence[object]]
"""A function's keyword arguments: one value for each answer."""


class Workers(Protocol):
    """Processes that hold one function."""

    def judge(self, columns: Columns, count: int) -> list[Verdict]:
        """One verdict for each of `count` answers, in order."""
        ...

    def close(self) -> None: ...


Hire = Callable[[str, tuple[str, ...], Mapping[str, object]], Workers]
"""Starts workers for a function, the names of its columns, and its options."""


@dataclass(frozen=True)
class InWorkers:
    """A `Scorer` that calls a function with TRL's signature in child processes."""

    waits: ClassVar[bool] = True
    """A call waits for other processes, so it is made in a thread while sampling goes on."""
    pool: Workers
    last_turn_only: bool = False
    """Judge the last turn only. A function of the user's own gets all that the policy wrote."""

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        columns: dict[str, list[object]] = {
            "prompts": [_plain(attempt.problem.prompt) for attempt in attempts],
            "completions": [self._completion(attempt) for attempt in attempts],
            "completion_ids": [attempt.ids for attempt in attempts],
            "ended": [attempt.ended for attempt in attempts],
        }
        rows = [columns_of(attempt.problem) for attempt in attempts]
        for name in dict.fromkeys(name for row in rows for name in row):
            columns[name] = [row.get(name) for row in rows]
        return self.pool.judge(columns, len(attempts))

    def close(self) -> None:
        self.pool.close()

    def _completion(self, attempt: Attempt) -> object:
        """In TRL's form: a text for a text prompt, one message for a chat."""
        text = attempt.answer if self.last_turn_only else attempt.completion
        return text if isinstance(attempt.problem.prompt, str) else [{"role": "assistant", "content": text}]


def columns_of(problem: Problem) -> dict[str, object]:
    """What a reward function gets by name: the right answer and the free columns."""
    return {"answer": problem.answer, **problem.columns}


def _plain(prompt: Prompt) -> object:
    return prompt if isinstance(prompt, str) else list(prompt)


def open_scorer(settings: "TaskSettings", task: Task, hire: Hire | None = None) -> Scorer:
    """Open the judge that a run file names. One that needs processes is started, and refused if it does not load.

    `hire` starts these processes elsewhere.
    """
    if settings.reward == "task":
        if settings.name.startswith("reasoning_gym."):
            return _in_workers(settings, task, settings.name, settings.options, hire)
        return Here(lambda attempt: _by_task(task, attempt))
    if settings.reward == "exact":
        return Here(exact)
    if settings.reward == "numeric":
        return Here(numeric)
    if settings.reward == "math_verify":
        _require("math_verify", "math", "reward math_verify")
        return _in_workers(settings, task, "math_verify", {}, hire)
    if ":" in settings.reward:
        return _in_workers(settings, task, settings.reward, {}, hire)
    choices = ["task", "exact", "numeric", "math_verify", "module:function"]
    raise ConfigError(unknown_name("reward", settings.reward, choices))


def _by_task(task: Task, attempt: Attempt) -> float:
    """What the episode's environment paid, or else what the task says of its last turn."""
    if attempt.earned is not None:
        return attempt.earned
    return task.judge(attempt.problem, attempt.answer, ended=attempt.ended)


def _in_workers(
    settings: "TaskSettings", task: Task, target: str, options: Mapping[str, object], hire: Hire | None
) -> Scorer:
    from trimtab.rollout.reward_pool import RewardPool

    names = tuple(columns_of(task.train(0)))
    if hire is None:
        pool: Workers = RewardPool(target, settings.reward_workers, settings.reward_seconds, names, options)
    else:
        pool = hire(target, names, options)
    return InWorkers(pool, last_turn_only=":" not in target)


def _require(package: str, extra: str, where: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(
            f"{where}: the package {package} is not installed, so answers cannot be judged with it. "
            f'Run pip install "trimtab[{extra}]".'
        )
