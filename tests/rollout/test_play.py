"""Episodes side by side: parameters that change in the middle of an answer, outcomes, order, no needless waiting."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.rollout.test_collect import collector, cut_up
from tests.rollout.test_embedded import TEXTS, fresh, logp_alone, requests

from trimtab.config.train import TaskSettings
from trimtab.errors import EngineError
from trimtab.rollout.collect import Collector
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.play import IDLE_STOPS
from trimtab.rollout.publication import Publication
from trimtab.rollout.reward import Attempt, Verdict
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.stepped import Stepped, as_async
from trimtab.rollout.task import Prompt, Turn
from trimtab.rollout.tokenizer import encode
from trimtab.train.policy import Policy, frozen_copy, published

HOW = Sampling(max_new_tokens=12, temperature=1.2)


def asked(policy: Policy, copies: int = 3) -> list[Request]:
    return requests([tuple(encode(policy.tokenizer, text)) for text in TEXTS], copies=copies)


def changed(policy: Policy) -> Policy:
    """The next version: far enough away that a token of one version is no token of the other."""
    model = frozen_copy(policy.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.8)
    return replace(policy, model=model)


async def after_steps(engine: Embedded, count: int, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something when the engine has taken so many steps."""
    seen, step = 0, engine.step

    def counted() -> list[tuple[int, Sample]]:
        nonlocal seen
        seen += 1
        return step()

    engine.step = counted  # type: ignore[method-assign]
    while seen < count:
        await asyncio.sleep(0)
    await work()


def test_answers_of_coroutines_are_those_of_a_list(policy: Policy) -> None:
    async def work() -> list[Sample]:
        engine = Stepped(fresh(policy))
        return list(await asyncio.gather(*(engine.generate(request, HOW) for request in asked(policy))))

    for one, other in zip(asyncio.run(work()), fresh(policy).sample(asked(policy), HOW), strict=True):
        assert (one.ids, one.finish, one.version) == (other.ids, other.finish, other.version)
        assert torch.equal(one.logp, other.logp)  # the same rows together, so the same bits


@pytest.mark.parametrize("slots", [0, 5])
def test_answers_of_every_kind_run_and_later_ones_enter(policy: Policy, slots: int) -> None:
    """Another temperature waits until the batch is empty; another length does not have to."""
    kinds = [HOW, replace(HOW, max_new_tokens=3), replace(HOW, temperature=0.7), Greedy(max_new_tokens=5)]

    async def work() -> list[Sample]:
        engine = Stepped(fresh(policy, max_rows=slots))
        asks = [engine.generate(request, how) for how in kinds for request in asked(policy, 1)]
        return list(await asyncio.gather(*asks))

    expected = [sample for how in kinds for sample in fresh(policy).sample(asked(policy, 1), how)]
    assert [sample.ids for sample in asyncio.run(work())] == [sample.ids for sample in expected]


def test_with_few_slots_the_first_in_order_enter_first(policy: Policy) -> None:
    engine = fresh(policy, max_rows=2)
    for key, order in enumerate([(3,), (1,), (2,), (0,)]):
        engine.submit(key, Request((5, 6), key, order), Greedy(max_new_tokens=1))
    assert [{key for key, _ in engine.step()} for _ in range(2)] == [{3, 1}, {2, 0}]


def test_an_answer_that_nobody_waits_for_leaves_the_batch(policy: Policy) -> None:
    engine = fresh(policy)

    async def work() -> list[Sample]:
        stepped = Stepped(engine)
        tasks = [asyncio.ensure_future(stepped.generate(request, HOW)) for request in asked(policy)]
        await after_steps(engine, 2, lambda: asyncio.sleep(0, tasks[4].cancel()))
        left = [task for place, task in enumerate(tasks) if place != 4]
        return list(await asyncio.gather(*left))

    expected = fresh(policy).sample(asked(policy), HOW)
    assert [one.ids for one in asyncio.run(work())] == [one.ids for place, one in enumerate(expected) if place != 4]
    assert engine.abort() == []


def test_an_engine_that_fails_fails_everyone_who_waits_and_can_be_used_again(policy: Policy) -> None:
    broken = {name: tensor.clone().fill_(torch.nan) for name, tensor in published(policy.model).items()}

    async def work() -> list[Any]:
        engine = Stepped(fresh(policy))
        _ = await engine.load(Publication(1, broken))
        asks = [engine.generate(request, HOW) for request in asked(policy)]
        lost = await asyncio.gather(*asks, return_exceptions=True)
        assert await engine.load(Publication(2, published(policy.model))) == 2
        return [*lost, await engine.generate(asked(policy)[0], HOW)]

    *lost, good = asyncio.run(work())
    assert all(isinstance(error, EngineError) for error in lost)
    assert good.ids == fresh(policy).sample(asked(policy)[:1], HOW)[0].ids


def test_parameters_are_not_replaced_under_an_answer(policy: Policy) -> None:
    engine = fresh(policy)
    engine.submit(0, asked(policy)[0], HOW)
    _ = engine.step()
    state = published(policy.model)
    with pytest.raises(EngineError, match=r"1 answers are being sampled.*Call abort first"):
        engine.load(state, 1, Publication(1, state).digest)


def test_requests_that_wait_are_not_stopped_by_new_parameters(policy: Policy) -> None:
    """One slot, three requests: the first is stopped, the others hear nothing until the new parameters answer them."""

    async def work() -> list[Sample]:
        inner = fresh(policy, max_rows=1)
        engine = as_async(inner)
        answers = [asyncio.ensure_future(engine.generate(one, HOW)) for one in asked(policy)[:3]]
        while not inner.started:
            await asyncio.sleep(0)
        _ = await engine.load(Publication(1, published(policy.model)))
        return await asyncio.gather(*answers)

    stopped, *others = asyncio.run(work())
    assert stopped.finish == "abort"
    assert set(stopped.version) == {0}
    assert all(one.finish != "abort" and set(one.version) == {1} for one in others)


def two_versions(task: TaskSettings, steps: int, **more: Any) -> tuple[Any, dict[int, Policy]]:
    """Collect while the parameters change after so many steps: the rollouts, and the policy of every version."""
    built, policy = collector(task, max_new_tokens=10, **more)
    with torch.no_grad():  # initial values give nearly uniform logits; sharpen them
        policy.model.get_output_embeddings().weight.mul_(20)
    policies = {8: policy, 9: changed(policy)}
    built.load(Publication(8, published(policy.model)))
    engine = built.engine
    assert isinstance(engine, Embedded)

    async def work() -> Any:
        next_version = Publication(9, published(policies[9].model))
        groups = asyncio.ensure_future(built.groups([0, 1, 2]))
        await after_steps(engine, steps, lambda: built.load_beside(next_version))
        return await groups

    rollouts = built.loop.run(work())
    built.close()
    return rollouts, policies


@pytest.mark.parametrize("steps", [1, 4])
def test_every_token_has_the_log_prob_of_the_version_it_is_stamped_with(steps: int) -> None:
    """Recomputed under each version, over the whole sequence: no key or value of the other version was used."""
    rollouts, policies = two_versions(TaskSettings(name="sort", size=3), steps)
    assert rollouts.version.unique().tolist() == [8, 9]
    ends = 0
    first = rollouts.first_token.tolist()
    for row, ids in enumerate(cut_up(rollouts)[0]):
        prompt = tuple(ids[: int(rollouts.prompt_length[row])].tolist())
        span = slice(first[row], first[row + 1])
        sample = Sample(tuple(ids[len(prompt) :].tolist()), rollouts.logp_rollout[span], (), "eos")
        under = {version: logp_alone(one, prompt, sample, 1.0) for version, one in policies.items()}
        stamped = rollouts.version[span].tolist()
        expected = torch.stack([under[version][place] for place, version in enumerate(stamped)])
        torch.testing.assert_close(sample.logp, expected, atol=1e-5, rtol=0)
        other = torch.stack([under[17 - version][place] for place, version in enumerate(stamped)])
        assert float((sample.logp - other).abs().max()) > 1e-3
        drawn = stamped.count(8)
        if 0 < drawn < len(stamped):  # the rest is drawn with the stream of (seed, tokens so far)
            episode = int(rollouts.episode[row])
            own = stream_seed(0, "rollout", int(rollouts.ticket[episode]), int(rollouts.sample[episode]))
            rest = Request((*prompt, *sample.ids[:drawn]), stream_seed(stream_seed(own, 0), drawn))
            how = Sampling(max_new_tokens=10 - drawn, temperature=1.0)
            assert fresh(policies[9]).sample([rest], how)[0].ids == sample.ids[drawn:]
            ends += 1
    assert ends


def test_an_answer_in_parts_is_as_long_as_a_whole_one_and_keeps_its_support() -> None:
    from trimtab.config.train import EngineSettings

    cut = EngineSettings(top_k=4, record_support=True)
    rollouts, _ = two_versions(TaskSettings(name="sort", size=3), 3, engine=cut)
    assert int(rollouts.token_counts.max()) <= 10
    assert rollouts.support_counts is not None
    assert len(rollouts.support_counts) == rollouts.num_tokens


def test_the_same_events_give_the_same_bits() -> None:
    one, other = (two_versions(TaskSettings(name="calculator", size=3), 5)[0] for _ in range(2))
    assert torch.equal(one.ids, other.ids)
    assert torch.equal(one.logp_rollout, other.logp_rollout)


# ------------------------------------------------------------------------------------------------ environments, rewards


@dataclass
class Answering:
    """An environment that does what the test says in its first turn, and then ends."""

    prompt: Prompt
    reply: Callable[[], Turn | Awaitable[Turn]]
    turns: int = 0

    def reset(self) -> Prompt:
        return self.prompt

    def step(self, answer: str, *, ended: bool) -> "Turn | Awaitable[Turn]":
        self.turns += 1
        return self.reply() if self.turns == 1 else Turn("", done=True)


def with_environments(built: Collector, replies: list[Callable[[], Any]], **changes: Any) -> Collector:
    """The n-th episode gets the n-th reply."""
    left = iter(replies)

    class Own:
        def __getattr__(self, name: str) -> Any:
            return getattr(built.task, name)

        def environment(self, problem: Any) -> Answering:
            return Answering(problem.prompt, next(left))

    return replace(built, task=Own(), samples_per_prompt=len(replies), **changes)


def raises() -> Turn:
    raise RuntimeError("the tool is down")


async def cancels() -> Turn:
    raise asyncio.CancelledError


async def never() -> Turn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def later() -> Turn:
    for _ in range(50):
        await asyncio.sleep(0)
    return Turn("1=", done=False)


def test_what_ends_an_episode_early_is_its_outcome_and_costs_no_other() -> None:
    built, _ = collector(TaskSettings(name="sort", size=3))
    done = lambda: Turn("", done=True)  # noqa: E731
    played = with_environments(built, [done, raises, cancels, never, later], episode_seconds=0.5)
    rollouts = played.collect([0])
    played.close()
    assert rollouts.statuses() == {"ok": 2, "error": 1, "cancel": 1, "timeout": 1}
    assert rollouts.messages == {
        1: "the environment raised RuntimeError: the tool is down",
        2: "the environment cancelled its turn",
        3: "the episode took more than 0.5 s",
    }
    assert rollouts.scored.tolist() == [True, False, False, False, True]
    assert rollouts.turn.max() == 1


class Stopping:
    """An asynchronous engine that stops every answer, with a new version each time or without."""

    dtype, slots = "fp32", 2

    def __init__(self, *, is_new: bool) -> None:
        self.version, self.is_new, self.at_once, self.most = 0, is_new, 0, 0

    async def generate(self, request: Request, how: Sampling | Greedy) -> Sample:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.version += self.is_new
        stops = self.version < 20
        return Sample(() if stops else (3,), torch.zeros(0 if stops else 1), () if stops else (self.version,),
                      "abort" if stops else "length")  # fmt: skip

    async def load(self, publication: Publication) -> int:
        raise AssertionError

    async def close(self) -> None: ...


@pytest.mark.parametrize("is_new", [True, False])
def test_an_engine_that_stops_answers_for_no_reason_gave_them_up(is_new: bool) -> None:
    built, _ = collector(TaskSettings(name="sort", size=3))
    engine = Stopping(is_new=is_new)
    stopped = replace(built, engine=engine)
    rollouts = stopped.collect([0, 1])
    stopped.close()
    assert rollouts.statuses() == ({"ok": 6} if is_new else {"abort": 6})
    assert engine.most == 2  # no more than its slots
    if not is_new:
        assert f"stopped the answer {IDLE_STOPS} times" in rollouts.messages[0]
        assert rollouts.num_tokens == 0


class Waiting:
    """A scorer that waits for others, and writes down which attempts each call had."""

    waits = True

    def __init__(self, engine: Embedded) -> None:
        self.engine, self.calls = engine, list[tuple[int, int]]()

    def score(self, attempts: list[Attempt]) -> list[Verdict]:
        self.calls.append((len(attempts), len(self.engine._running)))  # pyright: ignore[reportPrivateUsage]
        return [Verdict.of(float(len(attempt.ids))) for attempt in attempts]

    def close(self) -> None: ...


def test_rewards_begin_while_others_are_sampled_and_find_their_episodes() -> None:
    built, _ = collector(TaskSettings(name="sort", size=3), max_new_tokens=64)
    assert isinstance(built.engine, Embedded)
    scorer = Waiting(built.engine)
    judged = replace(built, scorer=scorer)
    rollouts = judged.collect([0, 1, 2, 3])
    judged.close()
    assert sum(count for count, _ in scorer.calls) == 12
    assert scorer.calls[0][1] > 0  # answers were still being drawn when the first were judged
    assert rollouts.reward.tolist() == rollouts.token_counts.double().tolist()


def test_a_second_turn_does_not_wait_for_the_slowest_first_one() -> None:
    """Fewer steps than two rounds of the longest answers, where every first turn ends at another time."""
    built, _ = collector(TaskSettings(name="calculator", size=9), max_new_tokens=40, samples_per_prompt=8)
    engine = built.engine
    assert isinstance(engine, Embedded)
    steps = 0
    inner = engine.step

    def counted() -> list[tuple[int, Sample]]:
        nonlocal steps
        steps += 1
        return inner()

    engine.step = counted  # type: ignore[method-assign]
    played = with_environments(built, [lambda: Turn("1=", done=False)] * 8)
    rollouts = played.collect([0])
    played.close()
    lengths = [torch.bincount(rollouts.turn[a:b]).tolist() for a, b in zip(rollouts.first_token[:-1].tolist(),
               rollouts.first_token[1:].tolist(), strict=True)]  # fmt: skip
    lockstep = sum(max(turns[number] for turns in lengths) for number in (0, 1))
    assert max(sum(turns) for turns in lengths) <= steps < lockstep
