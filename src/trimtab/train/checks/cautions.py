"""The only place that warns of settings that are allowed but seldom meant. Settings and recipe in, sentences out."""

import os
from typing import TYPE_CHECKING, Any, cast

from trimtab.signal import Recipe

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

ONE_TURN = ("reverse", "sort", "arithmetic", "gsm8k", "file")
"""Tasks whose episodes are one answer."""

OFTEN = 4
"""A divisor this many times the longest answer shrinks every step noticeably."""


def cautions(settings: "TrainSettings", recipe: Recipe | None = None) -> tuple[str, ...]:
    """One sentence per warning, with the line to write. Without a recipe, only warnings about the settings."""
    told = _threads(settings)
    if recipe is not None:
        told += _overlong(settings, recipe) + _divisor(settings, recipe)
    return tuple(told)


def _threads(settings: "TrainSettings") -> list[str]:
    cores = os.cpu_count() or 1
    processes = 1 + settings.engine.processes
    if settings.runtime != "processes" or processes * settings.threads <= max(cores, processes):
        return []
    wanted = processes * settings.threads
    return [
        f"train.threads: sampler and learner with {settings.threads} threads each want {wanted} of {cores} cores, "
        "so they wait for each other in every operation, and a step can take ten times as long. "
        f"Set train.threads={max(cores // processes, 1)}."
    ]


def _longest(settings: "TrainSettings") -> int:
    """Tokens that an episode can have at most. Only a task whose environment replies has more than one turn."""
    task = settings.task
    one_turn = task.name in ONE_TURN or task.name.startswith("reasoning_gym.")
    return settings.max_new_tokens * (1 if one_turn else task.max_turns)


def _overlong(settings: "TrainSettings", recipe: Recipe) -> list[str]:
    """A penalty on length that begins beyond the longest answer."""
    told: list[str] = []
    for part in recipe.reward:
        given = cast("dict[str, Any]", part.settings)
        if "max_length" not in given or "buffer" not in given:
            continue
        limit, buffer, longest = int(given["max_length"]), int(given["buffer"]), _longest(settings)
        if longest <= limit - buffer:
            told.append(
                f"signal.reward: {part.formula.name} begins at {limit - buffer} tokens (max_length {limit}, buffer "
                f"{buffer}) and an answer has at most {longest}, so it never acts. Write max_length={longest} and "
                f"buffer={max(longest // 4, 1)} in the recipe's reward, or leave it out."
            )
    return told


def _divisor(settings: "TrainSettings", recipe: Recipe) -> list[str]:
    """A fixed length in the denominator that no answer comes near."""
    given = cast("dict[str, Any]", recipe.weighting.settings)
    lengths = [(name, float(given[name])) for name in ("divisor", "max_length", "length") if name in given]
    longest = _longest(settings)
    return [
        f"signal.weighting: {recipe.weighting.formula.name} divides by {name}={value:g}, {value / longest:.3g} "
        f"times the longest answer ({longest} tokens), so every gradient is that much smaller; gradient clipping and "
        f"AdamW hide it. Write {name}={longest} in the recipe's weighting."
        for name, value in lengths
        if value >= OFTEN * longest
    ]
