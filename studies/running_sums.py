"""The task of studies/long_answers.toml: add twelve digits one by one, and write every step down."""

import random
import string

from trimtab.config.train import TaskSettings
from trimtab.rollout import Problem
from trimtab.rollout.numeric import number_after_mark
from trimtab.rollout.tasks import Generated, Kind

TERMS = 12


def running_sums(settings: TaskSettings, seed: int) -> Generated:
    """Answers have about 93 characters, one token each; one wrong step spoils the result."""
    del settings  # there is one size
    return Generated(Kind("running_sums", f"{string.digits}+=# \n", _problem, judge=_judge), seed)


def _problem(stream: random.Random) -> Problem:
    digits = [stream.randint(1, 9) for _ in range(TERMS)]
    total, steps = digits[0], list[str]()
    for digit in digits[1:]:
        steps.append(f"{total}+{digit}={total + digit}")
        total += digit
    return Problem(prompt="+".join(map(str, digits)) + "=\n", answer="\n".join([*steps, f"#### {total}"]))


def _judge(problem: Problem, answer: str, *, ended: bool) -> float:
    """1 for the right number after `####`, closed by the policy itself; the steps are not judged."""
    return float(ended and number_after_mark(answer) == number_after_mark(problem.answer))
