"""verl: where its functions live, and what every caller of them guarantees."""

from typing import Any

import torch

from trimtab.sentinel.findings.alone import Another, Settings
from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.target import Binding

ALGOS = "verl/trainer/ppo/core_algos.py"
FUNCTIONAL = "verl/utils/torch_functional.py"
CORRECTION = "verl/trainer/ppo/rollout_corr_helper.py"
RAY = "verl/trainer/ppo/ray_trainer.py"

OWN_FORWARD = (
    "log-probs at untrainable cells are the trainer's own forward pass, and 0 where there is no token "
    "(verl/workers/utils/padding.py: no_padding_2_padding)"
)
MODES = {
    "token-mean": "token_mean",
    "token-sum": "token_sum",
    "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-mean": "sequence_mean_token_mean",
}


LONE = float(torch.tensor(1.0) + 1e-6)
"""The divisor of the reward in a group of one: a spread of 1 in single precision, plus the stabiliser."""
OWN = {"nonfinite_isolation": OWN_FORWARD}
OPTIMAL = {
    "nonfinite_isolation": OWN_FORWARD,
    "credit_over_trainable": "tool use belongs to the multi-turn variant, tir_optimal_token_baseline",
}


def given() -> dict[str, object]:
    """Config classes that functions only test for."""
    return {"ActorConfig": Settings, "AlgoConfig": Another, "DictConfig": Settings}


def algo(name: str, make: Any, *others: str) -> Binding:
    """A function of core_algos."""
    return Binding(name, tuple(Spec(n, file=ALGOS) for n in (name, *others)), make, given)


def functional(name: str, make: Any, *others: str) -> Binding:
    """A function of torch_functional."""
    return Binding(name, tuple(Spec(n, file=FUNCTIONAL) for n in (name, *others)), make, given)


def correction(name: str, make: Any) -> Binding:
    """A function of rollout_corr_helper."""
    return Binding(name, (Spec(name, file=CORRECTION),), make)
