"""The only place that lets another library drive an episode: it asks for turns, and token ids never leave our hands.

An environment of our own is asked for a reply after each turn. One of another library runs its own loop and calls a
model. It gets `ask`: what is new in, the policy's text out. Only the player knows ids, so no turn is tokenised twice.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trimtab.errors import TrimtabError
from trimtab.rollout.chat import next_ids
from trimtab.rollout.engine import Sample
from trimtab.rollout.episode import Status
from trimtab.rollout.task import Prompt, Tool
from trimtab.rollout.tokenizer import decode, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from trimtab.rollout.play import Played


@dataclass(frozen=True)
class Said:
    """A turn of the policy, for the library that asked: its text, whether the policy closed it, and tokens so far."""

    text: str
    ended: bool
    num_read: int
    """Tokens before the turn."""
    num_written: int


class Ask(Protocol):
    """Asks the policy for a turn. First the whole prompt is given, later only what is new since its last turn."""

    async def __call__(self, new: Prompt, tools: Sequence[Tool] = ()) -> Said: ...


@dataclass(frozen=True)
class Outcome:
    """How a driven episode ended: a reward, or a status that says why there is none."""

    reward: float | None = None
    status: Status = "ok"
    message: str = ""


class Driven(Protocol):
    """An episode that drives itself, made by `Task.environment`."""

    async def drive(self, ask: Ask) -> Outcome:
        """Play to the end, asking for turns one after the other."""
        ...


class CannotAsk(Exception):
    """A turn was asked for that no sequence of tokens can hold. The episode ends with an error."""


@dataclass
class Driving:
    """One driven episode. Whatever the library does with an error that it is given, the episode knows of it."""

    one: "Played"
    tokenizer: "PreTrainedTokenizerFast"
    answer: Callable[[int], Awaitable[Sample]]
    """Samples the turn with this number behind everything read and written so far."""
    max_turns: int
    is_asking: bool = False
    is_over: bool = False
    fault: BaseException | None = None

    async def run(self, environment: Driven) -> None:
        """Drive to the end. What the policy's side refused counts, whatever the library made of it."""
        outcome = await self._outcome(environment)
        if isinstance(self.fault, CannotAsk):
            outcome = Outcome(status="error", message=str(self.fault))
        elif self.fault is not None:
            raise self.fault
        if outcome.status == "ok" and not self.one.samples:
            outcome = Outcome(status="error", message="the environment ended without asking the policy")
        self.one.status, self.one.message, self.one.earned = outcome.status, outcome.message, outcome.reward
        if outcome.status == "ok" and outcome.reward is None:
            self.one.status, self.one.message = "abstain", outcome.message or "the environment gave no reward"

    async def _outcome(self, environment: Driven) -> Outcome:
        try:
            return await environment.drive(self.ask)
        except TrimtabError as error:
            raise self.fault or error from error
        except Exception as error:  # a library of others; one episode must not end the run
            return Outcome(status="error", message=f"the environment raised {type(error).__name__}: {error}")
        finally:
            self.is_over = True

    async def ask(self, new: Prompt, tools: Sequence[Tool] = ()) -> Said:
        try:
            self._check(new)
            self.is_asking = True
            try:
                return await self._turn(new, tools)
            finally:
                self.is_asking = False
        except Exception as error:
            self.fault = self.fault or error
            raise

    async def _turn(self, new: Prompt, tools: Sequence[Tool]) -> Said:
        one, turn = self.one, len(self.one.samples)
        if turn == 0:
            one.prompt, one.tools = new, tuple(tools)
            one.begin(encode_prompt(self.tokenizer, new, tools))
        else:
            one.observe(next_ids(self.tokenizer, new, one.tools, end=one.end(self.tokenizer)))
        read = len(one.ids)
        sample = await self.answer(turn)
        if self.is_over:
            raise CannotAsk("the episode is over")
        ended = sample.finish == "eos"
        text = decode(self.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
        one.take(sample, text)
        return Said(text, ended, read, len(sample.ids))

    def _check(self, new: Prompt) -> None:
        turn = len(self.one.samples)
        if self.is_over:
            raise CannotAsk("the episode is over")
        if self.is_asking:
            raise CannotAsk(
                "the environment asked for a turn while another one is being sampled, and an episode is one sequence"
            )
        if turn == self.max_turns:
            raise CannotAsk(f"the environment asked for turn {turn + 1} and train.task.max_turns is {self.max_turns}")
        if not new:
            raise CannotAsk(f"the environment asked for turn {turn + 1} and said nothing new before it")
