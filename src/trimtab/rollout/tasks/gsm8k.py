"""The only place that makes word problems of GSM8K's format: steps, then `#### 72` as the last line of the answer.

They stand in for the data set of Cobbe et al. 2021 (arXiv:2110.14168) where there is no network; they are far easier.
"""

import random
import string

from trimtab.rollout.numeric import number_after_mark
from trimtab.rollout.task import Problem
from trimtab.rollout.tasks.arithmetic import OPERANDS_PER_SIZE
from trimtab.rollout.tasks.generated import Kind

NAMES = ("Ann", "Ben", "Eva", "Ida", "Leo", "Mia", "Sam", "Tom")
THINGS = ("pens", "cups", "eggs", "keys", "maps", "nuts", "pins", "toys")


def gsm8k(size: int) -> Kind:
    """Two steps of arithmetic in a story; numbers lie between 1 and ten times the size."""
    return Kind("gsm8k", _alphabet(), lambda stream: word_problem(stream, OPERANDS_PER_SIZE * size), judge=judge)


def word_problem(stream: random.Random, limit: int) -> Problem:
    """One of three stories.

    >>> print(word_problem(random.Random(1), 10).answer)
    5+2=7
    5+7=12
    #### 12
    """
    name, thing = stream.choice(NAMES), stream.choice(THINGS)
    first, second = stream.randint(1, limit), stream.randint(1, limit)
    story = stream.choice((_gives_away, _two_friends, _boxes))
    text, steps, result = story(stream, name, thing, first, second)
    return Problem(prompt=f"{text}\n", answer="\n".join([*steps, f"#### {result}"]))


def judge(problem: Problem, answer: str, *, ended: bool) -> float:
    """1 for the right number after `####`, closed by the policy itself; else 0. The steps are not judged."""
    right = number_after_mark(problem.answer)
    return float(ended and right is not None and number_after_mark(answer) == right)


Story = tuple[str, list[str], int]


def _gives_away(stream: random.Random, name: str, thing: str, first: int, second: int) -> Story:
    total = first + second
    given = stream.randint(1, total)
    text = f"{name} has {first} {thing}, gets {second} more and gives {given} away. How many {thing} are left?"
    return text, [f"{first}+{second}={total}", f"{total}-{given}={total - given}"], total - given


def _two_friends(stream: random.Random, name: str, thing: str, first: int, second: int) -> Story:
    other = stream.choice([friend for friend in NAMES if friend != name])
    total = first + second
    text = f"{name} has {first} {thing}. {other} has {second} more. How many {thing} have both?"
    return text, [f"{first}+{second}={total}", f"{first}+{total}={first + total}"], first + total


def _boxes(stream: random.Random, name: str, thing: str, first: int, second: int) -> Story:
    boxes = stream.randint(2, 5)
    full = boxes * first
    text = f"{name} has {boxes} boxes of {first} {thing} and {second} more. How many {thing} in all?"
    return text, [f"{boxes}*{first}={full}", f"{full}+{second}={full + second}"], full + second


def _alphabet() -> str:
    return string.ascii_letters + string.digits + " .,?#+-*=\n"
