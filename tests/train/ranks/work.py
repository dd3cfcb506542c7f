"""One rank of the comparison: `python -m tests.train.ranks.work FOLDER CASE...`, started by torchrun."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.rollout.rollouts import Rollouts
from trimtab.signal import Recipe, recipe
from trimtab.train.learner import Learner
from trimtab.train.policy import Policy, new_policy
from trimtab.train.record.snapshot import fill
from trimtab.train.world import World, open_world, whole

SMALL = ModelSettings(hidden_size=16, num_layers=1, num_heads=2, mlp_size=32)
STEPS = 20
HALF = 9
RECORDED = "recorded"
"""A file that is there once all rollouts are."""


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
    ("sequence mean", "grpo", 1, (("weighting", "sequence_mean_token_mean"),)),
    ("clip-cov", "grpo", 2, (("loss", {"formula": "covariance_clipped", "covariance_low": 0.0, "fraction": 0.3}),)),
    ("gspo", "gspo", 1, ()),
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
        model=SMALL, lr=1e-3, max_tokens_per_micro_batch=160, updates_per_batch=case.updates, seed=5, schedule="linear"
    )


def read(folder: Path, step: int) -> Rollouts:
    head = json.loads((folder / f"{step}.json").read_text())
    return Rollouts.read(load_file(folder / f"{step}.safetensors"), head)


def write(folder: Path, step: int, rollouts: Rollouts) -> None:
    save_file(rollouts.tensors(), folder / f"{step}.safetensors")
    (folder / f"{step}.json").write_text(json.dumps(rollouts.head()))


def state_of(learner: Learner) -> dict[str, Tensor]:
    """Parameters and moments, whole; every rank must ask."""
    held = {
        f"{kind}/{name}": whole(v) for kind, part in parts_of(learner).items() for name, v in part.state_dict().items()
    }
    return held | {f"optimizer/{name}": value for name, value in learner.optimizer.state().items()}


def restore(learner: Learner, state: dict[str, Tensor]) -> None:
    by_kind: dict[str, dict[str, Tensor]] = {}
    for key, value in sorted(state.items()):
        kind, _, name = key.partition("/")
        by_kind.setdefault(kind, {})[name] = value
    for kind, part in parts_of(learner).items():
        fill(part, by_kind[kind])
    learner.optimizer.restore(by_kind["optimizer"])


def parts_of(learner: Learner) -> dict[str, nn.Module]:
    own: dict[str, nn.Module] = {"model": learner.policy.model, "critic": learner.policy.critic}
    return own | ({} if learner.reference is None else {"reference": learner.reference.model})


def middle_of(case: Comparison, folder: Path, ranks: int) -> Path:
    return folder / f"middle_{case.name}_{ranks}.safetensors"


def keep_middle(case: Comparison, folder: Path, ranks: int, state: dict[str, Tensor]) -> None:
    place = middle_of(case, folder, ranks)
    save_file({name: value.clone() for name, value in state.items()}, place.with_suffix(".part"))
    _ = place.with_suffix(".part").rename(place)


def wait_for(place: Path) -> Path:
    """What the one process writes; it may be a little behind."""
    for _ in range(1200):
        if place.exists():
            return place
        time.sleep(0.05)
    raise TimeoutError(f"the one process has ended early: no {place.name}")


def compare(case: Comparison, folder: Path, world: World) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Gradients of every step and the last parameters; metrics of every step."""
    policy = policy_of(case)
    learner = Learner(policy, case.build(), settings_of(case), world)
    tensors: dict[str, Tensor] = {}
    metrics: list[dict[str, float]] = []
    for step in range(STEPS):
        learned = learner.learn(read(folder, step), version=step)
        metrics.append(learned.metrics)
        for name, parameter in learner.actor.named_parameters() if step % 5 == 4 else ():
            if parameter.grad is not None:
                tensors[f"grad/{step}/{name}"] = whole(parameter.grad)
        tensors |= {f"said/{step}/{name}": values for name, values in learned.fields.items()}
        if step == HALF:  # forget everything, and go on from a checkpoint: two ranks from the one of one process
            state = state_of(learner)
            if world.is_first:
                keep_middle(case, folder, world.size, state)
            learner = Learner(policy_of(case), case.build(), settings_of(case), world)
            restore(learner, load_file(wait_for(middle_of(case, folder, 1))))
    return tensors, metrics


def train_all(folder: Path, names: Sequence[str], world: World) -> None:
    """Train the cases of these names on the rollouts in `folder`; rank 0 writes what came out."""
    for number, case in enumerate(CASES):
        if case.name not in names:
            continue
        tensors, metrics = compare(case, folder, world)
        if world.is_first:
            out = folder / f"out_{world.size}"
            out.mkdir(exist_ok=True)
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / f"{number}.safetensors")
            (out / f"{number}.json").write_text(json.dumps(metrics))


def main() -> None:
    torch.set_num_threads(1)
    with open_world(timeout=60.0) as world:
        wait_for(Path(sys.argv[1]) / RECORDED)
        train_all(Path(sys.argv[1]), sys.argv[2:], world)


if __name__ == "__main__":
    main()
