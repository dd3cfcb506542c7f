"""The only place that puts the parts of a run together from its settings: task, policy, engine, collector, runtime."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torch import nn

from trimtab.rollout.buffer import Buffer
from trimtab.rollout.collect import Collector
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import AsyncEngine, Engine, Sampling
from trimtab.rollout.meet import Language
from trimtab.rollout.own import build
from trimtab.rollout.place import Place
from trimtab.rollout.reward import Hire, open_scorer
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.task import Task, open_task
from trimtab.signal import Recipe
from trimtab.signal.fields import everything
from trimtab.signal.vote import constant_groups, votes_and_trains
from trimtab.train.policy import Policy, frozen_copy, load, new_policy
from trimtab.train.runtimes.beside import Beside
from trimtab.train.runtimes.child import Child
from trimtab.train.runtimes.inline import Inline, Runtime
from trimtab.train.runtimes.schedule import quiet, writer
from trimtab.train.runtimes.worker import Hear, Local, Worker

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings


PROOFS_FILE = "proofs.jsonl"
"""In a run's folder: what each load of a server has shown."""
ENGINE = ("version", "dtype", "load", "sample")
AHEAD = 4
"""A sampler process gets this many times the tickets that fill its slots. An order comes back with its slowest answer;
with a long tail, the others have been replaced several times by then."""


def task_and_policy(settings: "TrainSettings") -> tuple[Task, Policy]:
    """The task, and the policy: a model folder, or a new small model for the task's characters."""
    task = open_task(settings.task, settings.seed)
    if settings.model.path is not None:
        return task, load(settings.model.path, settings.model)
    return task, new_policy(settings.model, task.alphabet, settings.seed)


def new_engine(policy: Policy, settings: "TrainSettings", *, exact: bool = False, slots: int | None = None) -> Engine:
    """An engine with a copy of the policy's model; `exact` ones keep the policy's own number format, and are ours."""
    model = frozen_copy(policy.model)
    if ":" in settings.engine.name and not exact:
        takes = "a copy of the model, the tokenizer and the settings of the run"
        given = (model, policy.tokenizer, settings)
        return build("engine", settings.engine.name, ENGINE, *given, takes=takes, like="trimtab.rollout.Engine")
    return Embedded(
        model,
        pad_id=policy.pad_id,
        eos_ids=policy.eos_ids,
        format="fp32" if exact else settings.engine.format,
        max_rows=settings.engine.max_rows if slots is None else slots,
    )


def new_collector(
    policy: Policy, settings: "TrainSettings", *, engine: Engine | AsyncEngine | None = None, hire: Hire | None = None
) -> Collector:
    """Task, reward and engine of one run, ready to answer tickets. `hire` starts the reward's processes elsewhere."""
    task = open_task(settings.task, settings.seed)
    return Collector(
        task=task,
        scorer=open_scorer(settings.task, task, hire),
        engine=engine or new_engine(policy, settings),
        tokenizer=policy.tokenizer,
        how=Sampling(
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.engine.top_p,
            top_k=settings.engine.top_k,
            record_support=settings.engine.record_support,
        ),
        samples_per_prompt=settings.samples_per_prompt,
        max_turns=settings.task.max_turns,
        seed=settings.seed,
        episode_seconds=settings.task.episode_seconds,
    )


def new_buffer(settings: "TrainSettings", recipe: Recipe) -> Buffer:
    """A buffer that drops what the recipe's own filter would find constant."""

    def teaches_nothing(group: Rollouts) -> bool:
        batch = group.batch()
        votes, _ = votes_and_trains(batch, recipe, everything(batch.segments))
        return not bool(votes.any()) or bool(constant_groups(batch, votes).all())

    return Buffer(settings.prompts_per_step, settings.staleness, settings.dynamic_sampling, teaches_nothing)


Start = Callable[[int, Hear], Worker]
"""Makes the worker of a seat, and its successors."""


def open_runtime(
    sampler: Collector | Start, settings: "TrainSettings", buffer: Buffer, folder: Path | None = None
) -> Runtime:
    """Open the runtime: with this sampler, or with workers, whose schedule is written into the run's folder."""
    if isinstance(sampler, Collector):
        return Inline(sampler, buffer)
    workers, room = len(settings.engine.servers) or settings.engine.processes, worker_room(settings)
    note = quiet if folder is None else writer(folder)
    if settings.runtime == "ray":
        allowed = settings.cluster.restarts
        return Beside(sampler, buffer, workers=workers, room=room, restarts=allowed, name="cluster", note=note)
    return Beside(sampler, buffer, workers=workers, room=room, note=note)


def new_workers(policy: Policy, settings: "TrainSettings", folder: Path) -> Start:
    """Workers that sample beside the learner: servers, or processes that start from the model in `folder`."""
    if settings.engine.servers:
        return _servers(policy, settings, folder)
    if settings.runtime == "ray":
        from trimtab.train.cluster.samplers import place_samplers

        return place_samplers(settings, folder)
    opening = {"settings": settings.model_dump(mode="json"), "model": str(folder), "slots": engine_slots(settings)}
    return lambda _, hear: Child(opening, hear)


def _servers(policy: Policy, settings: "TrainSettings", folder: Path) -> Start:
    """vLLM servers. What they are held against is a copy that is made now: later the policy may be sharded."""
    from trimtab.train.runtimes.distant import TOKEN

    skeleton = replace(policy, model=frozen_copy(policy.model))
    token, proofs = os.environ.get(TOKEN, ""), folder.parent / PROOFS_FILE

    def start(seat: int, hear: Hear) -> Worker:
        seen = settings.engine.seen_as
        place = Place(folder / f"server_{seat}", folder, f"{seen.rstrip('/')}/server_{seat}" if seen else "")
        engine = server_engine(skeleton, settings, settings.engine.servers[seat], place, token=token, proofs=proofs)
        return Local(new_collector(policy, settings, engine=engine), hear)

    return start


def server_engine(
    policy: Policy, settings: "TrainSettings", url: str, place: Place, *, token: str, proofs: Path
) -> AsyncEngine:
    """An engine that is the server at `url`, held against a copy of the policy's model."""
    from trimtab.train.runtimes.distant import distant

    rows = cast(nn.Embedding, policy.model.get_input_embeddings()).weight.shape[0]
    return distant(
        url,
        frozen_copy(policy.model),
        Language(policy.tokenizer, rows, policy.eos_ids, settings.max_new_tokens + 1),
        place,
        token=token,
        slots=engine_slots(settings),
        timeout=settings.engine.request_seconds,
        proofs=proofs,
    )


def worker_room(settings: "TrainSettings") -> int:
    """Tickets that a sampler gets at once."""
    return AHEAD * max(1, engine_slots(settings) // settings.samples_per_prompt)


def engine_slots(settings: "TrainSettings") -> int:
    """Answers that a sampler process draws at once: what the settings say, or a batch."""
    return settings.engine.max_rows or settings.prompts_per_step * settings.samples_per_prompt
