"""Layouts both ways: every trainable token returns to its cell, and nothing else is ever read."""

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch
from trimtab.signal.cell import Cells, list_cells, packed_cells, padded_cells
from trimtab.signal.tensors import as_on_a_device

MASK = torch.tensor([[False, True, True, False], [True, False, True, True], [False, False, False, False]])
CODES = 1000 * torch.arange(3)[:, None] + torch.arange(4.0)[None, :]
"""Position codes: the value says which row and column it came from."""


def test_every_trainable_token_returns_to_its_cell_and_others_get_the_named_fill() -> None:
    cells, segments = padded_cells(MASK)
    flat = cells.gather(CODES)
    assert flat.tolist() == [1.0, 2.0, 1000.0, 1002.0, 1003.0]
    assert segments.token_counts.tolist() == [2, 3, 0]
    torch.testing.assert_close(cells.scatter(flat, fill=-7.0), torch.where(MASK, CODES, -7.0))


def test_gradients_go_to_the_cell_they_came_from() -> None:
    cells, _ = padded_cells(MASK)
    source = CODES.clone().requires_grad_()
    cells.gather(source).square().sum().backward()
    torch.testing.assert_close(source.grad, torch.where(MASK, 2 * CODES, 0.0))
    tokens = torch.ones(5, requires_grad=True)
    (cells.scatter(tokens, fill=0.0) * CODES).sum().backward()
    assert tokens.grad.tolist() == [1.0, 2.0, 1000.0, 1002.0, 1003.0]


def test_padded_list_and_packed_give_the_same_batch() -> None:
    rows = [slice(0, 4), slice(0, 3), slice(1, 4)]
    logp = -torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    lengths = [4, 3, 3]
    kept = [MASK[i][rows[i]] for i in range(3)]
    values = [logp[i][rows[i]] for i in range(3)]
    padded = torch.zeros(3, 4, dtype=torch.bool)
    padded_logp = torch.full((3, 4), 9.0)
    for i, (mask, value) in enumerate(zip(kept, values, strict=True)):
        padded[i, 4 - lengths[i] :], padded_logp[i, 4 - lengths[i] :] = mask, value
    common = {"reward": torch.tensor([1.0, 0.0, 2.0]), "group": torch.tensor([5, 5, 9])}
    boundaries = torch.tensor([0, 4, 7, 10])
    batches = [
        SignalBatch.from_padded(padded, logp_old=padded_logp, **common),
        SignalBatch.from_list(kept, logp_old=values, **common),
        SignalBatch.from_packed(torch.cat(kept), boundaries, logp_old=torch.cat(values), **common),
    ]
    for other in batches[1:]:
        assert torch.equal(other.logp_old, batches[0].logp_old)
        assert torch.equal(other.levels.token_counts, batches[0].levels.token_counts)
        assert torch.equal(other.levels.group_of_episode, batches[0].levels.group_of_episode)
    restored = batches[1].cells.scatter_list(batches[1].logp_old, fill=0.0)
    assert [r.shape[0] for r in restored] == lengths
    assert torch.equal(restored[1][kept[1]], values[1][kept[1]])


def test_scatter_list_is_for_lists() -> None:
    cells, _ = padded_cells(MASK)
    with pytest.raises(SignalError, match="did not come from a list"):
        cells.scatter_list(torch.zeros(5), fill=0.0)


def test_empty_layouts_are_layouts() -> None:
    for cells, segments in (list_cells([]), packed_cells(torch.zeros(0, dtype=torch.bool), torch.tensor([0]))):
        assert segments.num_tokens == segments.num_sequences == 0
        assert cells.gather([] if cells.lengths is not None else torch.zeros(0)).numel() == 0


def test_a_reward_on_a_dropped_token_moves_to_the_last_trainable_token_before_it() -> None:
    rewards = torch.tensor([[0.0, 0.5, 0.0, 2.0], [0.0, 1.0, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0]])
    attention = torch.ones_like(MASK)
    batch = SignalBatch.from_padded(
        MASK, attention=attention, reward=torch.zeros(3), group=torch.tensor([0, 0, 0]), token_reward=rewards
    )
    assert batch.token_reward.tolist() == [0.5, 2.0, 1.0, 0.25, 0.0]


def test_padding_pays_no_token_reward_where_the_attention_is_known() -> None:
    rewards = torch.full((3, 4), float("nan"))
    rewards[:, :3] = torch.tensor([0.0, 1.0, 0.0])
    attention = torch.tensor([[1, 1, 1, 0]] * 3)
    mask = torch.tensor([[False, True, True, False]] * 3)
    batch = SignalBatch.from_padded(
        mask, attention=attention, reward=torch.zeros(3), group=torch.zeros(3, dtype=torch.long), token_reward=rewards
    )
    assert batch.token_reward.tolist() == [1.0, 0.0] * 3


def test_a_field_on_another_device_is_named() -> None:
    elsewhere = Cells((3,), torch.arange(3, device="meta"))
    with pytest.raises(SignalError, match="logp_old is on cpu and trainable on meta"):
        elsewhere.field(torch.zeros(3), "logp_old")


def test_every_cell_of_a_padded_batch_belongs_to_the_sequence_of_its_row() -> None:
    cells, _ = padded_cells(torch.ones(2, 3, dtype=torch.bool))
    assert cells.owners("token_reward").tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("length", [0, 1])
def test_an_entry_of_a_list_that_is_a_table_is_refused_even_where_it_holds_as_many_numbers(length: int) -> None:
    trainable = [torch.ones(length, dtype=torch.bool), torch.ones(1, dtype=torch.bool)]
    logp_old = [torch.full((1, length), -1.0), torch.full((1,), -1.0)]
    with pytest.raises(SignalError, match="logp_old does not match trainable at entry 0"):
        SignalBatch.from_list(trainable, reward=[1.0, 0.0], group=[0, 0], logp_old=logp_old)


def test_a_list_without_entries_has_no_cells() -> None:
    cells, segments = list_cells([])
    assert (cells.shape, cells.lengths, segments.num_sequences) == ((0,), (), 0)
    assert cells.joined([], "logp_old").shape == (0,)


def test_a_padded_field_may_be_a_list_and_a_field_beside_a_list_may_be_joined_already() -> None:
    common = {"reward": [1.0, 0.0], "group": [0, 0]}
    padded = SignalBatch.from_padded([[1, 1], [0, 1]], logp_old=[[-1.0, -2.0], [-3.0, -4.0]], **common)
    assert padded.logp_old.tolist() == [-1.0, -2.0, -4.0]
    listed = SignalBatch.from_list([[1, 1], [1]], logp_old=torch.tensor([-1.0, -2.0, -4.0]), **common)
    assert listed.logp_old.tolist() == [-1.0, -2.0, -4.0]


def test_a_packed_row_is_one_row() -> None:
    with pytest.raises(SignalError, match=r"trainable has shape \[1, 2\]"):
        SignalBatch.from_packed([[1, 1]], [0, 2], reward=[1.0], group=[0])


@pytest.mark.parametrize("counts", [[3], [0, 3, 0], [1, 2]])
def test_a_packed_row_may_hold_one_sequence_or_empty_ones(counts: list[int]) -> None:
    ends = torch.tensor([0, *counts]).cumsum(0)
    rewards = {"reward": [1.0] * len(counts), "group": [0] * len(counts), "logp_old": torch.tensor([-1.0, -2.0, -3.0])}
    whole, holed = (SignalBatch.from_packed(mask, ends, **rewards) for mask in ([1, 1, 1], [1, 0, 1]))
    assert whole.segments.token_counts.tolist() == counts
    assert whole.logp_old.tolist() == [-1.0, -2.0, -3.0]
    assert (whole.cells.is_dense, holed.cells.is_dense) == (True, False)
    assert whole.cells.places is None  # nothing has to be looked up
    assert holed.segments.token_counts.tolist() == [max(0, count - (count > 1)) for count in counts]
    assert holed.logp_old.tolist() == [-1.0, -3.0]


def test_plain_numbers_beside_a_single_tensor_are_read_in_its_precision() -> None:
    row = torch.full((2,), -1.0, dtype=torch.float64)
    batch = SignalBatch.from_list([[1, 1]], reward=[1.0], group=[0], logp_old=[row], logp_rollout=[[-1.0, -1.0]])
    assert batch.logp_rollout.dtype == batch.dtype == torch.float64


@pytest.mark.parametrize("extra", [[("mine", [[1.0]])], {"not a name": [[1.0]]}, {1: [[1.0]]}])
def test_fields_of_your_own_are_named_as_arguments_are(extra: object) -> None:
    with pytest.raises(SignalError, match="extra is not a mapping of names to token fields"):
        SignalBatch.from_padded([[1]], reward=[1.0], group=[0], extra=extra)


def test_off_the_processor_packed_rows_are_read_and_refused_alike() -> None:
    trainable, ends = torch.tensor([True, False, True, True]), torch.tensor([0, 1, 1, 4])
    with as_on_a_device():
        cells, segments = packed_cells(trainable, ends)
        for wrong in ([0, 3, 1, 4], [1, 4], [0, 3], []):
            with pytest.raises(SignalError, match="cu_seqlens is"):
                packed_cells(trainable, torch.tensor(wrong, dtype=torch.long))
    assert segments.token_counts.tolist() == [1, 0, 2]
    assert cells.gather(torch.arange(4.0)).tolist() == [0.0, 2.0, 3.0]
