"""The only place with a calculator: a task whose turns may call it, and the calculator itself.

Prompt `37*48+9=`; the policy writes the call `[37*48+9]`; the environment replies `1785;`; the policy writes `1785`.
"""

import random
from dataclasses import dataclass

from trimtab.rollout.task import Problem, Prompt, Turn
from trimtab.rollout.tasks.arithmetic import OPERANDS_PER_SIZE
from trimtab.rollout.tasks.generated import Kind

MAX_CALL = 64
"""Characters of a call; longer ones are answered `?;`."""
MAX_DEPTH = 16
"""Brackets and signs inside each other, at most."""
MAX_RESULT = 10**12
"""Larger numbers, intermediate results too, are answered `?;`: an observation stays short."""
REFUSED = "?;"


class NotArithmetic(Exception):
    """A call that is not arithmetic, or whose value is too large or not an integer."""


def calculator(size: int, max_turns: int) -> Kind:
    """A product and a sum that are too hard for a small model, with a tool that computes them."""

    def problem(stream: random.Random) -> Problem:
        one, two, three = (stream.randrange(OPERANDS_PER_SIZE * size) for _ in range(3))
        sign = stream.choice("+-")
        result = one * two + three if sign == "+" else one * two - three
        return Problem(prompt=f"{one}*{two}{sign}{three}=", answer=str(result))

    return Kind(
        "calculator",
        "0123456789+-*/()=[];?",
        problem,
        environment=lambda problem: Calculator(problem, max_turns),
        demonstration=demonstration,
    )


def demonstration(problem: Problem) -> tuple[str, ...]:
    """Call the calculator on the whole prompt, then repeat what it says."""
    return f"[{problem.text.rstrip('=')}]", problem.answer


@dataclass
class Calculator:
    """One episode: a turn that begins with `[` is a call and is answered; any other is the final answer."""

    problem: Problem
    max_turns: int
    turns: int = 0

    def reset(self) -> Prompt:
        self.turns = 0
        return self.problem.prompt

    def step(self, answer: str, *, ended: bool) -> Turn:
        """The value of a call, `?;` for one that cannot be computed; a turn cut off by its length is the last."""
        self.turns += 1
        if not ended or not answer.startswith("[") or self.turns >= self.max_turns:
            return Turn(observation="", done=True)
        return Turn(observation=answer_call(answer), done=False)


def answer_call(call: str) -> str:
    """The calculator's reply to a call.

    >>> answer_call("[7*8]"), answer_call("[7*]"), answer_call("[1/0]")
    ('56;', '?;', '?;')
    """
    try:
        if len(call) > MAX_CALL or not call.endswith("]"):
            raise NotArithmetic
        return f"{evaluate(call[1:-1])};"
    except NotArithmetic:
        return REFUSED


def evaluate(text: str) -> int:
    """The value of integers with + - * / and brackets; a division must leave no remainder."""
    value, rest = _sum(text, 0)
    if rest:
        raise NotArithmetic
    return value


def _sum(text: str, depth: int) -> tuple[int, str]:
    value, rest = _product(text, depth)
    while rest and rest[0] in "+-":
        sign = rest[0]
        term, rest = _product(rest[1:], depth)
        value = _bounded(value + term if sign == "+" else value - term)
    return value, rest


def _product(text: str, depth: int) -> tuple[int, str]:
    value, rest = _factor(text, depth)
    while rest and rest[0] in "*/":
        sign = rest[0]
        factor, rest = _factor(rest[1:], depth)
        if sign == "/" and (factor == 0 or value % factor):
            raise NotArithmetic
        value = _bounded(value * factor if sign == "*" else value // factor)
    return value, rest


def _factor(text: str, depth: int) -> tuple[int, str]:
    if depth > MAX_DEPTH:
        raise NotArithmetic
    if text.startswith("-"):
        value, rest = _factor(text[1:], depth + 1)
        return -value, rest
    if text.startswith("("):
        value, rest = _sum(text[1:], depth + 1)
        if not rest.startswith(")"):
            raise NotArithmetic
        return value, rest[1:]
    rest = text.lstrip("0123456789")
    digits = text[: len(text) - len(rest)]
    if not digits:
        raise NotArithmetic
    return _bounded(int(digits)), rest


def _bounded(value: int) -> int:
    if abs(value) > MAX_RESULT:
        raise NotArithmetic
    return value
