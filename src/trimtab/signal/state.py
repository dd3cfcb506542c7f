"""What one batch hands to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class SignalState:
    """What one batch hands to the next: the recent effect of every correction stage."""

    effects: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    window: int = 20

    def observe(self, values: Mapping[str, float]) -> tuple["SignalState", tuple[str, ...]]:
        """Take in a batch's metric values; warn of a stage that is switched on and does nothing or rejects all."""
        effects = {
            name: (*self.effects.get(name, ()), value)[-self.window :]
            for name, value in values.items()
            if name.endswith("/alone")
        }
        said: list[str] = []
        for name, seen in effects.items():
            stage = name.removesuffix("/alone")
            if len(seen) == self.window and all(value == 0 for value in seen):
                said.append(
                    f"{stage}: switched on, does nothing: its effect was exactly 0 in the last {self.window} batches."
                )
            if len(seen) == self.window and stage.startswith("keep.") and all(value == 1 for value in seen):
                said.append(f"{stage}: rejects everything: its effect was exactly 1 in the last {self.window} batches.")
        return replace(self, effects={**self.effects, **effects}), tuple(said)
