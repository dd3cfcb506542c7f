"""AReaL: where its functions live, and what every caller of them guarantees."""

from typing import Any

from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.target import Binding

ACTOR = ("areal/trainer/ppo/actor.py", "areal/engine/ppo/actor.py")
FUNCTIONAL = ("areal/utils/functional/functional.py", "areal/utils/functional.py")
DATA = "areal/utils/data.py"
SHIFTED: dict[str, Any] = {"side": "right", "shift": True}
"""Cell t holds the value of token t + 1."""
OWN_FORWARD = (
    "log-probs at untrainable cells are the trainer's own forward pass or the 0 that rollouts write for prompts "
    "and tool output"
)
OWN = {"nonfinite_isolation": OWN_FORWARD}


def places_of(name: str, files: tuple[str, ...]) -> tuple[Spec, ...]:
    return tuple(Spec(name, file=file) for file in files)


def uncompiled() -> dict[str, object]:
    """There is no accelerator and no compiler here."""
    return {"is_npu_available": True}


def functional(name: str, make: Any) -> Binding:
    """A function of areal.utils.functional."""
    return Binding(name, places_of(name, FUNCTIONAL), make)


VOCABULARY = ("areal/utils/functional/vocab_parallel.py", "areal/utils/functional.py")
