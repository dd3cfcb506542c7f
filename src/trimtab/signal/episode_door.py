"""The door for episodes: the only place where several rewards and a baseline of the caller's are read and checked."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.door import LARGEST
from trimtab.signal.tensors import as_flags, as_tensor


def read_episodes(given: Mapping[str, object], scored: Tensor) -> dict[str, Tensor | None]:
    """What a caller may say of episodes besides their reward: a baseline, several rewards and which are there."""
    found: dict[str, Tensor | None] = {"baseline": None, "rewards": None, "rewards_scored": None}
    if given.get("baseline") is not None:
        found["baseline"] = _numbers_per_episode("baseline", given["baseline"], scored, scored)
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
