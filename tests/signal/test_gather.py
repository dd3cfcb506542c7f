"""Two ranks in two threads: what `gather` gives is the batch that one process would have built."""

import hashlib
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.golden.exact import assert_is
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, prepare, recipe
from trimtab.signal.parallel import ProcessGroup, gather, gather_tokens


@dataclass(frozen=True)
class Meeting:
    """A reducer whose ranks are threads that wait for one another."""

    rank: int
    slots: list[Any]
    barrier: threading.Barrier

    def concat(self, local: Tensor) -> list[Tensor]:
        self.slots[self.rank] = local
        _ = self.barrier.wait()
        found = list(self.slots)
        _ = self.barrier.wait()
        return found

    def sum(self, local: Tensor) -> Tensor:
        return torch.stack(self.concat(local)).sum(0)


def on_every_rank(work: Callable[[int, Meeting], Any], ranks: int) -> list[Any]:
    slots, barrier = [None] * ranks, threading.Barrier(ranks, timeout=20)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda rank: work(rank, Meeting(rank, slots, barrier)), range(ranks)))


# Rank 0 has three sequences of two episodes, rank 1 one, rank 2 two; group 7 lies on two ranks.
MASKS = ([[1, 1], [0, 1], [1, 0]], [[1, 1]], [[0, 0], [0, 1]])
LOGP = [-1.0 - 0.1 * i for i in range(12)]
PLACES = (range(6), range(6, 8), range(8, 12))


def batch_on(rank: int, **changes: object) -> SignalBatch:
    values = torch.tensor([LOGP[i] for i in PLACES[rank]], dtype=torch.float64).reshape(-1, 2)
    given: dict[str, Any] = {
        "reward": ([1.0, 2.0], [3.0], [4.0, 5.0])[rank],
        "group": ([7, 3], [7], [9, 9])[rank],
        "episode": ([0, 1, 1], [0], [0, 1])[rank],
        "scored": ([1, 1], [0], [1, 1])[rank],
        "ended": ([1, 0, 1], [1], [1, 1])[rank],
        "logp_old": values,
        "extra": {"mine": values + 5},
    }
    return SignalBatch.from_padded(MASKS[rank], **(given | changes))


def test_the_gathered_batch_is_the_whole_one_on_every_rank() -> None:
    found = on_every_rank(lambda rank, reducer: gather(batch_on(rank), reducer, rank), 3)
    for rank, (whole, mine) in enumerate(found):
        assert_is(whole.segments.token_counts, 2, 1, 1, 2, 0, 1)
        assert_is(whole.levels.episode_of_sequence, 0, 1, 1, 2, 3, 4)
        assert_is(whole.group, 7, 3, 7, 9, 9)
        assert_is(whole.levels.group_of_episode, 1, 0, 1, 2, 2)
        assert whole.levels.num_groups == 3
        assert_is(whole.reward, 1, 2, 3, 4, 5)
        assert_is(whole.scored, 1, 1, 0, 1, 1)
        assert_is(whole.ended, 1, 0, 1, 1, 1, 1)
        kept = [LOGP[i] for i in (0, 1, 3, 4, 6, 7, 11)]
        assert_is(whole.logp_old, *kept)
        torch.testing.assert_close(whole.extra["mine"], whole.logp_old + 5, rtol=0, atol=0)
        assert (whole.cells.shape, whole.dtype, whole.num_tokens) == ((7,), torch.float64, 7)
        assert_is(whole.cells.index, *range(7))
        # every rank counted its sequences from 0, so in the whole they are named by their place
        assert_is(whole.sequence_id, *range(6))
        assert_is(mine, *([0, 1, 2], [3], [4, 5])[rank])


def test_ids_that_are_distinct_over_all_ranks_stay() -> None:
    ids = ([40, 10, 30], [20], [50, 5])
    found = on_every_rank(lambda rank, reducer: gather(batch_on(rank, sequence_id=ids[rank]), reducer, rank), 3)
    assert_is(found[0][0].sequence_id, 40, 10, 30, 20, 50, 5)


def test_ids_that_any_two_ranks_share_become_places_in_the_whole() -> None:
    ids = ([40, 10, 30], [20], [50, 40])
    found = on_every_rank(lambda rank, reducer: gather(batch_on(rank, sequence_id=ids[rank]), reducer, rank), 3)
    assert_is(found[0][0].sequence_id, 0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"ended": None}, "ended"),
        ({"logp_rollout": torch.full((1, 2), -1.0, dtype=torch.float64)}, "logp_rollout"),
        ({"extra": {"mane": torch.zeros(1, 2, dtype=torch.float64)}}, "extra.mane"),
        ({"extra": {"mien": torch.zeros(1, 2, dtype=torch.float64)}}, "extra.mien"),
        ({"logp_old": torch.full((1, 2), -1.0), "extra": {"mine": torch.zeros(1, 2)}}, "extra.mine"),
    ],
)
def test_ranks_that_carry_different_fields_are_told_which(changes: dict[str, Any], names: str) -> None:
    def work(rank: int, reducer: Meeting) -> str:
        with pytest.raises(SignalError) as caught:
            gather(batch_on(rank, **(changes if rank == 1 else {})), reducer, rank)
        return str(caught.value)

    first, second = on_every_rank(work, 2)
    assert re.search(rf"rank 1 differs from this one in .*{names} \(", first)
    assert re.search(rf"rank 0 differs from this one in .*{names} \(", second)


LAYOUTS: dict[str, Callable[[], SignalBatch]] = {
    "padded": lambda: SignalBatch.from_padded(torch.zeros(0, 3, dtype=torch.bool), reward=[], group=[]),
    "list": lambda: SignalBatch.from_list([], reward=[], group=[], logp_old=[]),
    "packed": lambda: SignalBatch.from_packed(torch.zeros(0, dtype=torch.bool), [0], reward=[], group=[]),
    "tokens": lambda: SignalBatch.from_tokens(torch.zeros(0, dtype=torch.long), reward=[], group=[]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_without_sequences_takes_part_whatever_its_layout(layout: str) -> None:
    """It cannot know which fields the others carry, nor in which precision."""
    found = on_every_rank(
        lambda rank, reducer: gather(LAYOUTS[layout]() if rank == 1 else batch_on(rank), reducer, rank), 2
    )
    (first, mine), (second, none) = found
    assert len(mine) == first.levels.num_sequences > 0
    assert none.tolist() == []
    assert second.extra.keys() == first.extra.keys()
    assert second.logp_old is not None
    assert torch.equal(second.logp_old, batch_on(0).logp_old)  # type: ignore[arg-type]


def test_what_every_ranks_model_says_is_joined_in_the_order_of_the_update() -> None:
    def work(rank: int, reducer: Meeting) -> Tensor:
        whole, mine = gather(batch_on(rank, scored=([1, 1], [1])[rank]), reducer, rank)
        update = next(iter(prepare(whole, recipe("reinforce"))[0].updates(1)))
        own = update.sequences[torch.isin(update.sequences, mine)]
        said = torch.cat([100.0 * s + torch.arange(float(whole.levels.token_counts[s])) for s in own.tolist()])
        with pytest.raises(SignalError, match=r"values for the .* tokens of this rank's"):
            _ = gather_tokens(update, said[1:], mine, reducer)
        return gather_tokens(update, said, mine, reducer)

    first, second = on_every_rank(work, 2)
    assert torch.equal(first, second)
    assert first.tolist() == sorted(first.tolist())  # sequence after sequence, token after token


class Alone:
    """A single rank."""

    def concat(self, local: Tensor) -> list[Tensor]:
        return [local]

    def sum(self, local: Tensor) -> Tensor:
        return local


def test_what_a_model_says_is_joined_without_its_gradient_and_without_gaps() -> None:
    whole, mine = gather(batch_on(0), Alone(), 0)
    update = next(iter(prepare(whole, recipe("reinforce"))[0].updates(1)))
    said = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    found = gather_tokens(update, said, mine, Alone())
    assert not found.requires_grad
    assert_is(found, 1, 2, 3, 4)
    with pytest.raises(SignalError, match=r"gather_tokens: 1 of 4 tokens are nan or belong to no rank"):
        _ = gather_tokens(update, torch.tensor([1.0, 2.0, torch.nan, 4.0]), mine, Alone())
    with pytest.raises(SignalError, match=r"2 of 4 tokens are nan or belong to no rank"):
        _ = gather_tokens(update, torch.tensor([3.0, 4.0]), mine[1:], Alone())
    with pytest.raises(SignalError, match=r"there are \[4, 1\] values for the 4 tokens of this rank's 3 sequences"):
        _ = gather_tokens(update, said[:, None], mine, Alone())


def test_a_process_group_returns_what_it_was_given() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = ProcessGroup()
        for local in (torch.tensor([True, False]), torch.tensor([3, 4, 5]), torch.zeros(0), torch.tensor([0.5])):
            (found,) = group.concat(local)
            torch.testing.assert_close(found, local, rtol=0, atol=0)
        local = torch.tensor([2.0])
        assert_is(group.sum(local), 2)
        assert group.sum(local).data_ptr() != local.data_ptr()
    finally:
        dist.destroy_process_group()


def test_a_process_group_pads_what_backends_gather_only_in_equal_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.local()

    def all_gather(found: list[Tensor], local: Tensor, group: object) -> None:
        for place, piece in zip(found, here.meeting.concat(local), strict=True):
            assert place.shape == piece.shape == local.shape
            _ = place.copy_(piece)

    monkeypatch.setattr(dist, "get_world_size", lambda group: 3)
    monkeypatch.setattr(dist, "all_gather", all_gather)

    def work(rank: int, meeting: Meeting) -> list[Tensor]:
        here.meeting = meeting
        return ProcessGroup().concat(torch.arange(10 * rank, 11 * rank + 1))

    for found in on_every_rank(work, 3):
        assert [piece.tolist() for piece in found] == [[0], [10, 11], [20, 21, 22]]


def test_names_of_extra_fields_are_compared_by_56_bits_of_their_hash() -> None:
    names = ("f24633328", "f15468585")
    digests = [hashlib.sha256(name.encode()).digest() for name in names]
    assert digests[0][:6] == digests[1][:6]
    values = torch.zeros(1, 2, dtype=torch.float64)

    def work(rank: int, reducer: Meeting) -> None:
        batch = SignalBatch.from_padded([[1, 1]], reward=[1.0], group=[0], extra={names[rank]: values})
        with pytest.raises(SignalError, match="differs from this one in extra"):
            gather(batch, reducer, rank)

    _ = on_every_rank(work, 2)
