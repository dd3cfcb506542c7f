"""The only place that says what a training run can be told. Frozen; unknown keys and senseless values are refused."""

from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from trimtab.config.cluster import ClusterSettings
from trimtab.config.number import Count, File, Natural, NonNegative, Rate, Seed, Share
from trimtab.config.table import Table
from trimtab.errors import ConfigError, unknown_name

Format = Literal["fp32", "bf16", "int8", "int4", "int3"]
Runtime = Literal["inline", "processes", "ray"]
LOGGERS = ("tensorboard", "wandb", "trackio")


class TaskSettings(Table):
    """What is asked and how answers are judged. A bare name is enough: `train.task=sort`."""

    name: str = "sort"
    """reverse, sort, arithmetic, calculator, gsm8k, file, openenv, reasoning_gym.X, verifiers.X, `module:factory`."""
    size: Annotated[Count, Field(le=1000)] = 5
    """Digits of reverse and sort; operands of arithmetic, calculator and gsm8k lie below ten times this; 1 to 1000."""
    file: File | None = None
    """Problems for `name = "file"`: JSONL or parquet with `prompt` (text or chat messages), `answer`, your columns."""
    eval_file: File | None = None
    """Held-out problems in the same form; unset: a fifth of `file`, split off by a hash of the prompt."""
    options: dict[str, bool | int | float | str] = {}  # noqa: RUF012 - pydantic copies it
    """Options of the task by its own names: a reasoning-gym data set, a file's columns, verifiers (dotted), openenv."""
    reward: str = "task"
    """Who judges: the task itself, `exact`, `numeric`, `math_verify`, or your own as `module:function`."""
    reward_seconds: Rate = 5.0
    """Time limit of your own reward for one answer; past it the answer is counted as a timeout and does not train."""
    reward_workers: Annotated[Count, Field(le=256)] = 1
    """Processes that run your own reward, 1 to 256."""
    max_turns: Count = 2
    """Turns of an episode at most; read only by tasks that answer back."""
    episode_seconds: NonNegative = 0.0
    """Time limit of one episode, all turns; past it, it is counted as a timeout and does not train. 0: none."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _file_and_name(self) -> "TaskSettings":
        if (self.name == "file") != (self.file is not None):
            raise ConfigError(
                f"task: name is {self.name!r} and file is {self.file}, so it is not clear where problems come from. "
                'Write name = "file" together with file = "problems.jsonl", or neither.'
            )
        if self.eval_file is not None and self.file is None:
            raise ConfigError("task: eval_file is given without file, so nothing reads it. Give both, or neither.")
        return self


class LoraSettings(Table):
    """Train low-rank matrices beside the model's linear layers instead of the model (LoRA). Needs `trimtab[lora]`."""

    rank: Annotated[Count, Field(le=1024)] = 16
    """Rank of each adapter, 1 to 1024."""
    alpha: Count | None = None
    """An adapter is multiplied by alpha / rank; unset: twice the rank."""
    targets: tuple[str, ...] | Literal["all"] = "all"
    """Linear layers by their last name, such as q_proj; `all` is every one but the output head."""


class ModelSettings(Table):
    """The policy: a folder of yours, or a Qwen3 of these sizes with random parameters (0.13 million by default)."""

    path: File | None = None
    """A Hugging Face causal LM folder (safetensors, with tokenizer); the sizes below are then not read."""
    hidden_size: Count = 64
    """Width of the hidden state; a multiple of `num_heads`, with an even quotient (rotary positions turn pairs)."""
    num_layers: Count = 2
    """Transformer layers, 1 or more."""
    num_heads: Count = 4
    """Attention heads, 1 or more."""
    mlp_size: Count = 256
    """Width of the feed-forward layer, 1 or more."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the trainer's parameters; log-probs are computed in float32 either way."""
    head: Literal["float32", "same"] = "float32"
    """In which number format the output head computes logits: float32, or the `same` as the parameters."""
    device: str = "cpu"
    """Where the trainer computes: cpu, cuda, cuda:1."""
    lora: LoraSettings | None = None
    """Train an adapter and leave the model as it is; its learning rate is usually ten times that of the model."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, a third more time."""

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelSettings":
        unit = 2 * self.num_heads
        if self.path is None and self.hidden_size % unit:
            raise ConfigError(
                f"model: hidden_size {self.hidden_size} is not a multiple of 2 x num_heads = {unit}, so a head would "
                f"have an odd or broken width. Take {unit * (self.hidden_size // unit + 1)}."
            )
        return self


UNCLEAR = (
    'so it is not clear who samples. Write name = "vllm" together with servers = ["http://127.0.0.1:8000"], or neither.'
)


class EngineSettings(Table):
    """The sampler: how it stores the parameters, and which distribution it draws from."""

    name: str = "embedded"
    """Who samples: `embedded`, `vllm`, or your own as `module:factory`, called with model, tokenizer, settings."""
    format: Format = "fp32"
    """Number format of the sampler's weight matrices; below fp32 the sampler differs from the trainer."""
    top_p: Share = 1.0
    """Draw from the smallest set of tokens that holds this share of the probability; 1 draws from all."""
    top_k: Natural = 0
    """Draw from this many likeliest tokens; 0 draws from all."""
    record_support: bool = False
    """Record which tokens top-p and top-k left, so that the trainer can compute its log-probs over the same ones."""
    max_rows: Natural = 0
    """Answers sampled at once; as some end the next enter. 0: all of them; in sampler processes, a batch each."""
    processes: Annotated[Count, Field(le=64)] = 1
    """Samplers of the runtimes `processes` and `ray`, 1 to 64; each has a copy of the model and `threads` threads."""
    servers: tuple[str, ...] = ()
    """Addresses of vLLM servers (`trimtab serve`); token: TRIMTAB_TOKEN. Unset on Ray: a sampler starts its own."""
    seen_as: str = ""
    """The run's `.sampler` folder as the servers see it, where they see it under another name."""
    request_seconds: Rate = 600.0
    """Time limit of one answer of a server."""

    @model_validator(mode="after")
    def _engine_is_known(self) -> "EngineSettings":
        if self.name not in ("embedded", "vllm") and ":" not in self.name:
            raise ConfigError(unknown_name("train.engine.name", self.name, ["embedded", "vllm", "module:factory"]))
        if self.servers and self.name != "vllm":
            raise ConfigError(f"train.engine: name is {self.name!r} and servers is {list(self.servers)}, {UNCLEAR}")
        for url in self.servers:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
                raise ConfigError(
                    f"train.engine.servers: {parts.hostname or url!r} is not the plain address of a server, such as "
                    "http://127.0.0.1:8000. A token belongs into the environment (TRIMTAB_TOKEN), not into a run file."
                )
        if len(set(self.servers)) < len(self.servers):
            raise ConfigError("train.engine.servers: names a server twice, so both would load into it. Name it once.")
        if self.name == "vllm" and self.format != "fp32":
            raise ConfigError(
                f"train.engine: format is {self.format!r}, and a server keeps its own number format, so nothing would "
                "read it. Start the server with --dtype, and leave format out."
            )
        return self


class EarlyStop(Table):
    """Stop when the held-out validation accuracy is high enough, several evaluations in a row."""

    accuracy: Share = 0.98
    """Greedy accuracy to reach, above 0, at most 1."""
    evaluations: Count = 2
    """How many evaluations in a row must reach it."""


class TrainSettings(Table):
    """One run, start to end."""

    seed: Seed = 0
    """Names every random stream of the run; 0 or more."""
    run_dir: File | None = None
    """The run folder; it must be empty or absent. Unset: `runs/<UTC time>-seed<N>`."""
    task: TaskSettings = TaskSettings()
    """What is asked and how answers are judged."""
    model: ModelSettings = ModelSettings()
    """The policy."""
    engine: EngineSettings = EngineSettings()
    """The sampler."""
    runtime: Runtime = "inline"
    """`inline` samples and learns in turn, reproducibly; `processes` does both at once; `ray` does so on a cluster."""
    cluster: ClusterSettings = ClusterSettings()
    """Where the parts of a run live; read only with `runtime = "ray"`."""
    staleness: Natural = 0
    """Updates between the parameters that sampled a batch and those that learn from it, at most; 0 is synchronous."""
    warm_start_steps: Natural = 50
    """Supervised optimiser steps before the first rollout; unset, a model from a folder gets none."""
    warm_start_lr: Rate = 2e-3
    """Learning rate of the supervised steps, above 0."""
    steps: Count = 150
    """Batches at most, 1 or more."""
    prompts_per_step: Count = 32
    """Prompts (groups) in a batch, 1 or more."""
    samples_per_prompt: Count = 8
    """Answers (episodes) to each prompt, 1 or more; recipes that compare answers need 2."""
    dynamic_sampling: Natural = 0
    """Extra batches of prompts sampled at most to replace groups whose answers all earned the same; 0: none (DAPO)."""
    max_new_tokens: Count = 8
    """The longest answer, or turn of one, in tokens, its end token included."""
    temperature: Rate = 1.0
    """Divides the logits, in sampling and in training alike; above 0."""
    updates_per_batch: Count = 1
    """Optimiser steps on each batch, 1 or more; at most `prompts_per_step`, because groups stay together."""
    lr: Rate = 2e-4
    """Learning rate of AdamW at its highest, above 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `lr` falls towards 0 over `steps`."""
    lr_warmup_steps: Natural = 0
    """Steps over which `lr` rises from 0."""
    weight_decay: NonNegative = 0.0
    """AdamW's decoupled weight decay, 0 or more."""
    critic_lr: Rate = 1e-2
    """Learning rate of the linear critic; read only by recipes with a value."""
    grad_clip: Rate = 1.0
    """Gradients with a larger norm are scaled down to it; above 0."""
    nonfinite_limit: Count = 3
    """Stop after this many optimiser steps in a row whose loss or gradient was not finite; each is skipped."""
    rank_timeout: Rate = 600.0
    """Seconds that ranks of one run wait for each other before they give the run up; read only with several ranks."""
    max_tokens_per_micro_batch: Count = 4096
    """Positions in one forward and backward pass at most, prompts and padding included (one sequence at least)."""
    eval_every: Count = 10
    """Steps between evaluations on held-out prompts, 1 or more."""
    eval_prompts: Count = 512
    """Held-out prompts of one evaluation, 1 or more."""
    eval_samples: Natural = 0
    """Sampled answers to each held-out prompt at the end, for avg@k and pass@k; 0: greedy only."""
    early_stop: EarlyStop | Literal["never"] = EarlyStop()
    """When to stop before `steps`; "never" runs them all."""
    max_minutes: NonNegative = 0.0
    """Stop after this long, checkpoint written; 0: no limit."""
    checkpoint_every: Natural = 25
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: Count = 2
    """Latest checkpoints kept; the best one is kept besides."""
    dump_batches: bool = False
    """Write every batch the signal saw to `batches/step_NNNN.safetensors`, for `trimtab replay`."""
    log_to: tuple[str, ...] = ()
    """Where metrics go besides `metrics.jsonl`: tensorboard, wandb, trackio, or your own logger as `module:factory`."""
    threads: Annotated[Count, Field(le=1024)] = 1
    """CPU threads of torch, for sampler and learner each; both must fit. With 1, equal seeds give equal numbers."""

    @model_validator(mode="before")
    @classmethod
    def _folder_starts_as_it_is(cls, given: Any) -> Any:
        """A model from a folder is already trained; it gets no warm start unless asked for."""
        if not isinstance(given, dict):
            return given
        table = cast("dict[str, Any]", given)
        model: Any = table.get("model")
        path: Any = cast("dict[str, Any]", model).get("path") if isinstance(model, dict) else model
        path = path.path if isinstance(path, ModelSettings) else path
        brought = "warm_start_steps" not in table and isinstance(path, str | Path)
        return {**table, "warm_start_steps": 0} if brought else table

    @model_validator(mode="after")
    def _loggers_are_known(self) -> "TrainSettings":
        for name in self.log_to:
            if name not in LOGGERS and ":" not in name:
                raise ConfigError(unknown_name("train.log_to", name, [*LOGGERS, "module:factory"]))
        return self

    @model_validator(mode="after")
    def _servers_are_named_or_started(self) -> "TrainSettings":
        if self.engine.name == "vllm" and not self.engine.servers and self.runtime != "ray":
            raise ConfigError(f"train.engine: name is 'vllm' and servers is [], {UNCLEAR}")
        return self

    @model_validator(mode="after")
    def _servers_sample_beside(self) -> "TrainSettings":
        if self.engine.servers and self.runtime == "inline":
            raise ConfigError(
                'train: engine.name is "vllm" and runtime is "inline", which promises equal bits for equal seeds, and '
                'a server cannot. Write runtime = "processes".'
            )
        return self

    @model_validator(mode="after")
    def _updates_fit_the_batch(self) -> "TrainSettings":
        if self.updates_per_batch > self.prompts_per_step:
            raise ConfigError(
                f"train: updates_per_batch {self.updates_per_batch} is more than prompts_per_step "
                f"{self.prompts_per_step}, so some updates would hold no group. Take fewer updates, or more prompts."
            )
        return self
