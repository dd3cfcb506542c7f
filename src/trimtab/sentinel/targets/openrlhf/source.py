"""OpenRLHF: where its functions live, how objects of them are built, and what callers guarantee."""

from collections.abc import Mapping
from typing import Any

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.target import Binding, CouldNotBind

LOSS = "openrlhf/models/loss.py"
UTILS = "openrlhf/models/utils.py"
MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"
PENALTY = "openrlhf/trainer/ppo_utils/length_penalty.py"
NEXT: dict[str, Any] = {"side": "right", "drop_first": True}
"""Everything but the first token."""
OWN_FORWARD = "log-probs and values at untrainable cells are the trainer's own forward pass, and padding is 0"
OWN = {"nonfinite_isolation": OWN_FORWARD}


def built(boundary: Boundary, owner: str, settings: Mapping[str, Any]) -> Any:
    """Construct an object of a class of the file, with the settings that this version accepts."""
    from inspect import signature

    build = boundary.get(owner)
    known = signature(build.__init__).parameters
    if unknown := sorted(set(settings) - set(known)):
        raise CouldNotBind(f"{owner} takes no {', '.join(unknown)}; it takes {', '.join(list(known)[1:])}")
    return build(**settings)


def whole_counts(boundary: Boundary, case: Case) -> dict[str, Any]:
    if not {"batch_num_tokens", "global_batch_size"} & set(handed.parameters(boundary)):
        return {}  # this version is not told about the whole batch
    tokens, rows = handed.counts(case)
    return handed.accepted(boundary, batch_num_tokens=float(tokens), global_batch_size=float(rows))


def added_up(boundary: Boundary) -> str | None:
    return "sum" if "batch_num_tokens" in handed.parameters(boundary) else None


MEANS = {True: "token_mean", False: "sequence_mean_token_mean"}


def found_in(file: str, name: str, make: Any, label: str | None = None) -> Binding:
    return Binding(label or name, (Spec(name, file=file),), make)
