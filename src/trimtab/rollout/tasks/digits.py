"""The only place that makes the tasks on a row of digits: write them backwards, or in order."""

import random

from trimtab.rollout.task import Problem
from trimtab.rollout.tasks.generated import Kind

ALPHABET = "0123456789="


def reverse(size: int) -> Kind:
    """Write the digits backwards: `58213=` is answered by `31285` and the end token."""

    def problem(stream: random.Random) -> Problem:
        digits = _digits(stream, size)
        return Problem(prompt=f"{digits}=", answer=digits[::-1])

    return Kind("reverse", ALPHABET, problem)


def sort(size: int) -> Kind:
    """Write the digits from low to high: `58213=` is answered by `12358` and the end token."""

    def problem(stream: random.Random) -> Problem:
        digits = _digits(stream, size)
        return Problem(prompt=f"{digits}=", answer="".join(sorted(digits)))

    return Kind("sort", ALPHABET, problem)


def _digits(stream: random.Random, size: int) -> str:
    return "".join(stream.choice("0123456789") for _ in range(size))
