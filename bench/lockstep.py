"""Sampling as it was before episodes were coroutines: every turn waits for its slowest answer. Kept to compare with."""

from collections.abc import Sequence

from trimtab.rollout.collect import Collector
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request
from trimtab.rollout.play import Played
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import Turn
from trimtab.rollout.tokenizer import decode, encode


def collect(collector: Collector, tickets: Sequence[int]) -> list[Played]:
    """All episodes of these tickets, turn after turn, judged at the end."""
    engine = collector.engine
    assert isinstance(engine, Embedded)
    played: list[Played] = []
    for ticket in tickets:
        for number in range(collector.samples_per_prompt):
            seed = stream_seed(collector.seed, "rollout", ticket, number)
            before = played[-1] if played else None
            played.append(collector._player.open(collector.task.train(ticket), seed, (), before))
    going = list(played)
    for turn in range(collector.max_turns):
        requests = [Request(tuple(one.ids), stream_seed(one.seed, turn)) for one in going]
        samples = engine.sample(requests, collector.how)
        going = [one for one, sample in zip(going, samples, strict=True) if _move(collector, one, sample)]
    _ = collector.scorer.score([one.attempt for one in played])
    return played


def _move(collector: Collector, one: Played, sample) -> bool:  # type: ignore[no-untyped-def]
    """Add the policy's turn and the environment's reply; whether the episode goes on."""
    ended = sample.finish == "eos"
    answer = decode(collector.tokenizer, list(sample.ids[:-1] if ended else sample.ids))
    one.ids += sample.ids
    one.samples.append(sample)
    one.answers.append(answer)
    assert one.environment is not None
    reply = one.environment.step(answer, ended=ended)
    assert isinstance(reply, Turn)
    if not reply.done:
        one.ids += encode(collector.tokenizer, reply.observation)
    return not reply.done
