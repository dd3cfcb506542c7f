"""The only place that asks other packages for a reward: math-verify and reasoning-gym.

`reward_worker` runs it as a file, in the child process. It needs the standard library and the package that judges.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any


def math_judge() -> Callable[..., list[float | None]]:
    """1 where math-verify finds the answers equal, else 0. Abstains where it cannot parse the right answer."""
    package: Any = importlib.import_module("math_verify")

    def score(completions: list[Any], answer: list[str], ended: list[bool], **_: Any) -> list[float | None]:
        # None switches off the time limit of math-verify. That limit would take over the alarm that ends this process
        # when the parent is gone.
        rewards: list[float | None] = []
        for written, right, closed in zip(completions, answer, ended, strict=True):
            gold = package.parse(str(right), parsing_timeout=None)
            found = package.parse(_text(written), parsing_timeout=None)
            is_right = bool(gold) and package.verify(gold, found, timeout_seconds=None)
            rewards.append(float(closed and is_right) if gold else None)
        return rewards

    return score


def gym_judge(name: str, options: Mapping[str, Any]) -> Callable[..., list[float]]:
    """The score function of a reasoning-gym data set. Each entry is made again from its (seed, size, index)."""
    package: Any = importlib.import_module("reasoning_gym")

    @functools.lru_cache(maxsize=8)
    def dataset_of(seed: int, size: int) -> Any:
        return package.create_dataset(name, **{**options, "seed": seed, "size": size})

    def score(completions: list[Any], entry: list[list[int]], ended: list[bool], **_: Any) -> list[float]:
        rewards: list[float] = []
        for written, (seed, size, index), closed in zip(completions, entry, ended, strict=True):
            dataset = dataset_of(seed, size)
            rewards.append(float(dataset.score_answer(_text(written), dataset[index])) if closed else 0.0)
        return rewards

    return score


def _text(completion: Any) -> str:
    """A completion to a chat prompt is a list of messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
