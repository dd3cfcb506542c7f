"""The only place that knows the order of a synchronous run: sample, learn, publish, and again.

Step k samples with version k, trains on what it sampled, and publishes version k + 1. An evaluation at step k measures
version k, the policy that samples this step.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from trimtab.config.train import EarlyStop, TrainSettings
from trimtab.rollout.assemble import Assembled, Episode, assemble
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Engine, Sampling
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Problem, Split, Task, draw
from trimtab.rollout.task import task as named_task
from trimtab.rollout.tokenizer import decode, encode
from trimtab.signal import Recipe
from trimtab.train.describe import described
from trimtab.train.evaluate import Evaluation, evaluate
from trimtab.train.interrupt import StopRequest, stop_on_interrupt
from trimtab.train.learn import Learner
from trimtab.train.policy import Policy, frozen_copy, new_policy, published, save
from trimtab.train.progress import Progress
from trimtab.train.record import Outcome, Record, Summary, manifest, open_record
from trimtab.train.warmstart import warm_start

SHOWN_ANSWERS = 8
"""Held-out answers kept at each evaluation, for people to read."""


@dataclass
class Run:
    """Everything a run holds, and what it has counted so far."""

    settings: TrainSettings
    task: Task
    policy: Policy
    engine: Engine
    learner: Learner
    record: Record
    progress: Progress
    started: float
    steps: int = 0
    tokens: int = 0
    step_seconds: float = 0.0
    skipped_updates: int = 0
    accuracies: list[float] = field(default_factory=list[float])
    evaluated_step: int = -1
    shown: frozenset[str] = frozenset()
    warnings: Counter[str] = field(default_factory=Counter[str])


def train_run(settings: TrainSettings, recipe: Recipe, progress: Progress) -> Summary:
    """The whole run, from random parameters to its summary."""
    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with stop_on_interrupt() as stop, progress:
            run = _opened(settings, recipe, progress, started, stop)
            outcome = _loop(run, stop)
            return _finished(run, outcome)
    finally:
        torch.set_num_threads(threads)


def _opened(settings: TrainSettings, recipe: Recipe, progress: Progress, started: float, stop: StopRequest) -> Run:
    """Folder, model, warm start, engine: all that comes before the first step."""
    task = named_task(settings.task)
    record = open_record(settings.run_dir, settings.seed)
    progress.opened(settings, recipe.name, record.folder)
    record.write_json("config.json", {**settings.model_dump(mode="json"), "recipe": described(recipe)})
    policy = new_policy(settings.model, task.alphabet, settings.seed)
    engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_id=policy.eos_id)
    record.write_json(
        "manifest.json",
        manifest(seed=settings.seed, trainer_dtype=policy.dtype, engine_dtype=engine.dtype, threads=settings.threads),
    )
    progress.stage(f"warm start: {settings.warm_start_steps} supervised steps")
    _ = warm_start(
        policy, task, steps=settings.warm_start_steps, lr=settings.warm_start_lr, seed=settings.seed, stopped=stop
    )
    engine.load(published(policy.model), 0)
    learner = Learner(policy, recipe, settings)  # its reference, if any, is the policy as it is now
    return Run(settings, task, policy, engine, learner, record, progress, started)


def _loop(run: Run, stop: StopRequest) -> Outcome:
    """Steps until there are enough, the policy is good enough, or somebody asks to stop."""
    validation = _held_out(run, "validation")
    for index in range(run.settings.steps):
        if stop():
            return "interrupted"
        line: dict[str, object] = {"step": index, "version": run.engine.version}
        if index % run.settings.eval_every == 0:
            line["eval/accuracy"] = _evaluated(run, validation, index)
            if _good_enough(run):
                return "early_stop"
        line |= _stepped(run, index)
        run.record.append("metrics.jsonl", line)
        run.progress.step(line)
    return "finished"


def _stepped(run: Run, index: int) -> dict[str, object]:
    """Sample, learn, publish; the metrics of the step."""
    began = time.perf_counter()
    assembled = _sampled(run, index)
    sampled = time.perf_counter()
    learned = run.learner.learn(assembled, version=index)
    run.engine.load(published(run.policy.model), index + 1)
    ended = time.perf_counter()
    run.steps += 1
    run.tokens += assembled.num_tokens
    run.step_seconds += ended - began
    run.skipped_updates += learned.skipped_updates
    run.warnings.update(learned.warnings)
    if run.settings.dump_batches:
        run.record.dump_batch(index, learned.fields)
    return {
        "rollout/reward_mean": float(assembled.reward.mean()),
        "rollout/ended_fraction": float(assembled.ended.float().mean()),
        "rollout/tokens": assembled.num_tokens,
        "train/skipped_updates": learned.skipped_updates,
        **learned.metrics,
        "time/sample_seconds": sampled - began,
        "time/learn_seconds": ended - sampled,
        "time/elapsed_seconds": ended - run.started,
        "time/tokens_per_second": assembled.num_tokens / (ended - began),
    }


def _sampled(run: Run, index: int) -> Assembled:
    """The batch of one step: prompts, their answers, their rewards."""
    settings = run.settings
    stream = random.Random(stream_seed(settings.seed, "prompts", index))
    problems = draw(run.task, stream, settings.prompts_per_step, "train")
    how = Sampling(
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        seed=stream_seed(settings.seed, "rollout", index),
        samples_per_prompt=settings.samples_per_prompt,
    )
    samples = run.engine.sample([encode(run.policy.tokenizer, problem.prompt) for problem in problems], how)
    episodes: list[Episode] = []
    for number, sample in enumerate(samples):
        group = number // settings.samples_per_prompt
        ended = sample.finish == "eos"
        text = decode(run.policy.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
        reward = run.task.reward(problems[group], text, ended=ended)
        episodes.append(Episode(sample=sample, group=group, reward=reward))
    first_id = stream_seed(settings.seed, "sequences", index) >> 1  # half the range leaves room to count on
    return assemble(episodes, pad_id=run.policy.pad_id, first_id=first_id)


def _held_out(run: Run, split: Split) -> list[Problem]:
    """The same prompts in every run, whatever its seed: accuracies of different seeds can be compared."""
    return draw(run.task, random.Random(stream_seed("held out", split)), run.settings.eval_prompts, split)


def _evaluated(run: Run, problems: list[Problem], index: int) -> float:
    """Validation accuracy now; the record keeps the answers to a few prompts, always the same, wrong ones first."""
    evaluation = _measured(run, problems)
    if not run.shown:
        wrong_first = sorted(evaluation.answers, key=lambda answer: answer.is_right)
        run.shown = frozenset(answer.problem.prompt for answer in wrong_first[:SHOWN_ANSWERS])
    for answer in evaluation.answers:
        if answer.problem.prompt in run.shown:
            line = {"step": index, "prompt": answer.problem.prompt, "answer": answer.text, "is_right": answer.is_right}
            run.record.append("samples.jsonl", line)
    run.accuracies.append(evaluation.accuracy)
    run.evaluated_step = index
    return evaluation.accuracy


def _measured(run: Run, problems: list[Problem]) -> Evaluation:
    return evaluate(run.engine, run.policy, run.task, problems, max_new_tokens=run.settings.max_new_tokens)


def _good_enough(run: Run) -> bool:
    wanted = run.settings.early_stop
    if not isinstance(wanted, EarlyStop) or len(run.accuracies) < wanted.evaluations:
        return False
    return min(run.accuracies[-wanted.evaluations :]) >= wanted.accuracy


def _finished(run: Run, outcome: Outcome) -> Summary:
    """Measure once on test prompts, save the policy, write summary and report."""
    from trimtab.report import write_report

    run.progress.stage("measuring on test prompts and writing the report")
    if run.evaluated_step != run.steps:
        _ = _evaluated(run, _held_out(run, "validation"), run.steps)
    accuracy = _measured(run, _held_out(run, "test")).accuracy
    save(run.policy, run.record.folder / "model")
    summary = Summary(
        held_out_accuracy=accuracy,
        seconds=time.perf_counter() - run.started,
        tokens_per_second=run.tokens / run.step_seconds if run.step_seconds else 0.0,
        warnings=_told(run),
        steps=run.steps,
        seed=run.settings.seed,
        outcome=outcome,
        start_accuracy=run.accuracies[0],
        validation_accuracy=run.accuracies[-1],
        tokens=run.tokens,
        skipped_updates=run.skipped_updates,
        num_parameters=run.policy.num_parameters,
        recipe=run.learner.recipe.name,
        task=run.task.name,
        run_dir=run.record.folder,
    )
    run.record.write_json("summary.json", summary.to_json())
    _ = write_report(run.record.folder)
    run.progress.finished(summary)
    return summary


def _told(run: Run) -> tuple[str, ...]:
    """Each warning once, with how often it came."""
    return tuple(f"{text} ({count} of {run.steps} steps)" for text, count in run.warnings.items())
