"""`trimtab train --dry-run`: what would happen, what it would take. Nothing is written."""

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from trimtab.cli.explain import show_recipe
from trimtab.config.train import TrainSettings
from trimtab.signal import Recipe

if TYPE_CHECKING:
    from trimtab.train.policy import Policy


def show_plan(settings: TrainSettings, recipe: Recipe, console: Console) -> None:
    """The recipe, the sizes, the memory by purpose, and the time of one real step times their number."""
    from trimtab.train.checks.cautions import cautions
    from trimtab.train.checks.memory import estimate_memory, model_copies
    from trimtab.train.checks.precheck import caution_of_length, precheck
    from trimtab.train.setup import task_and_policy

    show_recipe(recipe, console, title=f"{recipe.name} will run")
    found = precheck(settings, recipe)
    task, policy = task_and_policy(settings)
    problem = task.train(0)
    tokens = settings.prompts_per_step * settings.samples_per_prompt * settings.max_new_tokens
    steps, lr = settings.warm_start_steps, settings.warm_start_lr
    warm = f"{steps} supervised steps on right answers, lr {lr:g}" if steps else "none"
    many = f"{found.train:,}" if found.train is not None else "made as needed"
    rows = {
        "task": f"{task.name}: {problem.text!r} -> {problem.answer!r}",
        "problems": f"train {many}, validation {found.validation:,}, test {found.test:,}",
        "policy": f"{policy.num_parameters:,} parameters, {policy.dtype} on {settings.model.device}; "
        f"vocabulary {len(policy.tokenizer):,}" + _adapter(policy, settings),
        "sampler": f"{settings.engine.format}, runtime {settings.runtime}, at most {settings.staleness} updates old",
        "warm start": warm,
        "batch": f"{settings.prompts_per_step} prompts x {settings.samples_per_prompt} answers, at most "
        f"{tokens:,} trainable tokens; {settings.updates_per_batch} updates",
        "copies": _copies(model_copies(settings, recipe)),
        "memory": _memory(estimate_memory(policy, settings, recipe)),
        "time": _time(settings, recipe),
    }
    rows |= _cluster(settings)
    long = caution_of_length(task, policy, settings)
    warnings = [*cautions(settings, recipe), *([long] if long else [])]
    console.print()
    for name, text in [*rows.items(), *(("warning", text) for text in warnings)]:
        style = "yellow" if name == "warning" else "bold"
        console.print(Text.assemble((f"{name:<12}", style), text), soft_wrap=True)


def _cluster(settings: TrainSettings) -> dict[str, str]:
    """Which cluster, and what would be placed where. One that is there is asked what it has; none is started."""
    if settings.runtime != "ray":
        return {}
    from trimtab.train.cluster.placement import placement_lines, wanted_resources
    from trimtab.train.cluster.session import find_address, look_at_nodes

    address = find_address(settings.cluster)
    if address == "local":
        asks = ", ".join(f"{name} {count:g}" for name, count in wanted_resources(settings).items())
        told = f"local: would be started for this run, on loopback, with {asks or 'CPU 1'}, without a dashboard"
        lines = placement_lines(settings, None)
    else:
        nodes = look_at_nodes(settings.cluster)
        told, lines = f"{address}, {len(nodes)} nodes", placement_lines(settings, nodes)
    return {"cluster": told, "placement": ("\n" + " " * 12).join(lines)}


def _adapter(policy: "Policy", settings: TrainSettings) -> str:
    from trimtab.train.adapter import adapter_size

    lora = settings.model.lora
    if lora is None:
        return ""
    return f"; an adapter of rank {lora.rank} with {adapter_size(policy.model, lora):,} parameters is trained"


def _copies(copies: dict[str, str]) -> str:
    named = ", ".join(f"{name} ({what})" for name, what in copies.items())
    return f"{len(copies)} of the model: {named}"


def _memory(sizes: dict[str, int]) -> str:
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in sizes.items())
    return f"about {_bytes(sum(sizes.values()))}: {parts}"


def _time(settings: TrainSettings, recipe: Recipe) -> str:
    """One real step, in memory: the sampler on one batch, then the learner on it."""
    import torch

    from trimtab.rollout.publication import Publication
    from trimtab.train.learner import Learner
    from trimtab.train.policy import published
    from trimtab.train.setup import new_collector, task_and_policy

    torch.set_num_threads(settings.threads)
    _, policy = task_and_policy(settings)
    collector = new_collector(policy, settings)
    try:
        collector.load(Publication(0, published(policy.model)))
        began = time.perf_counter()
        rollouts = collector.collect(list(range(settings.prompts_per_step)))
        sampled = time.perf_counter()
        _ = Learner(policy, recipe, settings).learn(rollouts, version=0)
        learned = time.perf_counter()
    finally:
        collector.close()
    sample, learn = sampled - began, learned - sampled
    step = max(sample, learn) if settings.runtime != "inline" else sample + learn
    return (
        f"{sample:.2f} s to sample and {learn:.2f} s to learn from one batch (measured now, untrained), so about "
        f"{_duration(step * settings.steps)} for {settings.steps} steps, evaluations and warm start besides"
    )


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit in ("B", "KiB") else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
