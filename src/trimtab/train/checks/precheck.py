"""The only place that finds out, before any work, whether a run with these settings can reach its end here.

Nothing is written and no parameter is made. A refusal here costs a second; the same one after the warm start costs
minutes and leaves a folder behind.
"""

import os
from collections.abc import Sized
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

import torch

from trimtab.errors import ConfigError, MissingExtra, SignalError
from trimtab.rollout.reward import open_scorer
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Task, open_task
from trimtab.rollout.tokenizer import encode
from trimtab.signal import Recipe
from trimtab.train.opening import check_run
from trimtab.train.policy import Policy, find_device
from trimtab.train.warmstart import PROMPTS_PER_STEP

if TYPE_CHECKING:
    from trimtab.config.train import ModelSettings, TrainSettings

LOOKED_AT = 1024
"""Demonstrations that are checked beforehand, at most. A later row without an answer is refused when it is used."""
TRAINED_BYTES = 4 * 4
"""Bytes per parameter that every run needs: itself, its gradient and two moments, in float32."""


@dataclass(frozen=True)
class Sizes:
    """How many problems there are. `train` is None for a task that makes them as they are needed."""

    train: int | None
    validation: int
    test: int


def precheck(settings: "TrainSettings", recipe: Recipe) -> Sizes:
    """Refuse what would fail later: check the recipe, this machine, its packages, the task and the reward."""
    check_run(settings, recipe)
    _check_threads(settings.threads)
    _check_groups(settings, recipe)
    _check_packages(settings)
    _ = find_device(settings.model.device)
    _check_memory(settings.model)
    task = open_task(settings.task, settings.seed)
    rows = cast("object", getattr(task, "rows", None))
    sizes = Sizes(
        train=len(rows) if isinstance(rows, Sized) else None,
        validation=len(task.held_out("validation", settings.eval_prompts)),
        test=len(task.held_out("test", settings.eval_prompts)),
    )
    _check_demonstrations(settings)
    open_scorer(settings.task.model_copy(update={"reward_workers": 1}), task).close()
    return sizes


def caution_of_length(task: Task, policy: Policy, settings: "TrainSettings", *, looked_at: int = 32) -> str | None:
    """A sentence when right answers do not fit into `max_new_tokens`: they could never be rewarded."""
    long = 0
    for ticket in range(looked_at):
        problem = task.train(ticket)
        if not problem.answer:  # only a judge knows what is right
            continue
        turns = task.demonstration(problem)
        long += any(len(encode(policy.tokenizer, turn)) + 1 > settings.max_new_tokens for turn in turns)
    if not long:
        return None
    return (
        f"train.max_new_tokens: {long} of the first {looked_at} right answers have more than "
        f"{settings.max_new_tokens} tokens, their end token included, so the policy can never write them. Set a higher "
        "limit."
    )


def _check_threads(threads: int) -> None:
    cores = os.cpu_count() or 1
    if threads > cores:
        raise ConfigError(
            f"train.threads: {threads} threads were asked for and this machine has {cores} cores, so they would wait "
            f"for each other and every step would take longer. Set train.threads={cores} or fewer."
        )


def _check_groups(settings: "TrainSettings", recipe: Recipe) -> None:
    """Let the recipe's own baseline say whether it is defined for groups of this size."""
    num_groups, size = min(settings.prompts_per_step, 2), settings.samples_per_prompt
    available = {
        "reward": torch.arange(num_groups * size, dtype=torch.float32) % 2,
        "votes": torch.ones(num_groups * size, dtype=torch.bool),
        "group_of_episode": torch.arange(num_groups).repeat_interleave(size),
        "num_groups": num_groups,
    }
    if not set(recipe.normalize.formula.inputs) <= set(available):
        return  # a formula of the user's own, which reads more than a batch of rewards
    try:
        _ = recipe.normalize(available)
    except SignalError as error:
        raise ConfigError(
            f"train.samples_per_prompt: {size} answers per prompt are too few for recipe {recipe.name!r}, whose "
            f"{recipe.normalize.formula.name} compares the answers to a prompt. Set train.samples_per_prompt=2 or "
            "more, or take a recipe without a group's baseline, such as reinforce."
        ) from error


def _check_packages(settings: "TrainSettings") -> None:
    for given, package, extra in ((settings.engine.servers, "httpx", "http"), (settings.model.lora, "peft", "lora")):
        if given and find_spec(package) is None:
            raise MissingExtra(f'train: needs {package}, which is not installed: pip install "trimtab[{extra}]"')
    for name in settings.log_to:
        if ":" not in name and find_spec(name) is None:
            raise MissingExtra(
                f'log_to: {name} is not installed, so its metrics would go nowhere: pip install "trimtab[{name}]"'
            )


def _check_memory(model: "ModelSettings") -> None:
    """Of a model that is made new: its parameters alone must fit."""
    if model.path is not None or not hasattr(os, "sysconf"):
        return
    parameters = model.num_layers * model.hidden_size * (4 * model.hidden_size + 3 * model.mlp_size)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if parameters * TRAINED_BYTES > there:
        raise ConfigError(
            f"train.model: about {parameters:.1e} parameters take {parameters * TRAINED_BYTES / 2**30:,.0f} GiB with "
            f"their gradients and moments, and this machine has {there / 2**30:,.0f} GiB, so they do not fit. Make "
            "hidden_size, mlp_size or num_layers smaller."
        )


def _check_demonstrations(settings: "TrainSettings") -> None:
    """The warm start needs right answers: ask for those that it will meet first."""
    if not settings.warm_start_steps:
        return
    task = open_task(settings.task, stream_seed(settings.seed, "warm start"))
    for ticket in range(min(settings.warm_start_steps * PROMPTS_PER_STEP, LOOKED_AT)):
        _ = task.demonstration(task.train(ticket))
