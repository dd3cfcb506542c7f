"""Sampling as it was before episodes were coroutines: every turn waits for its slowest answer. Kept to compare with."""

from collections.abc import Sequence

from trimtab.rollout.collect import Collector, _episode
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request
from trimtab.rollout.join import gather_groups
from trimtab.rollout.play import Played
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Turn
from trimtab.rollout.tokenizer import decode, encode


def collect(collector: Collector, tickets: Sequence[int]) -> tuple[Rollouts, list[Played]]:
    """All episodes of these tickets, turn after turn, judged at the end; as rollouts, and as they were played."""
    engine = collector.engine
    assert isinstance(engine, Embedded)
    played: list[Played] = []
    problems = [collector.task.train(ticket) for ticket in tickets]
    for ticket, problem in zip(tickets, problems, strict=True):
        for number in range(collector.samples_per_prompt):
            seed = stream_seed(collector.seed, "rollout", ticket, number)
            before = played[-1] if played else None
            played.append(collector._player.open(problem, seed, (), before))
    going = list(played)
    for turn in range(collector.max_turns):
        requests = [Request(tuple(one.ids), stream_seed(one.seed, turn)) for one in going]
        samples = engine.sample(requests, collector.how)
        going = [one for one, sample in zip(going, samples, strict=True) if _move(collector, one, sample)]
    verdicts = collector.scorer.score([one.attempt for one in played])
    episodes = [_episode(one, verdict) for one, verdict in zip(played, verdicts, strict=True)]
    return gather_groups(tickets, [problem.text for problem in problems], episodes), played


def _move(collector: Collector, one: Played, sample) -> bool:  # type: ignore[no-untyped-def]
    """Add the policy's turn and the environment's reply; whether the episode goes on."""
    ended = sample.finish == "eos"
    answer = decode(collector.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
    one.take(sample, answer)
    assert one.environment is not None
    reply = one.environment.step(answer, ended=ended)
    assert isinstance(reply, Turn)
    if not reply.done:
        one.observe(encode(collector.tokenizer, reply.observation))
    return not reply.done
