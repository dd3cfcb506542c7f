"""The only place that plays an OpenEnv environment, from a server or in this process, with the rewards of its steps.

The policy's text becomes an action: a tool call where the environment offers tools, else one field of the action. An
episode is known by its seed, so all samples of a group meet the same problem, and held-out seeds never train.
"""

import importlib
import importlib.util
import inspect
import json
import random
import string
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from trimtab.errors import ConfigError, MissingExtra, nearest
from trimtab.rollout.driven import Ask, Outcome
from trimtab.rollout.own import build
from trimtab.rollout.task import Message, Problem, Prompt, Tool
from trimtab.rollout.tasks.generated import Generated, Kind
from trimtab.rollout.tool_call import ToolCall, read_calls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from trimtab.config.train import TaskSettings

OPTIONS = ("url", "environment", "action", "observation", "system", "tools", "seconds")
APART = ("reward", "done", "metadata")
"""Fields of an observation that are not shown to the policy."""


@dataclass(frozen=True)
class Options:
    """What `train.task.options` says. Give `url` or `environment`."""

    url: str = ""
    """A running environment server: http://127.0.0.1:8000."""
    environment: str = ""
    """Or a factory `module:function` of an environment that lives in the process that samples."""
    action: str = "message"
    """The field of the action that holds the policy's text."""
    observation: str = ""
    """The field of an observation that the policy reads; all of them as JSON if it is empty."""
    system: str = ""
    """A system message before the first observation."""
    tools: bool = False
    """The environment offers MCP tools: the chat template shows them, and the policy's tool calls are made."""
    seconds: float = 60.0
    """How long a server may take for one reply."""


@dataclass(frozen=True)
class Seen:
    """What an environment shows after a reset or a step."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool


class Session(Protocol):
    """One episode at an environment."""

    async def reset(self, seed: int) -> Seen: ...

    async def step(self, action: Mapping[str, Any]) -> Seen: ...


@dataclass(frozen=True)
class OpenEnvEpisode:
    """One episode: reset with its seed, then an action for each turn until the environment is done."""

    options: Options
    seed: int
    max_turns: int

    async def drive(self, ask: Ask) -> Outcome:
        async with _session(self.options) as session:
            seen = await session.reset(self.seed)
            tools = await _tools(session) if self.options.tools else ()
            new, paid = self._opening(seen), [seen.reward]
            for _ in range(self.max_turns):
                said = await ask(new, tools)
                action = self._action(said.text) if said.ended else None
                if action is None:  # cut off, or an answer without a call where calls are asked for
                    break
                if isinstance(action, ToolCall):
                    new = ({"role": "tool", "content": action.fault},)
                    continue
                seen = await session.step(action)
                paid.append(seen.reward)
                if seen.done:
                    break
                new = ({"role": "tool" if self.options.tools else "user", "content": self._shown(seen)},)
        return Outcome(float(sum(reward for reward in paid if reward is not None)))

    def _opening(self, seen: Seen) -> Prompt:
        system: tuple[Message, ...] = (
            ({"role": "system", "content": self.options.system},) if self.options.system else ()
        )
        return (*system, {"role": "user", "content": self._shown(seen)})

    def _action(self, text: str) -> Mapping[str, Any] | ToolCall | None:
        """The action of a turn; a call that cannot be made; None where the turn ends the episode."""
        if not self.options.tools:
            return {self.options.action: text}
        _, calls = read_calls(text)
        if not calls:
            return None
        call = calls[0]
        return call if call.fault else {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}

    def _shown(self, seen: Seen) -> str:
        held = {name: value for name, value in seen.observation.items() if name not in APART}
        if self.options.tools and "result" in held:
            return _text(held["error"] or held["result"])
        if not self.options.observation:
            return json.dumps(held, ensure_ascii=False)
        if self.options.observation not in held:
            raise ConfigError(
                f"task.options: observation is {self.options.observation!r} and the environment shows "
                f"{sorted(held)}{nearest(self.options.observation, held)}, so the policy would read nothing. "
                "Name one of them."
            )
        return _text(held[self.options.observation])


def _text(value: Any) -> str:
    held = value.get("data", value) if isinstance(value, dict) else value
    return held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)


async def _tools(session: Session) -> tuple[Tool, ...]:
    """The environment's tools as chat templates take them."""
    seen = await session.step({"type": "list_tools"})
    listed: list[dict[str, Any]] = list(seen.observation.get("tools", []))
    return tuple(
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": one.get("description", ""),
                "parameters": one.get("input_schema", {}),
            },
        }
        for one in listed
    )


def _session(options: Options) -> "AbstractAsyncContextManager[Session]":
    return _remote(options) if options.url else _here(options)


@dataclass(frozen=True)
class Remote:
    """A session at a server, by its WebSocket; the server makes a new environment for each."""

    client: Any

    async def reset(self, seed: int) -> Seen:
        return self._seen(await self.client.reset(seed=seed))

    async def step(self, action: Mapping[str, Any]) -> Seen:
        return self._seen(await self.client.step(dict(action)))

    @staticmethod
    def _seen(result: Any) -> Seen:
        return Seen(result.observation, result.reward, bool(result.done))


@asynccontextmanager
async def _remote(options: Options) -> "AsyncGenerator[Session]":
    client: Any = importlib.import_module("openenv.core").GenericEnvClient(
        base_url=options.url, message_timeout_s=options.seconds
    )
    async with client:
        yield Remote(client)


@dataclass(frozen=True)
class Here:
    """A session with an environment object of this process."""

    environment: Any

    async def reset(self, seed: int) -> Seen:
        return self._seen(await self.environment.reset_async(seed=seed))

    async def step(self, action: Mapping[str, Any]) -> Seen:
        types = importlib.import_module("openenv.core.env_server.mcp_types")
        kinds: dict[object, Any] = {"list_tools": types.ListToolsAction, "call_tool": types.CallToolAction}
        kind = kinds.get(action.get("type")) or _action_class(self.environment)
        return self._seen(await self.environment.step_async(kind(**action)))

    @staticmethod
    def _seen(observation: Any) -> Seen:
        return Seen(observation.model_dump(), observation.reward, bool(observation.done))


def _action_class(environment: Any) -> Any:
    """The class that the environment's `step` declares for its action."""
    step: Any = type(environment).step
    try:
        found: Any = get_type_hints(step).get("action") or inspect.signature(step).parameters["action"].annotation
    except (NameError, KeyError):
        found = None
    if not hasattr(found, "model_fields"):
        raise ConfigError(
            f"task openenv: {type(environment).__name__}.step does not say which class its action has, so the policy's "
            "text cannot become one. Annotate it: def step(self, action: MyAction, …)."
        )
    return found


@asynccontextmanager
async def _here(options: Options) -> "AsyncGenerator[Session]":
    environment = make_environment(options)
    try:
        yield Here(environment)
    finally:
        environment.close()


def make_environment(options: Options) -> Any:
    """A new environment of this process, by its factory."""
    members = ("reset_async", "step_async", "close")
    like = "openenv.core.env_server.Environment"
    return build("environment", options.environment, members, takes="no arguments", like=like)


def open_openenv(settings: "TaskSettings", seed: int) -> Generated:
    """The environment that the options name; its problems are seeds."""
    options = _read(settings.options)
    if importlib.util.find_spec("openenv") is None:
        raise MissingExtra(
            "task openenv: the package openenv is not installed, so its environments cannot be played. "
            'Run pip install "trimtab[openenv]".'
        )
    if options.environment:
        make_environment(options).close()

    def problem(stream: random.Random) -> Problem:
        number = stream.randrange(2**31)
        return Problem(prompt=f"seed {number}", answer="", columns={"seed": number})

    def episode(problem: Problem) -> Any:
        return OpenEnvEpisode(options, int(str(problem.columns["seed"])), settings.max_turns)

    return Generated(Kind("openenv", string.printable, problem, _judge, episode, _demonstration), seed)


def _read(given: Mapping[str, Any]) -> Options:
    for name in given:
        if name not in OPTIONS:
            raise ConfigError(
                f"task.options: openenv has no option {name!r}{nearest(name, OPTIONS)}. It takes: {OPTIONS}."
            )
    options = Options(**given)
    if bool(options.url) == bool(options.environment):
        raise ConfigError(
            f"task openenv: url is {options.url!r} and environment is {options.environment!r}, so it is not clear "
            'where episodes are played. Give one: url = "http://127.0.0.1:8000", or environment = "module:factory".'
        )
    return options


def _judge(problem: Problem, answer: str, *, ended: bool) -> float:
    raise ConfigError('task openenv: the environment itself judges. Set train.task.reward="task".')


def _demonstration(problem: Problem) -> tuple[str, ...]:
    raise ConfigError(
        "task openenv: gives no right answers, only rewards, so the warm start has nothing to teach. "
        "Set train.warm_start_steps=0."
    )
