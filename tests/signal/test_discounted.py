"""Discounted sums over sequences longer than a block, against the recursion itself."""

import pytest
import torch
from mutants.edit import edited
from torch import Tensor

from trimtab.signal import advantage
from trimtab.signal.advantage import BLOCK, discounted_sum, gae
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
    return values, Segments.from_counts(torch.tensor(lengths), len(values))


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


FAULTS = [
    ("discounted_sum", "while shift < BLOCK:", "while 2 * shift < BLOCK:"),
    ("discounted_sum", "torch.arange(BLOCK, 0, -1", "torch.arange(BLOCK - 1, -1, -1"),
    ("discounted_sum", "factor * table[:, shift:]", "discount * table[:, shift:]"),
    ("discounted_sum", "torch.addcmul(table, later[:, None], reach)", "table"),
    ("_later_blocks", "remaining > shift,", "remaining >= shift,"),
    ("_later_blocks", "remaining > 1,", "remaining > 0,"),
    ("_later_blocks", "discount**BLOCK", "discount"),
    ("_later_blocks", "while shift * BLOCK < longest:", "while 2 * shift * BLOCK < longest:"),
    ("_later_blocks", "right=True", "right=False"),
]


@pytest.mark.parametrize(("function", "old", "new"), FAULTS)
def test_a_fault_shows(function: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, segments = drawn(LENGTHS)
    monkeypatch.setattr(advantage, function, edited(getattr(advantage, function), old, new))
    error = advantage.discounted_sum(values, segments, 0.999) - recursion(values, LENGTHS, 0.999)
    assert float(error.abs().max()) > 1e-6
