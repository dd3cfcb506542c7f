"""The only place that turns an answer into a verdict: a reward, or the reason why there is none.

Judges of this package are small and run here; those of the user and of other packages run in `reward_pool`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from trimtab.errors import ConfigError, unknown_name
from trimtab.rollout.numeric import number_in
from trimtab.rollout.task import Problem, Task, is_exact

if TYPE_CHECKING:
    from trimtab.config.train import TaskSettings

Status = Literal["ok", "error", "timeout", "abstain"]
"""Only `ok` has a reward; the other three neither vote in their group nor train."""


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
        return [self._one(attempt) for attempt in attempts]

    def close(self) -> None:
        """Nothing was started."""

    def _one(self, attempt: Attempt) -> Verdict:
        try:
            return Verdict.of(self.judge(attempt))
        except Exception as error:  # a task of the user's own may raise; one answer must not end the run
            return Verdict.failed("error", f"{type(error).__name__}: {error}")


def exact(attempt: Attempt) -> float:
    """1 for the right text, closed by the policy itself; else 0."""
    return is_exact(attempt.problem, attempt.answer, ended=attempt.ended)


def numeric(attempt: Attempt) -> float:
    """1 for the right number (behind `####`, or else the last one), closed by the policy itself; else 0."""
    right = number_in(attempt.problem.answer)
    if right is None:
        raise ConfigError(
            f"reward numeric: the right answer {attempt.problem.answer!r} holds no number, so nothing can be compared. "
            "Use another reward, or repair the row."
        )
    return float(attempt.ended and number_in(attempt.answer) == right)


def open_scorer(settings: "TaskSettings", task: Task) -> Scorer:
    """The judge that a run file names."""
    if settings.reward == "task":
        return Here(lambda attempt: task.judge(attempt.problem, attempt.answer, ended=attempt.ended))
    if settings.reward == "exact":
        return Here(exact)
    if settings.reward == "numeric":
        return Here(numeric)
    choices = ["task", "exact", "numeric", "math_verify", "module:function"]
    raise ConfigError(unknown_name("reward", settings.reward, choices))
