"""The only place that plays an episode: a coroutine that asks the engine and the environment in turn.

Episodes do not wait for one another. Whatever ends one early, a limit in time, an environment that fails, an engine
that gives up, is its outcome, and costs no other episode. It does not know groups, rewards or batches.
"""

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch

from trimtab.errors import TrimtabError
from trimtab.rollout.chat import observed_ids
from trimtab.rollout.driven import Driven, Driving
from trimtab.rollout.engine import AsyncEngine, Greedy, Request, Sample, Sampling
from trimtab.rollout.episode import Status
from trimtab.rollout.reward import Attempt
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Environment, Problem, Prompt, Task, Tool, Turn
from trimtab.rollout.tokenizer import decode, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IDLE_STOPS = 3
"""An engine that stops an answer this often in a row, and neither draws a token nor changes its version, gave it up."""


@dataclass
class Played:
    """One attempt while it is being made: everything read and written so far."""

    problem: Problem
    environment: Environment | Driven | None
    """None if the task could not make one."""
    seed: int
    order: tuple[int, ...]
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    ids: list[int]
    trainable: list[bool]
    samples: list[Sample] = field(default_factory=list[Sample])
    answers: list[str] = field(default_factory=list[str])
    status: Status = "ok"
    """`ok` until something ends the episode early; then it gets no reward."""
    message: str = ""
    earned: float | None = None
    """What the environment itself paid so far; None if it leaves that to the judge."""
    tools: tuple[Tool, ...] = ()
    """What the prompt offered."""

    def begin(self, ids: Sequence[int]) -> None:
        """Read the prompt. Nothing was written yet."""
        self.prompt_ids, self.ids, self.trainable = tuple(ids), list(ids), [False] * len(ids)

    def take(self, sample: Sample, answer: str) -> None:
        """Write a turn of the policy: these tokens train."""
        self.ids += sample.ids
        self.trainable += [True] * len(sample.ids)
        self.samples.append(sample)
        self.answers.append(answer)

    def observe(self, ids: Sequence[int]) -> None:
        """Read what the environment said: these tokens never train."""
        self.ids += ids
        self.trainable += [False] * len(ids)

    def end(self, tokenizer: "PreTrainedTokenizerFast") -> str:
        """The text of the token that closed the last turn; "" if it was cut off."""
        return decode(tokenizer, [self.samples[-1].ids[-1]]) if self.ended else ""

    @property
    def ended(self) -> bool:
        return bool(self.samples) and self.samples[-1].finish == "eos"

    @property
    def attempt(self) -> Attempt:
        """What a reward function sees of it."""
        written = tuple(token for sample in self.samples for token in sample.ids)
        return Attempt(self.problem, self.answers[-1], "".join(self.answers), written, self.ended, self.earned)


class GaveUp(Exception):
    """The engine stopped an answer again and again."""


@dataclass(frozen=True)
class Player:
    """Plays episodes of one task with one engine."""

    task: Task
    engine: AsyncEngine
    tokenizer: "PreTrainedTokenizerFast"
    max_turns: int
    seconds: float
    """How long an episode may take; 0: any time."""
    room: AbstractAsyncContextManager[object]
    """As many requests as the engine takes at once."""

    def open(self, problem: Problem, seed: int, order: tuple[int, ...], before: Played | None) -> Played:
        """Open a new attempt. The samples of one prompt follow each other, so the prompt is encoded once."""
        prompt, environment, failure = problem.prompt, None, ""
        try:
            environment = self.task.environment(problem)
            prompt = problem.prompt if hasattr(environment, "drive") else cast(Environment, environment).reset()
        except TrimtabError:
            raise
        except Exception as error:  # an environment of the user's own; one episode must not end the run
            failure = f"the environment raised {type(error).__name__}: {error}"
        is_same = before is not None and prompt == before.prompt and problem.tools == before.problem.tools
        ids = before.prompt_ids if before is not None and is_same else None
        ids = tuple(encode_prompt(self.tokenizer, prompt, problem.tools)) if ids is None else ids
        one = Played(problem, environment, seed, order, prompt, ids, list(ids), [False] * len(ids), tools=problem.tools)
        if failure:
            one.status, one.message = "error", failure
        return one

    async def play(self, one: Played, how: Sampling | Greedy) -> None:
        """Play an opened episode to its end."""
        if one.status != "ok":
            return
        try:
            await (self._limited(one, how) if self.seconds else self._to_the_end(one, how))
        except GaveUp as error:
            one.status, one.message = "abort", str(error)

    async def _limited(self, one: Played, how: Sampling | Greedy) -> None:
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                await self._to_the_end(one, how)
        except TimeoutError:
            if not limit.expired():
                raise
            one.status, one.message = "timeout", f"the episode took more than {self.seconds:g} s"

    async def _to_the_end(self, one: Played, how: Sampling | Greedy) -> None:
        if not hasattr(one.environment, "drive"):
            return await self._turns(one, how)
        driving = Driving(one, self.tokenizer, lambda turn: self._answer(one, turn, how), self.max_turns)
        return await driving.run(cast(Driven, one.environment))

    async def _turns(self, one: Played, how: Sampling | Greedy) -> None:
        for turn in range(self.max_turns):
            sample = await self._answer(one, turn, how)
            ended = sample.finish == "eos"
            answer = decode(self.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
            one.take(sample, answer)
            reply = await self._reply(one, answer, ended=ended)
            if reply is None:
                return
            if reply.reward is not None:
                one.earned = (one.earned or 0.0) + reply.reward
            if reply.done or turn + 1 == self.max_turns:
                return
            end = (
                one.end(self.tokenizer) if reply.messages else ""
            )  # a text is written as it is, whatever closed the turn
            one.observe(observed_ids(self.tokenizer, reply, one.tools, end=end))

    async def _reply(self, one: Played, answer: str, *, ended: bool) -> Turn | None:
        """What the environment says; None if it failed, and the episode with it."""
        environment = cast(Environment, one.environment)
        try:
            reply = environment.step(answer, ended=ended)
            return reply if isinstance(reply, Turn) or not inspect.isawaitable(reply) else await reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # this episode was cancelled, or ran out of time
                raise
            one.status, one.message = "cancel", "the environment cancelled its turn"
        except TrimtabError:
            raise
        except Exception as error:  # an environment of the user's own; one episode must not end the run
            one.status, one.message = "error", f"the environment raised {type(error).__name__}: {error}"
        return None

    async def _answer(self, one: Played, turn: int, how: Sampling | Greedy) -> Sample:
        """One turn of the policy. A part that was stopped for new parameters is kept, and the rest is asked for anew.

        The i-th token after `drawn` ones is drawn with the stream (seed, drawn), so no number is used twice.
        """
        seed, order = stream_seed(one.seed, turn), (*one.order, turn)
        request, rest, parts, idle = Request(tuple(one.ids), seed, order), how, list[Sample](), 0
        while True:
            version = self.engine.version
            async with self.room:
                sample = await self.engine.generate(request, rest)
            if sample.finish != "abort":
                return joined([*parts, sample]) if parts else sample
            idle = 0 if sample.ids or self.engine.version != version else idle + 1
            if idle == IDLE_STOPS:
                raise GaveUp(f"the engine stopped the answer {IDLE_STOPS} times without new parameters")
            if sample.ids:
                parts.append(sample)
                drawn = sum(len(part.ids) for part in parts)
                request = Request((*request.ids, *sample.ids), stream_seed(seed, drawn), order)
                rest = replace(how, max_new_tokens=how.max_new_tokens - drawn)


def joined(parts: Sequence[Sample]) -> Sample:
    """One answer that was drawn in several parts; it ended as its last part did."""
    if len(parts) == 1:
        return parts[0]
    support = [part.support for part in parts]
    return Sample(
        ids=tuple(token for part in parts for token in part.ids),
        logp=torch.cat([part.logp for part in parts]),
        version=tuple(version for part in parts for version in part.version),
        finish=parts[-1].finish,
        support=None
        if any(one is None for one in support)
        else tuple(ids for one in support for ids in cast("tuple[tuple[int, ...], ...]", one)),
    )
