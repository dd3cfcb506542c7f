"""The door for episodes: the only place where a caller's rewards, baselines, roles and sources are read and checked."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.door import LARGEST
from trimtab.signal.layout import places
from trimtab.signal.tensors import as_flags, as_integers, as_tensor

NUMBERED = ("role", "source")
"""What is named by a number from 0."""


def read_episodes(given: Mapping[str, object], scored: Tensor) -> dict[str, Tensor | None]:
    """What a caller may say of episodes besides their reward: a baseline, a role, a source, several rewards."""
    found: dict[str, Tensor | None] = dict.fromkeys(("baseline", *NUMBERED, "rewards", "rewards_scored"))
    if given.get("baseline") is not None:
        found["baseline"] = _numbers_per_episode("baseline", given["baseline"], scored, scored)
    found |= {name: _number_of_each(name, given[name], scored) for name in NUMBERED if given.get(name) is not None}
    several, told = given.get("rewards"), given.get("rewards_scored")
    if several is None:
        if told is not None:
            raise SignalError("SignalBatch: rewards_scored says which rewards are there, and there are none.")
        return found
    rewards = as_tensor(several, "SignalBatch: rewards", dtype=torch.float64, device=scored.device)
    if rewards.ndim != 2:
        raise SignalError(
            f"SignalBatch: rewards has shape {list(rewards.shape)}; it has one row per episode and one column per key."
        )
    there = torch.ones_like(rewards, dtype=torch.bool)
    if told is not None:
        there = as_flags(told, "SignalBatch: rewards_scored", scored.device)
        if there.shape != rewards.shape:
            raise SignalError(
                f"SignalBatch: rewards_scored has shape {list(there.shape)} and rewards {list(rewards.shape)}."
            )
    read = there & scored[:, None] if len(there) == len(scored) else there
    found["rewards"] = _numbers_per_episode("rewards", rewards, scored, read)
    return {**found, "rewards_scored": there}


def _numbers_per_episode(name: str, given: object, scored: Tensor, read: Tensor) -> Tensor:
    """One number per episode (and key), finite wherever it is read."""
    values = as_tensor(given, f"SignalBatch: {name}", dtype=torch.float64, device=scored.device)
    values = values.detach().to(scored.device, torch.float64, copy=True)
    if values.shape[:1] != scored.shape or values.shape != read.shape:
        raise SignalError(
            f"SignalBatch: {name} has shape {list(values.shape)} for {scored.shape[0]} episodes. "
            "Give one row per episode."
        )
    wrong = read & ~(values.abs() <= LARGEST)
    if bool(wrong.any()):
        at = cast("list[int]", wrong.nonzero()[0].tolist())
        raise SignalError(
            f"SignalBatch: {name} is {values[tuple(at)].item()} at {at}, so everything it enters would be undefined. "
            "Mark what failed (scored, rewards_scored), or repair what produced it."
        )
    return values


def _number_of_each(name: str, given: object, scored: Tensor) -> Tensor:
    """One whole number per episode, 0 or more."""
    values = as_integers(given, f"SignalBatch: {name}", scored.device)
    if values.shape != scored.shape:
        raise SignalError(
            f"SignalBatch: {name} has shape {list(values.shape)} for {scored.shape[0]} episodes, so it cannot be told "
            "whose is whose. Give one number per episode."
        )
    below = places(values < 0)
    if below:
        raise SignalError(
            f"SignalBatch: {name} is {int(values[below[0]])} at episode {below[0]}, and a {name} is named by a number "
            "from 0, so it is no name. Count them from 0, and give episodes without one a number of their own."
        )
    return values
