"""What one batch hands to the next, and the warnings that follow from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.signal.composition import Recipe

DRIFT_WARNING = 0.01
"""Mean |log-ratio| above which data that nobody corrects is worth a warning: bf16 samplers stay near 0.002."""


EFFECTS = ("/alone", "/effect")
"""Endings of the metrics that say how much a correction, or a step of the reward shaping, does by itself."""


@dataclass(frozen=True)
class SignalState:
    """The recent effect of every correction stage and of every step of the reward shaping, and what is remembered."""

    effects: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    window: int = 20
    memory: Mapping[str, float] = field(default_factory=dict[str, float])
    """What batches so far led to, by name: a steered coefficient, the moments of rewards, the average of each role."""

    def as_data(self) -> dict[str, Any]:
        """Plain data; `from_data` is the way back."""
        effects = {name: list(seen) for name, seen in self.effects.items()}
        return {"effects": effects, "window": self.window, "memory": dict(self.memory)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "SignalState":
        """What `as_data` wrote; a state from before there was a memory has none."""
        effects = {name: tuple(seen) for name, seen in data["effects"].items()}
        memory = {str(name): float(value) for name, value in data.get("memory", {}).items()}
        return SignalState(effects, int(data["window"]), memory)

    def observe(
        self, values: Mapping[str, float], recipe: Recipe | None = None
    ) -> tuple["SignalState", tuple[str, ...]]:
        """Take in metric values. Warn about a stage that does nothing or rejects all, and about uncorrected drift.

        `prepare` does this with its own metrics. A trainer does it with those of `step`, and names the recipe: stages
        that need the current policy, and drift without an old policy, show only there.
        """
        effects = {
            name: (*self.effects.get(name, ()), value)[-self.window :]
            for name, value in values.items()
            if name.endswith(EFFECTS)
        }
        said: list[str] = []
        for name, seen in effects.items():
            stage = name.rpartition("/")[0]
            if len(seen) == self.window and all(value == 0 for value in seen):
                said.append(
                    f"{stage}: switched on, does nothing: its effect was exactly 0 in the last {self.window} batches."
                )
            if len(seen) == self.window and stage.startswith("keep.") and all(value == 1 for value in seen):
                said.append(f"{stage}: rejects everything: its effect was exactly 1 in the last {self.window} batches.")
        if recipe is not None and "logratio_update/token_abs_mean" not in values:
            said += drift_warning(recipe, values.get("logratio_total/token_abs_mean", 0.0))
        return replace(self, effects={**self.effects, **effects}), tuple(said)


def drift_warning(recipe: Recipe, gap: float) -> tuple[str, ...]:
    """The warning about drift that no part of the recipe corrects; `gap` is the mean |log-ratio| to the rollout."""
    stages = (recipe.loss, *recipe.correction)
    if gap <= DRIFT_WARNING or any(stage.pair in ("engine", "total") for stage in stages):
        return ()
    return (
        f"the sampler differs from the trainer by {gap:.3g} per token (mean |log-ratio| to the rollout) and recipe "
        f"{recipe.name!r} corrects for none of it, so every update is bent. "
        "Add a correction (docs/off_policy_correction.md), or find the cause.",
    )
