"""The only place that makes sums and differences: `23+41=` is answered by `64` and the end token."""

import random

from trimtab.rollout.task import Problem
from trimtab.rollout.tasks.generated import Kind

OPERANDS_PER_SIZE = 10
"""Operands lie below ten times the size: size 1 asks one-digit sums, size 10 two-digit ones."""


def arithmetic(size: int) -> Kind:
    """Add or subtract two numbers; a difference may be negative."""

    def problem(stream: random.Random) -> Problem:
        left, right = stream.randrange(OPERANDS_PER_SIZE * size), stream.randrange(OPERANDS_PER_SIZE * size)
        sign = stream.choice("+-")
        return Problem(prompt=f"{left}{sign}{right}=", answer=str(left + right if sign == "+" else left - right))

    return Kind("arithmetic", "0123456789+-=", problem)
