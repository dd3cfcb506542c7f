"""Limits of an examination: time, memory, and how many children run at once."""

import os
from dataclasses import dataclass, field
from pathlib import Path

PART_OF_MEMORY = 2 / 3
"""How much of the machine's memory all children may use together."""
LEAST = 2.0
"""GiB that a child should have. If there is less, fewer children run."""


def machine_memory() -> float:
    """GiB of this machine, or of the container that we are in."""
    bytes_ = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (said := limit.read_text(encoding="ascii").strip()).isdigit():
        bytes_ = min(bytes_, float(said))
    return bytes_ / 2**30


@dataclass(frozen=True)
class Limits:
    """Seconds between two messages of a child after loading, GiB of all children together, and how many run at once."""

    seconds: float = 120.0
    gibibytes: float = field(default_factory=lambda: machine_memory() * PART_OF_MEMORY)
    processes: int = field(default_factory=lambda: min(os.cpu_count() or 1, 4))

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", max(1, min(self.processes, int(self.gibibytes / LEAST))))

    @property
    def share(self) -> int:
        """Bytes for each child."""
        return int(self.gibibytes / self.processes * 2**30)
