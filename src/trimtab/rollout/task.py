"""The only place that says what a task is: problems, which of them are held out, and how it replies to a turn.

It knows nothing of tokens, models or groups. The tasks themselves lie in `tasks/`.
"""

import hashlib
import json
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from trimtab.errors import ConfigError, unknown_name
from trimtab.rollout.own import build

if TYPE_CHECKING:
    from trimtab.config.train import TaskSettings
    from trimtab.rollout.driven import Driven

Message = dict[str, Any]
"""One message of a chat: `role` and `content`; templates may know `name`, `tool_calls` and `tool_call_id` too."""
Tool = Mapping[str, object]
"""A tool that the policy may call, as chat templates take it: a JSON schema of a function."""
Prompt = str | tuple[Message, ...]
Split = Literal["train", "validation", "test"]
"""`validation` may steer a run (when to stop); `test` is used once, at the end, so nothing is chosen by it."""

TOOLS_OPENING = "tools: "
"""What stands before the tools where a chat is written as one text."""
SPLIT_BUCKETS = 10
"""One bucket of ten is validation, one is test, eight train: 80 % of the prompts are left to learn from."""


@dataclass(frozen=True)
class Problem:
    """One prompt (text, or chat messages and the tools they offer), its right answer, and what else its row holds.

    >>> Problem(prompt="58213=", answer="31285").answer
    '31285'
    >>> Problem(prompt=({"role": "user", "content": "2+2?"},), answer="4").text
    'user: 2+2?'
    """

    prompt: Prompt
    answer: str
    columns: Mapping[str, object] = field(default_factory=dict[str, object])
    """Free columns of a data file; a reward function of your own gets them by name."""
    tools: tuple[Tool, ...] = ()
    """What the policy may call. The chat template writes them into the prompt."""

    @property
    def text(self) -> str:
        """The prompt as one string: hashed for the split, shown to people."""
        if isinstance(self.prompt, str):
            return self.prompt
        offered = (f"{TOOLS_OPENING}{_json(self.tools)}",) if self.tools else ()
        return "\n".join((*offered, *(_line(message) for message in self.prompt)))


def _line(message: Message) -> str:
    calls = message.get("tool_calls")
    return f"{message['role']}: {message['content']}{_json(calls) if calls else ''}"


def _json(value: object) -> str:
    """As chat templates write it."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Turn:
    """An environment's reply to a turn: an observation, which never trains, and whether the episode is over."""

    observation: str = ""
    """A text that follows the policy's turn as it is."""
    done: bool = True
    messages: tuple[Message, ...] = ()
    """Instead of `observation`: a tool's answer or a user's words, which the chat template writes."""
    reward: float | None = None
    """What this turn earned. The turns of an episode add up; if none says a number, the task judges."""


class Environment(Protocol):
    """One episode. `reset` gives the prompt; each `step` takes what the policy wrote in its turn.

    An environment that waits for something makes `step` a coroutine (`async def`): other episodes go on meanwhile.
    """

    def reset(self) -> Prompt:
        """The prompt."""
        ...

    def step(self, answer: str, *, ended: bool) -> "Turn | Awaitable[Turn]":
        """The environment's reply to one turn; `ended` says whether the policy closed the turn itself."""
        ...


class Task(Protocol):
    """What a run asks. Two processes that open a task with equal settings and seed see equal problems."""

    @property
    def name(self) -> str:
        """The name in a run file."""
        ...

    @property
    def alphabet(self) -> str:
        """Every character that a prompt, a right answer or an observation can hold; for the character tokenizer."""
        ...

    def train(self, ticket: int) -> Problem:
        """The n-th training problem of the run: a pure function of the seed and the ticket."""
        ...

    def held_out(self, split: Split, count: int) -> list[Problem]:
        """Different problems that never train, the same for every seed."""
        ...

    def environment(self, problem: Problem) -> "Environment | Driven":
        """A new episode of the problem: one that replies to turns, or one that drives itself."""
        ...

    def demonstration(self, problem: Problem) -> tuple[str, ...]:
        """The right text of each turn, for the supervised warm start."""
        ...

    def judge(self, problem: Problem, answer: str, *, ended: bool) -> float:
        """The reward of an episode whose last turn was `answer`."""
        ...


@dataclass(frozen=True)
class OneTurn:
    """The environment of a task that takes one answer and does not reply."""

    problem: Problem

    def reset(self) -> Prompt:
        return self.problem.prompt

    def step(self, answer: str, *, ended: bool) -> Turn:
        del answer, ended
        return Turn(observation="", done=True)


def is_exact(problem: Problem, answer: str, *, ended: bool) -> float:
    """1 for the exact answer, closed by the policy itself; else 0."""
    return float(ended and answer == problem.answer)


def split_of(text: str) -> Split:
    """The split a prompt belongs to, by a hash of its text: the same in every run, seed and process."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % SPLIT_BUCKETS
    named: dict[int, Split] = {0: "test", 1: "validation"}
    return named.get(bucket, "train")


def distinct(candidates: Iterable[Problem], split: Split, count: int, *, name: str, widen: str) -> list[Problem]:
    """The first `count` different problems of one split; `widen` names the setting that would give more of them."""
    drawn: dict[str, Problem] = {}
    for problem in candidates:
        if len(drawn) == count:
            break
        if split_of(problem.text) == split:
            _ = drawn.setdefault(problem.text, problem)
    if len(drawn) < count:
        raise ConfigError(
            f"task {name}: has {len(drawn)} {split} problems and {count} were asked for, so they would repeat. "
            f"Ask for fewer (train.eval_prompts), or {widen}."
        )
    return list(drawn.values())


def tries(count: int) -> int:
    """How many problems to draw before saying that a task does not have `count` of a split."""
    return 100 * SPLIT_BUCKETS * max(count, SPLIT_BUCKETS)


def open_task(settings: "TaskSettings", seed: int) -> Task:
    """The task that a run file names, for the run of that seed."""
    from trimtab.rollout.tasks import GENERATED, generated_task

    if settings.name in GENERATED:
        return generated_task(settings, seed)
    if settings.name == "file":
        from trimtab.rollout.tasks.file import open_file

        return open_file(settings, seed)
    if settings.name.startswith("reasoning_gym."):
        from trimtab.rollout.tasks.gym import open_gym

        return open_gym(settings, seed)
    if settings.name.startswith("verifiers."):
        from trimtab.rollout.tasks.verifiers import open_verifiers

        return open_verifiers(settings, seed)
    if settings.name == "openenv":
        from trimtab.rollout.tasks.openenv import open_openenv

        return open_openenv(settings, seed)
    if ":" in settings.name:
        return _own_task(settings, seed)
    choices = [*sorted(GENERATED), "file", "reasoning_gym.NAME", "verifiers.ID", "openenv", "module:factory"]
    raise ConfigError(unknown_name("task", settings.name, choices))


def _own_task(settings: "TaskSettings", seed: int) -> Task:
    """A task of the user's own, built by `factory(settings, seed)`."""
    members = ("name", "alphabet", "train", "held_out", "environment", "demonstration", "judge")
    takes = "the settings of train.task and a seed"
    return cast(Task, build("task", settings.name, members, settings, seed, takes=takes, like="trimtab.rollout.Task"))
