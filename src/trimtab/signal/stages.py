"""Running correction stages: the only place that gives a stage the pair of policies its recipe chose."""

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from trimtab.signal.fields import Field
from trimtab.signal.ingredient import Stage
from trimtab.signal.layout import PerToken, Segments
from trimtab.signal.parts import run
from trimtab.signal.tensors import Array, host

ENDS = {"engine": ("old", "rollout"), "update": ("current", "old"), "total": ("current", "rollout")}
"""Numerator and denominator of each ratio."""

Seen = Mapping[str, "Field | Array"]
"""Observations: fields where a name ends in `_tokens`, one flag per sequence where it ends in `_sequences`."""


@dataclass(frozen=True)
class Decisions:
    """What correction stages said, by the label of the stage."""

    keeps: Mapping[str, Field]
    importances: Mapping[str, Field]
    seen: Mapping[str, Seen]
    """Each stage's observations, for its metrics."""

    def merge(self, other: "Decisions") -> "Decisions":
        return Decisions(
            {**self.keeps, **other.keeps}, {**self.importances, **other.importances}, {**self.seen, **other.seen}
        )


Answer = tuple[Field, Seen]
Shortcut = Callable[[Stage, Mapping[str, Any]], "Answer | None"]
"""A faster way to a stage's answer, where there is one."""


def run_stages(
    stages: Mapping[str, Stage], available: Mapping[str, Any], shortcut: Shortcut | None = None
) -> Decisions:
    """Run correction stages, each on the same untouched inputs."""
    keeps: dict[str, Field] = {}
    importances: dict[str, Field] = {}
    seen: dict[str, Seen] = {}
    for label, stage in stages.items():
        answer = (shortcut and shortcut(stage, available)) or _run(stage, available)
        result, seen[label] = answer
        (keeps if stage.part.formula.stage == "keep" else importances)[label] = result
    return Decisions(keeps, importances, seen)


def _run(stage: Stage, available: Mapping[str, Any]) -> Answer:
    segments: Segments = available["segments"]
    result, seen = run(stage.part, stage_inputs(stage, available))
    return Field(result, segments), observations(seen, segments)


def observations(seen: Mapping[str, Tensor], segments: Segments) -> Seen:
    """A formula's observations, each on the level that its name says."""
    return {
        name: host(flags) if name.endswith("_sequences") else Field(flags, segments) for name, flags in seen.items()
    }


def conjunction(keep: Field, decisions: Mapping[str, Field]) -> Field:
    """Kept before, and by every one of these decisions."""
    for decision in decisions.values():
        keep = keep & decision
    return keep


def product(importance: Field, factors: Mapping[str, Field]) -> Field:
    """An importance times every one of these factors."""
    for factor in factors.values():
        importance = importance * factor
    return importance


def stage_inputs(stage: Stage, available: Mapping[str, Any]) -> ChainMap[str, Any]:
    """What a stage may read: everything, plus the ratio or the anchor its recipe chose for it.

    A chain, so that a field is spread over the tokens only where somebody reads it.
    """
    chosen: ChainMap[str, Any] = ChainMap({}, cast("MutableMapping[str, Any]", available))
    if stage.ratio is not None:
        later, earlier = ENDS[stage.ratio]
        chosen["logratio"] = logratio(stage.ratio, available)
        chosen["logp_later"], chosen["logp_earlier"] = available.get(f"logp_{later}"), available.get(f"logp_{earlier}")
    if stage.anchor is not None:
        chosen["logp_anchor"] = available.get(f"logp_{stage.anchor}")
    return chosen


def logratio(ratio: str, available: Mapping[str, Any]) -> PerToken | None:
    """engine = old - rollout, update = current - old, total = current - rollout; None where an end is missing."""
    later, earlier = ENDS[ratio]
    first, second = available.get(f"logp_{later}"), available.get(f"logp_{earlier}")
    return None if first is None or second is None else first - second
