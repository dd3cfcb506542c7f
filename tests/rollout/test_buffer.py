import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import EngineError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather
from trimtab.rollout.rollouts import Rollouts


def group(ticket: int, version: int, rewards: tuple[float, ...] = (0.0, 1.0)) -> Rollouts:
    episodes = [
        Episode(
            ids=torch.tensor([1, 2]),
            trainable=torch.tensor([False, True]),
            logp=torch.tensor([-1.0]),
            version=torch.tensor([version]),
            turn=torch.tensor([0]),
            ended=True,
            reward=reward,
            status="ok",
        )
        for reward in rewards
    ]
    return gather(ticket, "", episodes)


def test_without_staleness_one_batch_is_admitted_at_a_time() -> None:
    buffer = Buffer(groups_per_batch=2, staleness=0)
    assert buffer.admit(0) == [0, 1]
    assert buffer.admit(0) == []
    for ticket in (0, 1):
        buffer.put(group(ticket, 0))
    assert buffer.take() is not None
    assert buffer.admit(0) == []  # batch 0 is being trained on: what version 0 samples now would be too old
    assert buffer.admit(1) == [2, 3]


def test_a_batch_waits_for_its_oldest_ticket() -> None:
    """Were a later group to overtake an earlier one, that one would be trained on staler than the limit."""
    buffer = Buffer(groups_per_batch=2, staleness=1)
    assert buffer.admit(0) == [0, 1, 2, 3]
    for ticket in (1, 2, 3):
        buffer.put(group(ticket, 0))
    assert buffer.size == (3, 3 * group(0, 0).num_bytes)
    assert buffer.take() is None
    buffer.put(group(0, 0))
    taken = buffer.take()
    assert taken is not None
    assert taken[0].tickets == [0, 1]


def test_groups_that_teach_nothing_are_replaced_up_to_the_limit() -> None:
    buffer = Buffer(groups_per_batch=2, staleness=0, refills=1)
    sampled: list[int] = []
    while (taken := buffer.take()) is None:
        for ticket in buffer.admit(0):
            sampled.append(ticket)
            buffer.put(group(ticket, 0, rewards=(1.0, 1.0)))
    groups, dropped = taken
    assert dropped == 2  # refills x groups_per_batch
    assert groups.tickets == [2, 3]  # past the limit they stay: the batch is never short
    assert sampled == [0, 1, 2, 3]


def test_a_ticket_is_put_once() -> None:
    buffer = Buffer(groups_per_batch=1, staleness=0)
    _ = buffer.admit(0)
    buffer.put(group(0, 0))
    with pytest.raises(EngineError, match="ticket 0 is not expected"):
        buffer.put(group(0, 0))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 4), staleness=st.integers(0, 5), refills=st.integers(0, 2), lag=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)  # fmt: skip
def test_no_batch_is_staler_than_the_limit_and_nothing_is_lost(
    size: int, staleness: int, refills: int, lag: int, seed: int
) -> None:
    """A learner and a sampler that is up to `lag` versions behind, whose groups arrive in any order."""
    stream = random.Random(seed)
    buffer = Buffer(size, staleness, refills)
    engine, on_their_way, seen = 0, list[Rollouts](), list[int]()
    dropped = 0
    for version in range(8):
        while (taken := buffer.take()) is None:
            engine = max(engine, version - stream.randint(0, min(lag, staleness)))
            for ticket in buffer.admit(engine):
                constant = stream.random() < 0.4
                on_their_way.append(group(ticket, engine, (1.0, 1.0) if constant else (0.0, 1.0)))
            if not on_their_way:
                engine = version  # a lagging sampler catches up when there is nothing else to do
                continue
            buffer.put(on_their_way.pop(stream.randrange(len(on_their_way))))
            assert buffer.size[0] <= size * (staleness + 1)  # so its bytes are bounded too
        groups, lost = taken
        assert len(groups.tickets) == size
        assert version - groups.oldest_version <= staleness
        seen += groups.tickets
        dropped += lost
        if stream.random() < 0.5:  # a checkpoint and a resume change nothing; what was on its way is sampled again
            state, ready = buffer.state(), buffer.ready_rollouts()
            buffer = Buffer(size, staleness, refills)
            buffer.restore(state, ready)
    assert seen == sorted(seen)
    still = len(buffer.waiting) + len(buffer.ready) + sum(buffer.dropped.values())
    assert len(seen) + dropped + still == buffer.next_ticket  # every ticket is accounted for
