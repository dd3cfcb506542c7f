"""Running correction stages: the only place that gives a stage the pair of policies its recipe chose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab.signal.composition import Stage
from trimtab.signal.layout import Keep, PerToken
from trimtab.signal.parts import run

ENDS = {"engine": ("old", "rollout"), "update": ("current", "old"), "total": ("current", "rollout")}
"""Numerator and denominator of each ratio."""


@dataclass(frozen=True)
class Decisions:
    """What correction stages said, by the label of the stage."""

    keeps: Mapping[str, Keep]
    importances: Mapping[str, PerToken]
    seen: Mapping[str, Mapping[str, Tensor]]
    """Each stage's observations, for its metrics."""

    def merge(self, other: "Decisions") -> "Decisions":
        return Decisions(
            {**self.keeps, **other.keeps}, {**self.importances, **other.importances}, {**self.seen, **other.seen}
        )


def run_stages(stages: Mapping[str, Stage], available: Mapping[str, Any]) -> Decisions:
    """Run correction stages, each on the same untouched inputs."""
    keeps: dict[str, Keep] = {}
    importances: dict[str, PerToken] = {}
    seen: dict[str, Mapping[str, Tensor]] = {}
    for label, stage in stages.items():
        result, seen[label] = run(stage.part, stage_inputs(stage, available))
        (keeps if stage.part.formula.stage == "keep" else importances)[label] = result
    return Decisions(keeps, importances, seen)


def conjunction(keep: Keep, decisions: Mapping[str, Keep]) -> Keep:
    """Kept before, and by every one of these decisions."""
    for decision in decisions.values():
        keep = keep & decision
    return keep


def product(importance: PerToken, factors: Mapping[str, PerToken]) -> PerToken:
    """An importance times every one of these factors."""
    for factor in factors.values():
        importance = importance * factor
    return importance


def stage_inputs(stage: Stage, available: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage may read: everything, plus the log-ratio or the anchor its recipe chose for it."""
    chosen = dict(available)
    if stage.ratio is not None:
        chosen["logratio"] = logratio(stage.ratio, available)
    if stage.anchor is not None:
        chosen["logp_anchor"] = available.get(f"logp_{stage.anchor}")
    return chosen


def logratio(ratio: str, available: Mapping[str, Any]) -> PerToken | None:
    """engine = old - rollout, update = current - old, total = current - rollout; None where an end is missing."""
    later, earlier = ENDS[ratio]
    first, second = available.get(f"logp_{later}"), available.get(f"logp_{earlier}")
    return None if first is None or second is None else first - second
