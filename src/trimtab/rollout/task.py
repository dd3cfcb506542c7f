"""The only place that knows what is asked, what the right answer is, and which prompts are held out.

A task generates its problems, so a run needs no data set. It knows nothing of tokens, models or groups.
"""

import hashlib
import random
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from trimtab.errors import ConfigError, unknown_name

Split = Literal["train", "validation", "test"]
"""`validation` may steer a run (when to stop); `test` is looked at once, at the end, so nothing is chosen on it."""

SPLIT_BUCKETS = 10
"""One bucket of ten is validation, one is test, eight train: 80 % of the prompts are left to learn from."""


@dataclass(frozen=True)
class Problem:
    """One prompt and its right answer.

    >>> Problem(prompt="58213=", answer="31285").answer
    '31285'
    """

    prompt: str
    answer: str


class Task(Protocol):
    """What a generated task offers; sorting or arithmetic are other classes with these four members."""

    @property
    def name(self) -> str:
        """The name in a run file."""
        ...

    @property
    def alphabet(self) -> str:
        """Every character that a prompt or a right answer can hold; the tokenizer is built from it."""
        ...

    def problem(self, stream: random.Random) -> Problem:
        """One problem drawn from the whole space, whichever split it falls in."""
        ...

    def reward(self, problem: Problem, answer: str, *, ended: bool) -> float:
        """The reward of one answer; `ended` says that the policy closed it itself."""
        ...


@dataclass(frozen=True)
class Reverse:
    """Write the digits backwards: `58213=` is answered by `31285` and the end token.

    >>> Reverse(num_digits=3).reward(Problem("123=", "321"), "321", ended=True)
    1.0
    """

    num_digits: int = 5

    @property
    def name(self) -> str:
        return "reverse"

    @property
    def alphabet(self) -> str:
        return "0123456789="

    def problem(self, stream: random.Random) -> Problem:
        digits = "".join(stream.choice("0123456789") for _ in range(self.num_digits))
        return Problem(prompt=f"{digits}=", answer=digits[::-1])

    def reward(self, problem: Problem, answer: str, *, ended: bool) -> float:
        """1 for the exact answer, closed by the end token; else 0."""
        return float(ended and answer == problem.answer)


TASKS: dict[str, Task] = {"reverse": Reverse()}


def task(name: str) -> Task:
    """The task of that name."""
    if name not in TASKS:
        raise ConfigError(unknown_name("task", name, sorted(TASKS)))
    return TASKS[name]


def split_of(prompt: str) -> Split:
    """The split a prompt belongs to, by a hash of its text: the same in every run, seed and process."""
    bucket = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % SPLIT_BUCKETS
    named: dict[int, Split] = {0: "test", 1: "validation"}
    return named.get(bucket, "train")


def draw(task: Task, stream: random.Random, num_problems: int, split: Split) -> list[Problem]:
    """Problems of one split: drawn with replacement for `train`, all different for the two held-out splits."""
    if split not in get_args(Split):
        raise ConfigError(unknown_name("draw", split, list(get_args(Split))))
    drawn: list[Problem] = []
    seen: set[str] = set()
    tries = 0
    while len(drawn) < num_problems:
        problem = task.problem(stream)
        tries += 1
        if tries > 100 * SPLIT_BUCKETS * max(num_problems, SPLIT_BUCKETS):
            raise ConfigError(
                f"draw: {tries} draws gave {len(drawn)} of {num_problems} {split} problems, so task {task.name!r} "
                "does not have that many. Ask for fewer prompts, or make the task larger."
            )
        if split_of(problem.prompt) != split or (split != "train" and problem.prompt in seen):
            continue
        seen.add(problem.prompt)
        drawn.append(problem)
    return drawn
