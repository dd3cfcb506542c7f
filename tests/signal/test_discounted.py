"""Discounted sums over sequences longer than a block, against the recursion itself."""

import pytest
import torch
from mutants.edit import edited
from torch import Tensor

from trimtab.signal import advantage, discount
from trimtab.signal.advantage import gae
from trimtab.signal.discount import BLOCK, blocks_of, discounted_sum, discounted_sum_each
from trimtab.signal.layout import Segments

LENGTHS = [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 0, 2 * BLOCK, 5 * BLOCK + 3, 1, 40 * BLOCK, 7, 0]


def recursion(values: Tensor, lengths: list[int], discount: float) -> Tensor:
    out = values.clone()
    for piece in out.split(lengths):
        for place in range(len(piece) - 2, -1, -1):
            piece[place] += discount * piece[place + 1]
    return out


def drawn(lengths: list[int]) -> tuple[Tensor, Segments]:
    torch.manual_seed(0)
    values = torch.randn(sum(lengths), dtype=torch.float64)
    return values, Segments.from_counts(torch.tensor(lengths, dtype=torch.long), len(values))


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95, 1.0])
def test_it_is_the_recursion(discount: float) -> None:
    values, segments = drawn(LENGTHS)
    expected = recursion(values, LENGTHS, discount)
    torch.testing.assert_close(discounted_sum(values, segments, discount), expected, rtol=1e-12, atol=1e-12)


def test_a_sequence_has_the_same_bits_whatever_stands_beside_it() -> None:
    values, segments = drawn(LENGTHS)
    together = discounted_sum(values, segments, 0.97).split(LENGTHS)
    for piece, own in zip(values.split(LENGTHS), together, strict=True):
        alone = Segments.from_counts(torch.tensor([len(piece)]), len(piece))
        assert torch.equal(discounted_sum(piece, alone, 0.97), own)


def test_bits_do_not_depend_on_how_many_sequences_there_are() -> None:
    """A vector's last numbers go through another loop than the rest: it must round alike."""
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.float64):
        piece = torch.randn(3 * BLOCK + 5, dtype=dtype)
        found = [
            discounted_sum(
                piece.repeat(count), Segments.from_counts(torch.full((count,), len(piece)), count * len(piece)), 0.97
            )
            for count in range(1, 40)
        ]
        assert all(
            torch.equal(one.reshape(-1, len(piece)), found[0].expand(count + 1, -1)) for count, one in enumerate(found)
        )


def test_a_number_that_is_not_finite_stays_in_its_sequence() -> None:
    values, segments = drawn(LENGTHS)
    broken = values.clone()
    broken[sum(LENGTHS[:8]) + 2 * BLOCK] = torch.nan
    pieces = discounted_sum(broken, segments, 0.9).split(LENGTHS)
    assert [bool(piece.isnan().any()) for piece in pieces] == [place == 8 for place in range(len(LENGTHS))]
    assert bool(pieces[8][: 2 * BLOCK + 1].isnan().all())
    assert not bool(pieces[8][2 * BLOCK + 1 :].isnan().any())


def test_it_carries_a_gradient() -> None:
    values, segments = drawn([3, BLOCK + 2])
    assert torch.autograd.gradcheck(lambda v: discounted_sum(v, segments, 0.9), (values.requires_grad_(),))


def test_gae_of_long_sequences_is_its_recursion() -> None:
    values, segments = drawn(LENGTHS)
    rewards, ended = values.roll(1), torch.ones(len(LENGTHS), dtype=torch.bool)
    found, returns = gae(
        rewards, values, torch.zeros(len(LENGTHS), dtype=torch.float64), ended, segments, gamma=0.9, lam=0.8
    )
    after = torch.cat([torch.cat([piece[1:], piece.new_zeros(min(1, len(piece)))]) for piece in values.split(LENGTHS)])
    expected = recursion(rewards + 0.9 * after - values, LENGTHS, 0.72)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(returns, expected + values, rtol=1e-12, atol=1e-12)


def test_blocks_are_cut_once_and_forgotten_with_their_segments() -> None:
    _, segments = drawn(LENGTHS)
    before = len(discount._known)
    assert blocks_of(segments) is blocks_of(segments)
    assert len(discount._known) == before + 1
    del segments
    assert len(discount._known) == before


def test_the_worked_example_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discount, "BLOCK", 2)
    found = discount._cut(Segments.from_counts(torch.tensor([3, 1]), 4))
    assert found.longest == 3
    assert found.place.tolist() == [0, found.width, 1, 2]
    assert found.segments.token_counts.tolist() == [2, 1]
    assert found.is_last.tolist() == [False, True, True]


def test_rows_of_the_table_are_an_odd_number_of_cache_lines_and_hold_every_block() -> None:
    for count in range(70):
        width = discount._cut(Segments.from_counts(torch.ones(count, dtype=torch.long), count)).width
        assert 0 <= width - count < 32
        assert width % 32 == 16  # 16 float32 numbers are 64 bytes, one line


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [1], [0, 1, 0, 1]])
def test_sequences_of_one_token_or_none_keep_their_values(lengths: list[int]) -> None:
    values, segments = drawn(lengths)
    found = blocks_of(segments)
    assert (found.longest, found.segments.num_tokens) == (max(lengths, default=0), len(values))
    assert found.is_last.tolist() == [True] * len(values)
    each = torch.full((len(lengths),), 0.5, dtype=torch.float64)
    for same in (discounted_sum(values, segments, 0.5), discounted_sum_each(values, segments, each)):
        assert torch.equal(same, values)
        assert not len(values) or same.data_ptr() != values.data_ptr()


def test_a_full_block_is_one_block() -> None:
    segments = Segments.from_counts(torch.tensor([discount.BLOCK, 0, 2 * discount.BLOCK, 1]), 3 * discount.BLOCK + 1)
    assert discount.blocks_of(segments).segments.token_counts.tolist() == [1, 0, 2, 1]


def test_the_next_value_of_a_last_token_is_the_boundary_whoever_is_empty_beside_it() -> None:
    value = torch.tensor([1.0, 2.0, 3.0, 4.0])
    segments = Segments.from_counts(torch.tensor([0, 2, 0, 2, 0]), 4)
    found = advantage._next_value(value, torch.tensor([90.0, 91.0, 92.0, 93.0, 94.0]), segments)
    assert found.tolist() == [2.0, 91.0, 4.0, 93.0]


FAULTS = [
    ("discounted_sum", "range(lanes - 2, -1, -1)", "range(lanes - 2, 0, -1)"),
    ("discounted_sum", "range(lanes - 2, -1, -1)", "range(lanes - 3, -1, -1)"),
    ("discounted_sum", "torch.arange(BLOCK, 0, -1", "torch.arange(BLOCK - 1, -1, -1"),
    ("discounted_sum", "alpha=discount)", "alpha=discount**2)"),
    ("discounted_sum", "rows[lane + 1], alpha", "table[lane + 1], alpha"),
    ("discounted_sum", "blocks.longest > BLOCK:", "blocks.longest > 2 * BLOCK:"),
    ("discounted_sum", "discount**BLOCK)", "discount)"),
    ("discounted_sum", "min(BLOCK, blocks.longest)", "BLOCK // 2"),
    ("_later_blocks", "total.roll(-1)", "total"),
    ("_later_blocks", "total.roll(-1)", "total.roll(1)"),
    ("_later_blocks", "torch.where(blocks.is_last, torch.zeros_like(total), total.roll(-1))", "total.roll(-1)"),
    ("_cut", "!= sequence[:-1]", "> sequence[:-1] + 1"),
    ("_cut", "counts + BLOCK - 1", "counts"),
    ("_cut", "owners.first_token * BLOCK - segments.first_token", "owners.first_token * BLOCK"),
    ("_cut", "* width + spot", "* (width - 1) + spot"),
    ("_cut", "(16 - count) % 32", "-1"),
]


@pytest.mark.parametrize(("function", "old", "new"), FAULTS)
def test_a_fault_shows(function: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, segments = drawn(LENGTHS)
    monkeypatch.setattr(discount, function, edited(getattr(discount, function), old, new))
    try:
        error = discount.discounted_sum(values, segments, 0.999) - recursion(values, LENGTHS, 0.999)
    except (RuntimeError, IndexError):
        return  # a place outside the table is an error aloud
    assert float(error.abs().max()) > 1e-6


def test_a_discount_for_each_sequence_is_the_recursion_with_that_discount() -> None:
    values, segments = drawn(LENGTHS)
    each = torch.linspace(0.0, 1.0, len(LENGTHS), dtype=torch.float64)
    expected = torch.cat(
        [recursion(piece, [len(piece)], float(d)) for piece, d in zip(values.split(LENGTHS), each, strict=True)]
    )
    torch.testing.assert_close(discounted_sum_each(values, segments, each), expected, rtol=1e-12, atol=1e-12)
    same = discounted_sum_each(values, segments, torch.full_like(each, 0.97))
    torch.testing.assert_close(same, discounted_sum(values, segments, 0.97), rtol=1e-12, atol=1e-12)


EACH_FAULTS = [
    ("range(lanes - 2, -1, -1)", "range(lanes - 2, 0, -1)"),
    ("torch.arange(BLOCK, 0, -1", "torch.arange(BLOCK - 1, -1, -1"),
    ("table[lane + 1], each", "table[lane + 1], each * each"),
    ("discount**BLOCK)", "discount)"),
    ("torch.where(blocks.is_last, torch.zeros_like(total), total.roll(-1))", "total.roll(-1)"),
]


@pytest.mark.parametrize(("old", "new"), EACH_FAULTS)
def test_a_fault_of_the_sum_with_many_discounts_shows(old: str, new: str) -> None:
    values, segments = drawn(LENGTHS)
    each = torch.full((len(LENGTHS),), 0.99, dtype=torch.float64)
    found = edited(discounted_sum_each, old, new)(values, segments, each)
    assert float((found - recursion(values, LENGTHS, 0.99)).abs().max()) > 1e-6
