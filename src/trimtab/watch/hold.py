"""Copies of a trainer's tensors in the processor's memory: the only place of the watch that touches a device.

A copy from a GPU is started and not waited for: it goes into pinned memory, and an event tells later whether it is
there. Everything that is computed, is computed from these copies, one step late.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Held:
    """Some fields on their way to the processor."""

    fields: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the trainer says in plain numbers and words."""
    events: list[Any] = field(default_factory=list[Any])

    def add(self, name: str, values: Tensor) -> None:
        copy, event = started(values)
        self.fields[name] = copy
        if event is not None:
            self.events.append(event)

    @property
    def is_here(self) -> bool:
        """Whether every copy has arrived; asks, and does not wait."""
        return all(event.query() for event in self.events)

    def wait(self) -> None:
        """Wait for every copy: at the end of a run only."""
        for event in self.events:
            event.synchronize()


def hold(fields: Mapping[str, Tensor | None], facts: Mapping[str, Any]) -> Held:
    """Start to copy these fields."""
    held = Held(facts=dict(facts))
    for name, values in fields.items():
        if values is not None:
            held.add(name, values)
    return held


def started(values: Tensor) -> tuple[Tensor, Any]:
    """A copy, and the event after which it is whole (None: it is)."""
    given = values.detach()
    if given.device.type != "cuda":
        return given.clone(), None
    there = torch.empty(given.shape, dtype=given.dtype, pin_memory=True)
    _ = there.copy_(given, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return there, event
