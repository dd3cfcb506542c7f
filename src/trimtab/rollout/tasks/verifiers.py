"""The only place that asks the tasks of a verifiers environment; its harness acts and its rewards judge.

`verifiers.ID` names a taskset by its id. The options are verifiers' own `[env]` block, with dots: `taskset.split`,
`agent.harness.id`. Episodes run in the process that samples; programs of a harness run where its runtime puts them.
"""

import asyncio
import importlib.util
import os
import string
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from trimtab.errors import ConfigError, MissingExtra
from trimtab.rollout.driven import Ask, Outcome
from trimtab.rollout.task import Problem, Prompt, Split, split_of
from trimtab.rollout.tasks.file import FileTask, alphabet_of
from trimtab.rollout.tasks.verifiers_client import MODEL, EngineClient, Talk, install, theirs

if TYPE_CHECKING:
    from trimtab.config.train import TaskSettings

PREFIX = "verifiers."
MOST = 10_000
"""Tasks that are read of a taskset. Some have no end; a prompt that is never seen twice needs no more than these."""


@dataclass(frozen=True)
class VerifiersTask:
    """A `Task` over a taskset. A problem is known by its place in it."""

    name: str
    config: Any
    tasks: tuple[Any, ...]
    rows: FileTask
    """Their prompts: which one a ticket asks, and which ones are held out."""
    serving: "dict[asyncio.AbstractEventLoop, Serving]" = field(
        default_factory=dict[asyncio.AbstractEventLoop, "Serving"], compare=False, repr=False
    )

    @property
    def alphabet(self) -> str:
        return self.rows.alphabet

    def train(self, ticket: int) -> Problem:
        return self.rows.train(ticket)

    def held_out(self, split: Split, count: int) -> list[Problem]:
        return self.rows.held_out(split, count)

    def environment(self, problem: Problem) -> Any:
        return VerifiersEpisode(self, self.tasks[cast(int, problem.columns["index"])])

    def demonstration(self, problem: Problem) -> tuple[str, ...]:
        raise ConfigError(
            f"task {self.name}: gives no right answers, only rewards, so the warm start has nothing to teach. "
            "Set train.warm_start_steps=0."
        )

    def judge(self, problem: Problem, answer: str, *, ended: bool) -> float:
        raise ConfigError(f'task {self.name}: the environment itself judges. Set train.task.reward="task".')

    async def served(self) -> "Served":
        """The environment, served in this event loop; started with its first episode, ended with the loop."""
        loop = asyncio.get_running_loop()
        if loop not in self.serving:
            ready: asyncio.Future[Served] = loop.create_future()
            self.serving[loop] = Serving(ready, loop.create_task(_serve(self.config, ready)))
        return await asyncio.shield(self.serving[loop].ready)


@dataclass(frozen=True)
class Served:
    """An environment of theirs that is ready to run episodes, with the client that asks our engine."""

    env: Any
    client: EngineClient
    context: Any


@dataclass(frozen=True)
class Serving:
    """The task that holds an environment open; it is cancelled with its event loop, and closes what it opened."""

    ready: "asyncio.Future[Served]"
    holder: "asyncio.Task[None]"


async def _serve(config: Any, ready: "asyncio.Future[Served]") -> None:
    client = EngineClient()
    try:
        env = theirs("utils.loaders").load_environment(config)
        context = theirs("clients").ModelContext(model=MODEL, client=install(client))
        async with env.serving():
            ready.set_result(Served(env, client, context))
            _ = await asyncio.Event().wait()
    except Exception as error:
        if not ready.done():
            ready.set_exception(error)


@dataclass(frozen=True)
class VerifiersEpisode:
    """One episode of theirs, driven by their harness."""

    task: VerifiersTask
    row: Any

    async def drive(self, ask: Ask) -> Outcome:
        served = await self.task.served()
        talk, traces = Talk(ask), list[str]()

        def opened(trace: Any) -> None:
            traces.append(trace.id)
            if len(traces) > 1 and talk.turns:
                talk.refusal = "more than one agent of the episode asked the policy, and an episode is one sequence"
            else:
                served.client.talks[trace.id] = talk

        try:
            episode = await served.env.run_episode(self.row, served.context, on_trace=opened)
        finally:
            for trace in traces:
                _ = served.client.talks.pop(trace, None)
        return outcome_of(episode, talk.refusal)


def outcome_of(episode: Any, refusal: str = "") -> Outcome:
    """How an episode of theirs counts. An error or a timeout of theirs is one of ours: it neither votes nor trains."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    said = f"{errors[-1].type}: {errors[-1].message}" if errors else ""
    if refusal:
        return Outcome(status="error", message=refusal)
    if episode.is_timeout or any(trace.is_timeout for trace in episode.traces):
        return Outcome(status="timeout", message=said or "the environment ran out of time")
    if not episode.ok:
        return Outcome(status="error", message=said or "the environment failed")
    paid = [trace for trace in episode.traces if trace.agent.trainable]
    if len(paid) != 1:
        return Outcome(
            status="error", message=f"{len(paid)} agents of the episode train, and an episode is one sequence"
        )
    known = [reward for reward in paid[0].rewards.values() if reward is not None]
    return Outcome(float(paid[0].reward) if known else None)


def open_verifiers(settings: "TaskSettings", seed: int) -> VerifiersTask:
    """The taskset that `verifiers.ID` names, read and split."""
    if importlib.util.find_spec("verifiers") is None:
        raise MissingExtra(
            f"task {settings.name}: the package verifiers is not installed, so its environments cannot be played. "
            'Run pip install "trimtab[verifiers]".'
        )
    sys.path[:] = [*sys.path, *(place for place in [os.getcwd()] if place not in sys.path)]
    config = _config(settings)
    taskset = theirs("utils.loaders").load_taskset(config.taskset)
    tasks = tuple(islice(iter(taskset), MOST))
    problems = [_problem(place, task.data) for place, task in enumerate(tasks)]
    split = {name: [p for p in problems if split_of(p.text) == name] for name in ("train", "validation", "test")}
    empty = [name for name, rows in split.items() if not rows]
    if empty:
        raise ConfigError(
            f"task {settings.name}: none of its {len(problems)} prompts falls into {' and '.join(empty)} (a tenth "
            "each, by a hash of the prompt), so the run could not be measured. Use a larger taskset."
        )
    alphabet = "".join(sorted({*string.printable, *alphabet_of(problems)}))
    parts = (tuple(split["train"]), tuple(split["validation"]), tuple(split["test"]))
    return VerifiersTask(settings.name, config, tasks, FileTask(*parts, seed, settings.name, alphabet))


def _problem(place: int, data: Any) -> Problem:
    said: list[dict[str, Any]] = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    said.append({"role": "user", "content": data.prompt_text})
    prompt: Prompt = tuple(said)
    return Problem(prompt=prompt, answer="", columns={"index": place})


def _config(settings: "TaskSettings") -> Any:
    """Their `[env]` block: the taskset, our options, and a limit on turns that is the run's own."""
    given = nested(settings.options)
    block: dict[str, Any] = {**given, "taskset": {"id": settings.name.removeprefix(PREFIX), **given.get("taskset", {})}}
    agent = {"max_turns": settings.max_turns, "runtime": {"type": "subprocess"}, **given.get("agent", {})}
    loaders = theirs("utils.loaders")
    try:
        fields: Sequence[str] = list(loaders.env_config_type(block["taskset"]["id"], block.get("id", "")).model_fields)
        return loaders.resolve_env_config({**block, **({"agent": agent} if "agent" in fields else {})})
    except (ModuleNotFoundError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"task {settings.name}: verifiers refuses it with the options {dict(settings.options)} ({error}), so there "
            "is nothing to play. Install the environment, or put its module into the folder you start from. Options "
            'are verifiers\' [env] block with dots, such as "agent.harness.id".'
        ) from error


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with dots as tables within tables.

    >>> nested({"agent.harness.id": "null", "agent.max_turns": 3})
    {'agent': {'harness': {'id': 'null'}, 'max_turns': 3}}
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found
