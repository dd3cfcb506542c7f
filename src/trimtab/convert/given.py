"""One option as somebody wrote it, and what its word stands for."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Given:
    """One option as it was written."""

    key: str
    value: Any
    line: int = 0
    """Where it stands in its file; 0: not known."""
    depends: bool = False
    """Whether another branch of the script may set it to something else."""
    other: Any = None
    """What the first branch sets it to, where that is something else."""

    @property
    def is_known(self) -> bool:
        """Whether its value can be known without running anything."""
        return not (isinstance(self.value, str) and ("$" in self.value or "`" in self.value))


def number(text: str) -> Any:
    """A word as the number, switch or text it stands for."""
    bare = text.strip().strip("\"'")
    if bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    if bare.lower() in ("null", "none", "~", ""):
        return None
    for kind in (int, float):
        try:
            return kind(bare)
        except ValueError:
            continue
    if bare.startswith("[") and bare.endswith("]"):
        return [number(one) for one in bare[1:-1].split(",") if one.strip()]
    return bare
