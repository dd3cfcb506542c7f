"""Running correction stages: the only place that gives a stage the pair of policies its recipe chose."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab.signal.layout import Keep, PerToken
from trimtab.signal.recipe import Stage

Decisions = tuple[dict[str, Keep], dict[str, PerToken], dict[str, dict[str, Tensor]]]


def run_stages(labels: Mapping[str, Stage], available: Mapping[str, Any]) -> Decisions:
    """Run correction stages, each on the same inputs: keeps, importances and observations by label."""
    keeps: dict[str, Keep] = {}
    importances: dict[str, PerToken] = {}
    seen: dict[str, dict[str, Tensor]] = {}
    for label, stage in labels.items():
        result, seen[label] = stage.part(stage_inputs(stage, available))
        (keeps if stage.part.formula.stage == "keep" else importances)[label] = result
    return keeps, importances, seen


def conjunction(keep: Keep, decisions: Mapping[str, Keep]) -> Keep:
    """Kept before, and by every one of these decisions."""
    for decision in decisions.values():
        keep = keep & decision
    return keep


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
    later, earlier = {"engine": ("old", "rollout"), "update": ("current", "old"), "total": ("current", "rollout")}[
        ratio
    ]
    first, second = available.get(f"logp_{later}"), available.get(f"logp_{earlier}")
    return None if first is None or second is None else first - second
