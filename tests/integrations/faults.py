"""Faults planted in real TRL runs, and healthy runs beside them: what the watch must name, and where it must be silent.

Each fault is a folder's trainer with the fault in it, and the names by which a finding may call it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.integrations.trl_run import frozen, model, rollout, trainer
from trl import GRPOTrainer

Made = Callable[..., Any]


def _shift(asked: list[int], ids: list[int], logp: list[float]) -> list[float]:
    return [*logp[1:], 0.0]


def _shift_back(asked: list[int], ids: list[int], logp: list[float]) -> list[float]:
    return [-1.0, *logp[:-1]]


def temperature(folder: Path, *, at: float = 0.7, **given: Any) -> Any:
    return trainer(folder, rollout_func=rollout(temperature=at), **given)


def shifted(folder: Path, *, spoil: Any = _shift, **given: Any) -> Any:
    return trainer(folder, rollout_func=rollout(spoil=spoil), **given)


def prompt_in_mask(folder: Path, **given: Any) -> Any:
    """The engine returns prompt and answer as the answer, so the mask covers both."""
    inner = rollout()

    def run(prompts: list[str], held: Any) -> dict[str, Any]:
        out = inner(prompts, held)
        out["logprobs"] = [
            [0.0] * len(asked) + said for asked, said in zip(out["prompt_ids"], out["logprobs"], strict=True)
        ]
        out["completion_ids"] = [a + c for a, c in zip(out["prompt_ids"], out["completion_ids"], strict=True)]
        out["prompt_ids"] = [[2] for _ in prompts]
        return out

    return trainer(folder, rollout_func=run, **given)


def prompt_moved(folder: Path, **given: Any) -> Any:
    """After generation the prompt is moved into the part that trains."""
    made = trainer(folder, **given)
    inner = made._generate_and_score_completions

    def run(inputs: Any) -> Any:
        out = inner(inputs)
        out["completion_ids"] = torch.cat([out["prompt_ids"][:, 1:], out["completion_ids"]], 1)
        out["completion_mask"] = torch.cat([out["prompt_mask"][:, 1:], out["completion_mask"]], 1)
        out["prompt_ids"], out["prompt_mask"] = out["prompt_ids"][:, :1], out["prompt_mask"][:, :1]
        out.pop("old_per_token_logps", None)
        out["num_items_in_batch"] = out["completion_mask"].sum()
        return out

    made._generate_and_score_completions = run
    return made


def aliased(folder: Path, *, noise: float = 0.05, **given: Any) -> Any:
    """logp_old is the sampler's number."""
    made = trainer(folder, rollout_func=rollout(noise=noise), **{"num_iterations": 2, **given})
    inner = made._generate_and_score_completions

    def run(inputs: Any) -> Any:
        out = inner(inputs)
        out["old_per_token_logps"] = out["sampling_per_token_logps"]
        return out

    made._generate_and_score_completions = run
    return made


def scaled_twice(folder: Path, *, how: str = "group", **given: Any) -> Any:
    made = trainer(folder, **given)
    inner, rewards = made._generate_and_score_completions, made._calculate_rewards
    held: dict[str, Any] = {}

    def keep(*args: Any, **named: Any) -> Any:
        held["reward"] = rewards(*args, **named)
        return held["reward"]

    def run(inputs: Any) -> Any:
        out = inner(inputs)
        reward = held["reward"].sum(1).view(-1, made.num_generations)
        if how == "group":
            scale = reward.std(1).repeat_interleave(made.num_generations) + 1e-4
        else:
            scale = out["advantages"].std() if how == "whiten" else reward.std() + 1e-4
        out["advantages"] = out["advantages"] / scale
        return out

    made._calculate_rewards, made._generate_and_score_completions = keep, run
    return made


class ScalesInLoss(GRPOTrainer):
    """A subclass that divides advantages by the spread of rewards inside the loss."""

    def _calculate_rewards(self, *args: Any, **named: Any) -> Any:
        self.held = super()._calculate_rewards(*args, **named)
        return self.held

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        reward = self.held.sum(1).view(-1, self.num_generations)
        out["spread"] = reward.std(1).repeat_interleave(self.num_generations) + 1e-4
        return out

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, {**inputs, "advantages": inputs["advantages"] / inputs["spread"]})


def scaled_in_loss(folder: Path, **given: Any) -> Any:
    return trainer(folder, kind=ScalesInLoss, **given)


def inert(folder: Path, *, threshold: float = 0.5, **given: Any) -> Any:
    """Off-policy masking on a run whose old policy is always the current one: it compares a thing with itself."""
    return trainer(folder, off_policy_mask_threshold=threshold, **given)


class DividesAgain(GRPOTrainer):
    """A subclass that divides the loss by the number of micro-batches, which TRL has done."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        return loss / self.current_gradient_accumulation_steps if self.model.training else loss


def divided(folder: Path, **given: Any) -> Any:
    more = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 16, **given}
    return trainer(folder, kind=DividesAgain, **more)


def frozen_engine(folder: Path, *, seed: int = 0, **given: Any) -> Any:
    engine = frozen(model(seed, given.get("warm", 30)))
    return trainer(folder, rollout_func=rollout(engine), seed=seed, **given)


FAULTS: dict[str, tuple[Made, dict[str, Any], tuple[str, ...]]] = {
    "rollout log-probs at another temperature": (temperature, {}, ("rollout_temperature",)),
    "rollout log-probs shifted by one": (shifted, {}, ("rollout_shifted",)),
    "mask includes the prompt": (prompt_in_mask, {}, ("prompt_in_mask",)),
    "old log-probs alias rollout": (aliased, {}, ("old_is_rollout",)),
    "advantages scaled twice": (scaled_twice, {}, ("advantage_scaled_twice",)),
    "a correction that does nothing": (inert, {}, ("inert_rejection",)),
    "loss divided twice": (divided, {}, ("loss_divided_twice",)),
    "frozen engine": (frozen_engine, {}, ("engine_frozen",)),
}
"""Name: how it is made, with what, and what a finding may call it."""

VARIANTS: dict[str, tuple[Made, dict[str, Any], tuple[str, ...]]] = {
    "temperature 1.3": (temperature, {"at": 1.3}, ("rollout_temperature",)),
    "temperature 1.1": (temperature, {"at": 1.1}, ("rollout_temperature",)),
    "temperature 0.5, no warm start": (temperature, {"at": 0.5, "warm": 0}, ("rollout_temperature",)),
    "trainer at 0.8, engine reports 1.0": (temperature, {"at": 1.25, "temperature": 0.8}, ("rollout_temperature",)),
    "temperature, two iterations": (temperature, {"at": 0.8, "num_iterations": 2}, ("rollout_temperature",)),
    "shifted the other way": (shifted, {"spoil": _shift_back}, ("rollout_shifted",)),
    "shifted, no warm start": (shifted, {"warm": 0}, ("rollout_shifted",)),
    "prompt moved into the answer": (prompt_moved, {}, ("prompt_in_mask",)),
    "prompt moved, no warm start": (prompt_moved, {"warm": 0}, ("prompt_in_mask",)),
    "alias without drift": (aliased, {"noise": 0.0}, ("old_is_rollout",)),
    "alias, four iterations": (aliased, {"num_iterations": 4, "loss_type": "grpo"}, ("old_is_rollout",)),
    "scaled twice by the batch": (
        scaled_twice,
        {"how": "batch", "scale_rewards": "batch"},
        ("advantage_scaled_twice",),
    ),
    "whitened after group scaling": (scaled_twice, {"how": "whiten"}, ("advantage_scale", "advantage_scaled_twice")),
    "scaled again in the loss": (scaled_in_loss, {}, ("advantage_scaled_twice",)),
    "threshold that is never met": (inert, {"threshold": 1e9, "num_iterations": 2}, ("inert_rejection",)),
    "inert with a KL": (inert, {"beta": 0.04}, ("inert_rejection",)),
    "divided twice, grpo": (divided, {"loss_type": "grpo"}, ("loss_divided_twice",)),
    "divided twice, with a KL": (divided, {"loss_type": "dr_grpo", "beta": 0.05}, ("loss_divided_twice",)),
    "frozen engine, two iterations": (frozen_engine, {"num_iterations": 2}, ("engine_frozen",)),
    "frozen engine, small steps": (frozen_engine, {"learning_rate": 1e-4}, ("engine_frozen",)),
    "frozen engine, no warm start": (frozen_engine, {"warm": 0}, ("engine_frozen",)),
}

CUT: dict[str, Any] = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 16}

HEALTHY: dict[str, dict[str, Any]] = {
    "dapo": {"seed": 1},
    "grpo with a KL, two iterations": {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2, "seed": 2},
    "bnpo, accumulation": {"loss_type": "bnpo", **CUT, "seed": 3},
    "dr_grpo, no scaling": {"loss_type": "dr_grpo", "scale_rewards": "none", "seed": 4},
    "engine, batch scaling": {"rollout_func": rollout(), "scale_rewards": "batch", "num_iterations": 3, "seed": 5},
}  # fmt: skip

MORE_HEALTHY: dict[str, dict[str, Any]] = {
    "cispo, several steps per batch": {
        "loss_type": "cispo", "epsilon_high": 2.0, "steps_per_generation": 4, "per_device_train_batch_size": 16,
        "seed": 6,
    },
    "noisy engine": {"rollout_func": rollout(noise=0.02), "seed": 7},
    "noisier engine, two iterations": {"rollout_func": rollout(noise=0.2), "num_iterations": 2, "seed": 8},
    "sapo": {"loss_type": "sapo", "num_iterations": 2, "seed": 9},
    "gspo": {
        "importance_sampling_level": "sequence", "loss_type": "grpo", "num_iterations": 2, "beta": 0.01, "seed": 10,
    },
    "no warm start": {"warm": 0, "seed": 11, "rollout_func": rollout()},
    "temperature 0.7 on both sides": {"temperature": 0.7, "rollout_func": rollout(), "seed": 12},
    "entropy quantile": {"top_entropy_quantile": 0.4, "seed": 13},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "seed": 14},
    "vespo": {"loss_type": "vespo", "num_iterations": 2, "seed": 15},
    "high learning rate": {
        "learning_rate": 3e-3, "num_iterations": 2, "rollout_func": rollout(noise=0.01), "seed": 16,
    },
    "masked truncation, short": {"mask_truncated_completions": True, "max_completion_length": 4, "seed": 17},
    "long warm start": {"warm": 200, "rollout_func": rollout(noise=0.02), "num_iterations": 2, "seed": 18},
    "a rejection that acts": {
        "off_policy_mask_threshold": 0.001, "num_iterations": 4, "beta": 0.04, "rollout_func": rollout(noise=0.05),
        "seed": 19,
    },
    "accumulation and a KL": {"beta": 0.1, **CUT, "num_iterations": 2, "loss_type": "grpo", "seed": 20},
}  # fmt: skip
