"""TRL's GRPOTrainer: the only place that knows its names and its layout. Tested with TRL 1.16.

from trimtab.integrations import trl
trl.attach(trainer)          # before trainer.train(); the loss and its gradient stay what they are, bit for bit
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.trl_loss import corrected
from trimtab.watch import Watch
from trimtab.watch.harmless import note

__all__ = ["attach", "corrected"]
ROW = "trimtab_row"
"""A field of our own in TRL's batch: the row's place, which TRL shuffles and cuts along with the others."""
HOOKS = ("_calculate_rewards", "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_compute_loss")
MEANS = {"grpo": "sequence_mean", "sapo": "sequence_mean", "bnpo": "token_mean of the micro-batch",
         "dapo": "token_mean", "cispo": "token_mean", "vespo": "token_mean", "dr_grpo": "constant",
         "luspo": "sequence_sum"}  # fmt: skip


class Attached:
    """What is remembered between TRL's hooks."""

    def __init__(self, trainer: Any, watch: Watch) -> None:
        self.trainer: Any = trainer
        self.watch: Watch = watch
        self.rewards: Tensor | None = None
        self.current: tuple[Tensor, Tensor | None] | None = None
        self.is_in_loss: bool = False
        self.made_at: int = 0
        """The optimiser step at which the batch was generated."""

    @property
    def is_training(self) -> bool:
        return bool(self.trainer.model.training)


def attach(trainer: Any, folder: str | Path | None = None, **options: Any) -> Watch:
    """Watch a GRPOTrainer. Call it once, before `trainer.train()`. Options are those of `trimtab.watch.Watch`."""
    missing = [name for name in HOOKS if not callable(getattr(trainer, name, None))]
    if missing:
        raise AdapterError(
            f"trl.attach: {type(trainer).__name__} has no {', '.join(missing)}, so it cannot be watched. Give a "
            "GRPOTrainer of TRL 1.16, or call trimtab.watch.Watch from your own trainer."
        )
    if hasattr(trainer, "_trimtab"):
        raise AdapterError(
            "trl.attach: this trainer is watched already, so every step would count twice. Call attach once."
        )
    accelerator = trainer.accelerator
    watch = Watch(
        Path(trainer.args.output_dir) / "trimtab" if folder is None else folder,
        where="TRL", about=_about(trainer), rank=accelerator.process_index, ranks=accelerator.num_processes,
        **options,
    )  # fmt: skip
    held = Attached(trainer, watch)
    trainer._trimtab = held
    for name, around in zip(HOOKS, (_rewards, _generated, _logps, _loss), strict=True):
        _wrap(trainer, name, held, around)
    trainer.add_callback(_callback(held))
    return watch


def _wrap(trainer: Any, name: str, held: Attached, around: Any) -> None:
    inner = getattr(trainer, name)

    @functools.wraps(inner)
    def run(_: Any, *given: Any, **named: Any) -> Any:
        return around(held, inner, *given, **named)

    setattr(trainer, name, MethodType(run, trainer))


def _rewards(held: Attached, inner: Any, *given: Any, **named: Any) -> Any:
    """Rewards of all ranks, one column per reward function."""
    found = inner(*given, **named)
    held.rewards = found if held.is_training else None
    return found


def _generated(held: Attached, inner: Any, *given: Any, **named: Any) -> Any:
    """One generation batch, before TRL shuffles and cuts it."""
    batch = inner(*given, **named)
    if held.is_training:
        try:
            _tell_batch(held, batch)
        except Exception as error:
            _failed(held, "batch", error)
    return batch


def _tell_batch(held: Attached, batch: dict[str, Any]) -> None:
    trainer, mask = held.trainer, batch["completion_mask"]
    held.made_at = trainer.state.global_step
    rows = torch.arange(len(mask), device=mask.device) + trainer.accelerator.process_index * len(mask)
    batch[ROW] = rows
    reward = None
    if held.rewards is not None:
        weights = trainer.reward_weights.to(held.rewards.device)
        reward = (held.rewards * weights).nansum(dim=1)
        reward = reward.masked_fill(held.rewards.isnan().all(dim=1), float("nan"))
    group = None if reward is None else torch.arange(len(reward), device=reward.device) // trainer.num_generations
    held.watch.batch(reward=reward, group=group, row=rows, advantage=batch["advantages"], normalize=_normalize(trainer))


def _logps(held: Attached, inner: Any, *given: Any, **named: Any) -> Any:
    found = inner(*given, **named)
    if held.is_in_loss:
        held.current = (found[0], found[1])
    return found


def _loss(held: Attached, inner: Any, model: Any, inputs: dict[str, Any], *given: Any, **named: Any) -> Any:
    if not held.is_training:
        return inner(model, inputs, *given, **named)
    held.current, held.is_in_loss = None, True
    try:
        with held.watch.unwritten(inputs):
            loss = inner(model, inputs, *given, **named)
    finally:
        held.is_in_loss = False
    try:
        _tell_micro_batch(held, inputs)
    except Exception as error:
        _failed(held, "micro_batch", error)
    return loss


def _tell_micro_batch(held: Attached, inputs: Mapping[str, Any]) -> None:
    if held.current is None:
        return
    trainer = held.trainer
    (logp, entropy), held.current = held.current, None
    mask = inputs["completion_mask"] * inputs["tool_mask"] if "tool_mask" in inputs else inputs["completion_mask"]
    old = inputs.get("old_per_token_logps")
    held.watch.micro_batch(
        mask=mask,
        row=inputs.get(ROW),
        logp_current=logp,
        logp_old=logp.detach() if old is None else old,
        logp_rollout=inputs.get("sampling_per_token_logps"),
        logp_ref=inputs.get("ref_per_token_logps"),
        entropy=entropy,
        advantage=inputs["advantages"],
        importance=inputs.get("importance_sampling_ratio") if _is_corrected(trainer) else None,
        ids=inputs["completion_ids"],
        prompt_ids=inputs["prompt_ids"],
        prompt_mask=inputs["prompt_mask"],
        denominator=_denominator(trainer, inputs, mask),
        has_old=old is not None,
        updates=trainer.state.global_step - held.made_at,
        accumulation=trainer.current_gradient_accumulation_steps,
        corrections=_corrections(trainer),
        grad_scale=_grad_scale(trainer),
    )


def _denominator(trainer: Any, inputs: Mapping[str, Any], mask: Tensor) -> Tensor | None:
    """What TRL's options say that each token's loss is divided by, one number per row."""
    steps, lengths = trainer.current_gradient_accumulation_steps, mask.sum(-1).clamp(min=1)
    ones = torch.ones_like(lengths, dtype=torch.float64)
    match MEANS.get(trainer.loss_type):
        case "sequence_mean":
            return lengths * ones * len(mask) * steps
        case "token_mean of the micro-batch":
            return ones * mask.sum().clamp(min=1) * steps
        case "constant":
            return ones * len(mask) * trainer.max_completion_length * steps
        case "sequence_sum":
            return ones * len(mask) * steps
        case "token_mean":
            whole = inputs["num_items_in_batch"].clamp(min=1) / trainer.accelerator.num_processes
            return ones * whole * steps / trainer.args.steps_per_generation
        case _:
            return None


def _normalize(trainer: Any) -> dict[str, Any] | None:
    """How TRL compares rewards, in the settings of `normalize.mean_std`; None for what it cannot say."""
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        return None
    return {"mean": "group", "std": trainer.scale_rewards, "ddof": 1, "eps": 1e-4}


def _is_corrected(trainer: Any) -> bool:
    return bool(trainer.use_vllm and trainer.vllm_importance_sampling_correction)


def _corrections(trainer: Any) -> tuple[str, ...]:
    """What is switched on and can act."""
    found = ("importance",) if _is_corrected(trainer) else ()
    return (*found, "rejection") if trainer.off_policy_mask_threshold is not None else found


def _grad_scale(trainer: Any) -> float:
    scaler = getattr(trainer.accelerator, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0


def _about(trainer: Any) -> dict[str, object]:
    args = trainer.args
    settings = {
        name: getattr(args, name, None)
        for name in ("loss_type", "beta", "epsilon", "epsilon_high", "num_iterations", "scale_rewards", "temperature",
                     "gradient_accumulation_steps", "steps_per_generation", "num_generations", "learning_rate",
                     "importance_sampling_level", "use_vllm", "off_policy_mask_threshold", "seed")
    }  # fmt: skip
    summary = f"TRL's own loss `{trainer.loss_type}`, watched and not changed."
    return {"recipe": {"name": f"TRL {trainer.loss_type}", "summary": summary}, "seed": args.seed, "trl": settings}


def _failed(held: Attached, where: str, error: Exception) -> None:
    if held.watch.strict:
        raise error
    note(held.watch, where, error)


def _callback(held: Attached) -> Any:
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        """Tells the watch when an optimiser step and the run are over."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            for name, value in held.watch.step().items():
                held.trainer._metrics["train"][name].append(value)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            held.watch.close()

    return Steps()
