"""Episodes that others drive, chats that go on, tool calls: what was sampled trains, and nothing is tokenised twice."""

import asyncio
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError, EngineError, MissingExtra
from trimtab.rollout import Problem, Turn
from trimtab.rollout.chat import next_ids
from trimtab.rollout.collect import Collector
from trimtab.rollout.driven import Ask, Outcome
from trimtab.rollout.engine import Request, Sample, Sampling
from trimtab.rollout.reward import open_scorer
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.task import open_task
from trimtab.rollout.tasks import Generated, Kind
from trimtab.rollout.tokenizer import decode, encode, encode_prompt
from trimtab.rollout.tool_call import read_calls

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import tool_calls

USER = ({"role": "user", "content": "7*8+9"},)
CALL = '<tool_call>{"name": "calc", "arguments": {"expression": "7*8+9"}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tool_model")
    tool_calls.write_model(folder)
    return AutoTokenizer.from_pretrained(folder)


@dataclass
class Scripted:
    """An engine that answers with given ids, and remembers what it was asked."""

    answers: list[list[int]]
    ends: frozenset[int]
    asked: list[tuple[int, ...]] = field(default_factory=list)
    version: int = 3
    dtype: str = "fp32"
    slots: int = 8
    fault: Exception | None = None

    async def generate(self, request: Request, how: Any) -> Sample:
        self.asked.append(request.ids)
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        ids = self.answers[min(len(self.asked), len(self.answers)) - 1]
        finish = "eos" if ids[-1] in self.ends else "length"
        return Sample(tuple(ids), -torch.arange(1.0, len(ids) + 1) / 8, (3,) * len(ids), finish)

    async def load(self, publication: Any) -> int:
        return self.version

    async def close(self) -> None: ...


class One(Generated):
    """A task with one problem, whichever split it falls into."""

    def train(self, ticket: int) -> Problem:
        return self.kind.problem(random.Random(ticket))


def played(tokenizer: Any, environment: Any, answers: list[list[int]], **given: Any) -> tuple[Rollouts, Scripted]:
    problem = Problem(prompt=USER, answer="65", tools=(tool_calls.CALC,))
    task = One(Kind("one", "", lambda stream: problem, environment=lambda problem: environment), 0)
    engine = Scripted(answers, frozenset({tokenizer.eos_token_id}), **given)
    settings = TaskSettings(name="sort")
    collector = Collector(task, open_scorer(settings, task), engine, tokenizer, Sampling(40, 1.0), 1, 3, 0, 5.0)
    try:
        return collector.collect([0]), engine
    finally:
        collector.close()


def trained(tokenizer: Any, rollouts: Rollouts) -> str:
    return decode(tokenizer, rollouts.ids[rollouts.trainable].tolist())


def closed(tokenizer: Any, text: str) -> list[int]:
    return [*encode(tokenizer, text), tokenizer.eos_token_id]


def letters(tokenizer: Any, text: str) -> list[int]:
    """The same text as one token per character: nothing that the tokenizer itself would write."""
    return [*tokenizer.convert_tokens_to_ids([one.replace(" ", "Ġ") for one in text]), tokenizer.eos_token_id]


def test_a_tools_answer_follows_the_sampled_tokens_and_does_not_train(tokenizer: Any) -> None:
    rollouts, engine = played(
        tokenizer, tool_calls.Desk(Problem(USER, "65")), [closed(tokenizer, CALL), closed(tokenizer, "65")]
    )
    prompt = encode_prompt(tokenizer, USER, (tool_calls.CALC,))
    observed = "\n<|im_start|>user\n<tool_response>\n65\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    expected = [*prompt, *closed(tokenizer, CALL), *encode(tokenizer, observed), *closed(tokenizer, "65")]
    assert rollouts.ids.tolist() == expected
    assert trained(tokenizer, rollouts) == f"{CALL}<|im_end|>65<|im_end|>"
    assert engine.asked == [tuple(prompt), tuple(expected[:-3])]
    assert rollouts.reward.tolist() == [1.0]


def test_tokens_that_the_tokenizer_would_not_write_stay_as_they_were_sampled(tokenizer: Any) -> None:
    odd = letters(tokenizer, "arguments")
    assert odd[:-1] != encode(tokenizer, "arguments")  # a chat written anew would change them

    class Twice:
        async def drive(self, ask: Ask) -> Outcome:
            said = await ask(USER, (tool_calls.CALC,))
            assert (said.text, said.ended, said.num_written) == ("arguments", True, 10)
            await ask(({"role": "user", "content": "more"},))
            return Outcome(0.5)

    rollouts, engine = played(tokenizer, Twice(), [odd, odd])
    assert engine.asked[1][len(engine.asked[0]) : len(engine.asked[0]) + 10] == tuple(odd)
    assert rollouts.ids[rollouts.trainable].tolist() == odd + odd
    assert rollouts.turn.tolist() == [0] * 10 + [1] * 10
    assert rollouts.reward.tolist() == [0.5]


def test_a_turn_that_was_cut_off_is_closed_by_the_template_and_that_token_does_not_train(tokenizer: Any) -> None:
    class Twice:
        async def drive(self, ask: Ask) -> Outcome:
            assert not (await ask(USER)).ended
            await ask(({"role": "user", "content": "more"},))
            return Outcome(0.0)

    rollouts, _ = played(tokenizer, Twice(), [encode(tokenizer, "12"), encode(tokenizer, "34")])
    assert decode(tokenizer, rollouts.ids.tolist()).endswith(
        "assistant\n12<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n34"
    )
    assert trained(tokenizer, rollouts) == "1234"
    assert not bool(rollouts.ended)


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (Outcome(status="timeout", message="slow"), "timeout", "slow"),
        (Outcome(), "abstain", "gave no reward"),
        (RuntimeError("broken"), "error", "RuntimeError: broken"),
        ("again", "error", "said nothing new"),
        ("never", "error", "without asking"),
        ("beside", "error", "while another one is being sampled"),
        ("four", "error", "max_turns is 3"),
    ],
)
def test_whatever_goes_wrong_is_the_outcome_of_its_episode(
    tokenizer: Any, outcome: Any, status: str, said: str
) -> None:
    class Wrong:
        async def drive(self, ask: Ask) -> Outcome:
            if outcome == "never":
                return Outcome(1.0)
            if outcome == "beside":
                await asyncio.gather(ask(USER), ask(USER), return_exceptions=True)
                return Outcome(1.0)
            await ask(USER)
            if isinstance(outcome, Exception):
                raise outcome
            try:
                for _ in range(3):
                    await ask(() if outcome == "again" else USER)
            except Exception:
                return Outcome(1.0)  # a library that swallows what it was told
            return outcome

    rollouts, _ = (
        played(tokenizer, Wrong(), [closed(tokenizer, "1")] * 5)
        if isinstance(outcome, str)
        else played(tokenizer, Once(outcome), [closed(tokenizer, "1")])
    )
    assert dict(rollouts.statuses()) == {status: 1}
    assert said in rollouts.messages[0]
    assert not bool(rollouts.scored)


@dataclass
class Once:
    """Asks once, and ends like this."""

    outcome: Any

    async def drive(self, ask: Ask) -> Outcome:
        await ask(USER)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_an_engine_that_fails_ends_the_run_even_if_the_library_hides_it(tokenizer: Any) -> None:
    class Hides:
        async def drive(self, ask: Ask) -> Outcome:
            await asyncio.gather(ask(USER), return_exceptions=True)
            return Outcome(1.0)

    with pytest.raises(EngineError, match="gone"):
        played(tokenizer, Hides(), [], fault=EngineError("gone"))


def test_an_environment_that_takes_too_long_is_a_timeout(tokenizer: Any) -> None:
    class Slow:
        async def drive(self, ask: Ask) -> Outcome:
            await ask(USER)
            await asyncio.sleep(60)
            return Outcome(1.0)

    problem = Problem(prompt=USER, answer="")
    task = Generated(Kind("one", "", lambda stream: problem, environment=lambda problem: Slow()), 0)
    task_engine = Scripted([closed(tokenizer, "1")], frozenset({tokenizer.eos_token_id}))
    collector = Collector(
        task, open_scorer(TaskSettings(), task), task_engine, tokenizer, Sampling(4, 1.0), 1, 3, 0, 0.2
    )
    try:
        (one,) = collector.play([problem], [0], Sampling(4, 1.0))
    finally:
        collector.close()
    assert (one.status, one.message) == ("timeout", "the episode took more than 0.2 s")


def test_rewards_of_turns_add_up_and_leave_the_judge_out(tokenizer: Any) -> None:
    class Pays:
        def reset(self) -> Any:
            return USER

        def step(self, answer: str, *, ended: bool) -> Turn:
            return Turn(messages=({"role": "tool", "content": "ok"},), done=answer == "2", reward=0.25)

    rollouts, _ = played(tokenizer, Pays(), [closed(tokenizer, "1"), closed(tokenizer, "2")])
    assert rollouts.reward.tolist() == [0.5]


def test_a_template_that_hides_a_turn_is_refused(tokenizer: Any) -> None:
    from copy import deepcopy

    other = deepcopy(tokenizer)
    other.chat_template = (
        "{% for one in messages %}{% if one.role != 'assistant' %}{{ one.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ConfigError, match="writes an answer of the policy 0 times"):
        next_ids(other, USER)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("42", []),
        (CALL, [("calc", {"expression": "7*8+9"}, "")]),
        ("<tool_call>{</tool_call>", [("", {}, "the call is not JSON")]),
        ("<tool_call>[1]</tool_call>", [("", {}, "the call is not a JSON object")]),
        ('<tool_call>{"arguments": {}}</tool_call>', [("", {}, "the call has no name")]),
        ('<tool_call>{"name": "a", "arguments": 1}</tool_call>', [("a", {}, "the arguments are not a JSON object")]),
        ('<tool_call>{"name": "a"}', [("", {}, "the call does not end with </tool_call>")]),
        (f"{CALL}\n{CALL}", [("calc", {"expression": "7*8+9"}, "")] * 2),
    ],
)
def test_calls_are_read_and_bad_ones_say_why(text: str, calls: list[tuple[str, dict[str, str], str]]) -> None:
    assert [(one.name, dict(one.arguments), one.fault) for one in read_calls(text)[1]] == calls


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "verifiers.gsm8k"}, r'verifiers is not installed.*pip install "trimtab\[verifiers\]"'),
        ({"name": "openenv", "options": {"url": "http://127.0.0.1:1"}}, r'pip install "trimtab\[openenv\]"'),
    ],
)
def test_a_missing_extra_is_named(settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(MissingExtra, match=said):
        open_task(TaskSettings(**settings), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "url is '' and environment is ''"),
        ({"url": "http://127.0.0.1:1", "environment": "a:b"}, "not clear where episodes are played"),
        ({"ur": "http://127.0.0.1:1"}, "has no option 'ur' .did you mean 'url'"),
    ],
)
def test_options_of_openenv_are_checked_before_the_run(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_task(TaskSettings(name="openenv", options=options), 0)
