"""SkyRL: where its functions live, how its batches are laid out, and what callers guarantee."""

from typing import Any

from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.target import Binding

UTILS = ("skyrl/backends/skyrl_train/utils", "skyrl-train/skyrl_train/utils")
LEFT: dict[str, Any] = {"with_prompt": False, "side": "left"}
"""Answers are right-aligned."""
OWN_FORWARD = (
    "log-probs and values at untrainable cells are the trainer's own forward pass, and rollout log-probs are 0 there "
    "(skyrl/train/dataset/preprocess.py: convert_prompts_responses_to_batch_tensors)"
)
OWN = {"nonfinite_isolation": OWN_FORWARD}


def places_of(name: str, file: str) -> tuple[Spec, ...]:
    return tuple(Spec(name, file=f"{folder}/{file}") for folder in UTILS)


def single(case: Case, field: str) -> Tensor:
    """A field as a batch holds it: right-aligned, in single precision."""
    return case.padded(field, **LEFT).float()


def ppo(name: str, make: Any) -> Binding:
    """A function of ppo_utils."""
    return Binding(name, places_of(name, "ppo_utils.py"), make)


def correction(name: str, make: Any) -> Binding:
    """A function of off_policy_correction_utils."""
    return Binding(name, places_of(name, "off_policy_correction_utils.py"), make)


TRAINER = ("skyrl/train/trainer.py", "skyrl-train/skyrl_train/trainer.py")
