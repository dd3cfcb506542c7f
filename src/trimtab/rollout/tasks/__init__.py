"""The tasks: one file for each kind. A generated one is a `Kind`; `Generated` draws its problems.

This package does not know tokens, models or rewards of the user's own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from trimtab.rollout.tasks import arithmetic, calculator, digits, gsm8k
from trimtab.rollout.tasks.generated import Generated, Judge, Kind

if TYPE_CHECKING:
    from trimtab.config.train import TaskSettings
    from trimtab.rollout.task import Task

GENERATED: "dict[str, Callable[[TaskSettings], Kind]]" = {
    "arithmetic": lambda settings: arithmetic.arithmetic(settings.size),
    "calculator": lambda settings: calculator.calculator(settings.size, settings.max_turns),
    "gsm8k": lambda settings: gsm8k.gsm8k(settings.size),
    "reverse": lambda settings: digits.reverse(settings.size),
    "sort": lambda settings: digits.sort(settings.size),
}


def generated_task(settings: "TaskSettings", seed: int) -> "Task":
    """A generated task by its name."""
    return Generated(GENERATED[settings.name](settings), seed)


__all__ = ["GENERATED", "Generated", "Judge", "Kind", "generated_task"]
