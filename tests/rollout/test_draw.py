import math

import pytest
import torch

from trimtab.rollout.draw import choose, drawn, kept, uniforms
from trimtab.rollout.engine import Sampling

BELOW_ONE = 1 - 2.0**-53
"""The largest number that `uniforms` can give."""


def test_a_number_depends_on_its_seed_and_place_alone() -> None:
    table = uniforms([3, 5, 2**62], 40)
    assert torch.equal(uniforms([5], 7)[0], table[1, :7])
    assert torch.equal(uniforms([2**62, 3], 40)[0], table[2])
    assert len(table.unique()) == table.numel()
    assert uniforms([2**62, 0], 3).dtype == torch.float64


def test_numbers_are_uniform_along_a_stream_and_across_streams() -> None:
    for numbers in (uniforms([11], 100_000)[0], uniforms(range(100_000), 1)[:, 0]):
        assert float(numbers.min()) >= 0
        assert float(numbers.max()) < 1
        counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
        deviation = float(((counts - 5000) ** 2 / 5000).sum())
        assert deviation < 43.8  # chi-square with 19 degrees of freedom, 0.999
    first, second = uniforms(range(10_000), 2).unbind(1)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.04  # four standard deviations


def test_the_inverse_of_the_cumulative_sum_by_hand() -> None:
    logp = torch.tensor([0.25, 0.5, 0.25]).log().expand(6, 3)
    uniform = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, BELOW_ONE], dtype=torch.float64)
    assert drawn(logp, uniform).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, BELOW_ONE])
def test_a_token_without_probability_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf], [-math.inf, -math.inf, 3.0, -1e4, -math.inf]])
    number = torch.full((2,), uniform, dtype=torch.float64)
    chosen, logp, _ = choose(logits, Sampling(max_new_tokens=1, temperature=0.7), number)
    assert int(chosen[0]) in (1, 3)
    assert int(chosen[1]) == 2
    assert bool(logp.isfinite().all())


def test_a_large_vocabulary_is_reached_to_its_last_token() -> None:
    logp = torch.log_softmax(torch.zeros(1, 200_000), -1)
    assert int(drawn(logp, torch.tensor([BELOW_ONE], dtype=torch.float64))) == 199_999
    assert int(drawn(logp, torch.tensor([0.0], dtype=torch.float64))) == 0


def test_top_k_and_top_p_by_hand() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()

    def ids(top_k: int, top_p: float) -> list[int]:
        return kept(logits, top_k=top_k, top_p=top_p)[0].nonzero()[:, 0].tolist()

    assert ids(0, 0.4) == [1]  # the first alone holds 0.4
    assert ids(0, 0.41) == [1, 3]
    assert ids(0, 0.95) == [0, 1, 2, 3]
    assert ids(2, 1.0) == [1, 3]
    assert ids(2, 0.5) == [1]  # 0.4 of 0.7 is already more than half
    assert ids(9, 1.0) == [0, 1, 2, 3]
    assert ids(0, 1e-9) == [1]
    even = kept(torch.zeros(1, 4), top_k=0, top_p=0.5)
    assert even[0].tolist() == [True, True, False, False]  # exactly half is enough


def test_of_equal_tokens_the_lower_id_is_kept() -> None:
    assert kept(torch.zeros(1, 5), top_k=2, top_p=1.0)[0].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("top_k", [0, 3])
def test_drawing_in_portions_changes_no_bit(monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    logits = torch.randn(11, 20, generator=torch.Generator().manual_seed(0))
    how, numbers = Sampling(max_new_tokens=1, temperature=0.9, top_k=top_k), uniforms(range(11), 1)[:, 0]
    whole = choose(logits, how, numbers)
    monkeypatch.setattr("trimtab.rollout.draw.CHUNK_NUMBERS", 65)
    parts = choose(logits, how, numbers)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])
    assert (whole[2] is None) == (parts[2] is None) == (top_k == 0)
