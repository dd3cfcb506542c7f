"""Workers come and go: the learner gets the same batches, and every prompt once. No clock, no process."""

import pytest
import torch
from tests.rollout.test_buffer import group

from trimtab.errors import EngineError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.join import join
from trimtab.rollout.publication import Publication
from trimtab.train.runtimes.beside import RESTARTS, Beside
from trimtab.train.runtimes.inline import Wait
from trimtab.train.runtimes.worker import Failed, Gone, Hear, Loaded, Sampled


class Told:
    """A worker that does what the test says, when it says so."""

    def __init__(self, hear: Hear) -> None:
        self.hear = hear
        self.orders: list[list[int]] = []
        self.published: list[int] = []
        self.is_closed = False

    def order(self, tickets) -> None:
        self.orders.append(list(tickets))

    def publish(self, publication: Publication) -> None:
        self.published.append(publication.version)

    def close(self, seconds: float) -> None:
        self.is_closed = True

    def prove(self) -> None:
        self.hear(Loaded(self.published[-1]))

    def answer(self, version: int) -> None:
        """Answer all orders."""
        orders, self.orders = self.orders, []
        for tickets in orders:
            self.hear(Sampled(join([group(ticket, version) for ticket in tickets]), 0.0))


def opened(*, workers: int, staleness: int = 1) -> tuple[Beside, list[Told]]:
    made: list[Told] = []

    def start(_: int, hear: Hear) -> Told:
        made.append(Told(hear))
        return made[-1]

    return Beside(start, Buffer(4, staleness), workers=workers, room=4), made


def published(version: int) -> Publication:
    return Publication(version, {"w": torch.zeros(1)})


def taken(runtime: Beside, told: list[str] | None = None) -> list[int] | None:
    """The next batch's tickets, if it is there."""
    notes = told if told is not None else []
    found = runtime.batch(lambda rollouts: rollouts, Wait(lambda: True, notes.append))
    return None if found is None else found.rollouts.tickets


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.train.runtimes.beside.POLL_SECONDS", 0.0)


def test_tickets_are_shared_by_load_and_given_out_only_after_a_proof() -> None:
    runtime, (one, two) = opened(workers=2)
    runtime.publish(published(0))
    assert one.orders == two.orders == []
    one.prove()
    assert one.orders == [[0], [1], [2], [3]]  # as many as it has room for, a quarter of a batch each
    two.prove()
    assert two.orders == [[4], [5], [6], [7]]
    one.answer(0)
    assert taken(runtime) == [0, 1, 2, 3]


def test_what_a_lost_worker_had_is_sampled_by_its_successor_and_what_it_says_late_is_not_heard() -> None:
    runtime, made = opened(workers=1)
    runtime.publish(published(0))
    made[0].prove()
    made[0].hear(Gone("the sampler ended with exit code -9"))
    assert made[1].published == [0]
    assert made[1].orders == []
    made[0].answer(0)
    made[1].prove()
    assert made[1].orders == [[0], [1], [2], [3]]
    made[1].answer(0)
    told: list[str] = []
    assert taken(runtime, told) == [0, 1, 2, 3]
    lost = "warning: the sampler ended with exit code -9; it is started again, and 4 prompts are sampled anew"
    assert told == [lost]
    runtime.close()
    assert all(worker.is_closed for worker in made)


def test_lost_tickets_wait_for_a_version_that_may_sample_them() -> None:
    runtime, (one, two) = opened(workers=2, staleness=0)
    runtime.publish(published(0))
    one.prove()
    one.answer(0)
    assert taken(runtime) == [0, 1, 2, 3]
    runtime.publish(published(1))
    one.prove()
    assert one.orders == [[4, 5, 6, 7]]
    two.hear(Loaded(0))  # it is behind
    one.hear(Gone("lost"))
    assert two.orders == []  # the tickets of batch 1 may not be sampled with version 0
    two.prove()
    assert two.orders == [[4, 5, 6, 7]]


def test_a_worker_whose_tokens_are_older_than_it_proved_is_replaced() -> None:
    runtime, made = opened(workers=1, staleness=0)
    runtime.publish(published(0))
    made[0].prove()
    made[0].answer(0)
    assert taken(runtime) == [0, 1, 2, 3]
    runtime.publish(published(1))
    made[0].prove()
    made[0].answer(0)
    told: list[str] = []
    assert taken(runtime, told) is None
    assert "older parameters than it had proven" in told[0]
    made[1].prove()
    made[1].answer(1)
    assert taken(runtime) == [4, 5, 6, 7]


def test_after_a_few_restarts_the_run_ends_with_the_last_words() -> None:
    runtime, made = opened(workers=1)
    runtime.publish(published(0))
    for number in range(RESTARTS + 1):
        made[number].hear(Gone("the sampler ended with exit code 1", "no memory"))
    with pytest.raises(EngineError, match=r"exit code 1, so no batch can come; 3 restarts did not help.*no memory"):
        _ = taken(runtime)


def test_an_error_that_another_try_would_repeat_ends_the_run_at_once() -> None:
    runtime, made = opened(workers=2)
    runtime.publish(published(0))
    made[1].hear(Failed("state lacks a name"))
    with pytest.raises(EngineError, match="state lacks a name"):
        _ = taken(runtime)
    assert len(made) == 2
