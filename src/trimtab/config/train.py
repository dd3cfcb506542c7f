"""The only place that says what a training run can be told. Frozen; unknown keys and senseless values are refused."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trimtab.errors import ConfigError

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Frozen(BaseModel):
    """Settings never change once made, and a key nobody reads is an error, not a surprise."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelSettings(Frozen):
    """The size of the policy: a Qwen3 with random parameters. The default has 0.13 million."""

    hidden_size: Count = 64
    """Width of the hidden state; a multiple of `num_heads`, with an even quotient (rotary positions turn pairs)."""
    num_layers: Count = 2
    """Transformer layers, 1 or more."""
    num_heads: Count = 4
    """Attention heads, 1 or more."""
    mlp_size: Count = 256
    """Width of the feed-forward layer, 1 or more."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelSettings":
        unit = 2 * self.num_heads
        if self.hidden_size % unit:
            raise ConfigError(
                f"model: hidden_size {self.hidden_size} is not a multiple of 2 x num_heads = {unit}, so a head would "
                f"have an odd or broken width. Take {unit * (self.hidden_size // unit + 1)}."
            )
        return self


class EarlyStop(Frozen):
    """Stop when the held-out validation accuracy is high enough, several evaluations in a row."""

    accuracy: Annotated[float, Field(gt=0, le=1)] = 0.98
    """Greedy exact-match accuracy to reach, above 0, at most 1."""
    evaluations: Count = 2
    """How many evaluations in a row must reach it."""


class TrainSettings(Frozen):
    """One synchronous run, start to end. The defaults teach a tiny model to reverse five digits in under a minute."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Names every random stream of the run; 0 or more."""
    run_dir: Path | None = None
    """The run folder; it must be empty or absent. Unset: `runs/<UTC time>-seed<N>`."""
    task: str = "reverse"
    """What is asked; a name of `trimtab.rollout.task.TASKS`."""
    model: ModelSettings = ModelSettings()
    """The size of the policy."""
    warm_start_steps: Annotated[int, Field(ge=0)] = 50
    """Supervised optimiser steps before the first rollout; 0 starts from random parameters."""
    warm_start_lr: Rate = 2e-3
    """Learning rate of the supervised steps, above 0."""
    steps: Count = 150
    """Batches at most, 1 or more."""
    prompts_per_step: Count = 32
    """Prompts (groups) in a batch, 1 or more."""
    samples_per_prompt: Count = 8
    """Answers (episodes) to each prompt, 1 or more; recipes that compare answers need 2."""
    max_new_tokens: Count = 8
    """The longest answer, in tokens, its end token included."""
    temperature: Rate = 1.0
    """Divides the logits, in sampling and in training alike; above 0."""
    updates_per_batch: Count = 1
    """Optimiser steps on each batch, 1 or more; at most `prompts_per_step`, for groups stay together."""
    lr: Rate = 2e-4
    """Learning rate of AdamW, above 0."""
    critic_lr: Rate = 1e-2
    """Learning rate of the linear critic; read only by recipes with a value."""
    grad_clip: Rate = 1.0
    """Gradients with a larger norm are scaled down to it; above 0."""
    max_tokens_per_micro_batch: Count = 4096
    """Trainable tokens in one forward and backward pass at most (one sequence at least); bounds memory only."""
    eval_every: Count = 10
    """Steps between evaluations on held-out prompts, 1 or more."""
    eval_prompts: Count = 512
    """Held-out prompts of one evaluation, 1 or more."""
    early_stop: EarlyStop | Literal["never"] = EarlyStop()
    """When to stop before `steps`; "never" runs them all."""
    dump_batches: bool = False
    """Write every batch the signal saw to `batches/step_NNNN.safetensors`."""
    threads: Count = 1
    """CPU threads of torch. With 1, equal seeds give equal numbers; more are faster on an idle machine."""

    @model_validator(mode="after")
    def _updates_fit_the_batch(self) -> "TrainSettings":
        if self.updates_per_batch > self.prompts_per_step:
            raise ConfigError(
                f"train: updates_per_batch {self.updates_per_batch} is more than prompts_per_step "
                f"{self.prompts_per_step}, so some updates would hold no group. Take fewer updates, or more prompts."
            )
        return self
