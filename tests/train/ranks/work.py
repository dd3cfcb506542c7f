"""One rank of the comparison: `python -m tests.train.ranks.work FOLDER`, started by torchrun, or alone.

It trains every case on the recorded rollouts of FOLDER, and rank 0 writes what came out.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.rollout.rollouts import Rollouts
from trimtab.signal import Recipe, recipe
from trimtab.train.learner import Learner
from trimtab.train.policy import Policy, new_policy
from trimtab.train.snapshot import fill
from trimtab.train.world import World, open_world, whole

SMALL = ModelSettings(hidden_size=16, num_layers=1, num_heads=2, mlp_size=32)
STEPS = 20


@dataclass(frozen=True)
class Comparison:
    """One recipe in one precision."""

    name: str
    recipe: str
    dtype: str
    updates: int = 1
    changes: tuple[tuple[str, Any], ...] = ()

    def build(self) -> Recipe:
        return recipe(self.recipe, **dict(self.changes))


RECIPES: tuple[tuple[str, str, int, tuple[tuple[str, Any], ...]], ...] = (
    ("token mean", "start_async", 1, ()),
    ("sequence mean", "grpo", 2, (("weighting", "sequence_mean_token_mean"),)),
    ("clip-cov", "grpo", 2, (("loss", {"formula": "covariance_clipped", "covariance_low": 0.0, "fraction": 0.3}),)),
    ("gspo", "gspo", 2, ()),
    ("ppo with critic", "ppo", 2, ()),
)
CASES = tuple(
    Comparison(f"{name} {dtype}", named, dtype, updates, changes)
    for name, named, updates, changes in RECIPES
    for dtype in ("float32", "float64")
)


def policy_of(case: Comparison) -> Policy:
    policy = new_policy(SMALL, "0123456789=", seed=3)
    if case.dtype == "float64":
        _ = policy.model.double()
        _ = policy.critic.double()
    return policy


def settings_of(case: Comparison) -> TrainSettings:
    return TrainSettings(
        model=SMALL, lr=1e-3, max_tokens_per_micro_batch=96, updates_per_batch=case.updates, seed=5, schedule="linear"
    )


def read(folder: Path, step: int) -> Rollouts:
    head = json.loads((folder / f"{step}.json").read_text())
    return Rollouts.read(load_file(folder / f"{step}.safetensors"), head)


def write(folder: Path, step: int, rollouts: Rollouts) -> None:
    save_file(rollouts.tensors(), folder / f"{step}.safetensors")
    (folder / f"{step}.json").write_text(json.dumps(rollouts.head()))


def compare(case: Comparison, folder: Path, world: World) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Gradients of every step and the last parameters; metrics of every step."""
    policy = policy_of(case)
    learner = Learner(policy, case.build(), settings_of(case), world)
    tensors: dict[str, Tensor] = {}
    metrics: list[dict[str, float]] = []
    for step in range(STEPS):
        learned = learner.learn(read(folder, step), version=step)
        metrics.append(learned.metrics)
        for name, parameter in learner.actor.named_parameters():
            if parameter.grad is not None:
                tensors[f"{step}/{name}"] = whole(parameter.grad)
        tensors |= {f"{step}/said/{name}": values for name, values in learned.fields.items()}
        if step == STEPS // 2:  # half-way all ranks forget, and go on from what they gathered
            parts = (policy.model, policy.critic, *((learner.reference.model,) if learner.reference else ()))
            saved = [{name: whole(held) for name, held in part.state_dict().items()} for part in parts]
            moments = learner.optimizer.state()
            policy = policy_of(case)
            learner = Learner(policy, case.build(), settings_of(case), world)
            parts = (policy.model, policy.critic, *((learner.reference.model,) if learner.reference else ()))
            for part, state in zip(parts, saved, strict=True):
                fill(part, state)
            learner.optimizer.restore(moments)
    return tensors, metrics


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with open_world(timeout=60.0) as world:
        for number, case in enumerate(CASES):
            tensors, metrics = compare(case, folder, world)
            if world.is_first:
                out = folder / f"out_{world.size}"
                out.mkdir(exist_ok=True)
                save_file(
                    {name: tensor.contiguous() for name, tensor in tensors.items()}, out / f"{number}.safetensors"
                )
                (out / f"{number}.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main()
