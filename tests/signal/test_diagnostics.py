"""What is measured of log-ratios and decisions, against numbers counted by hand."""

import math
from contextlib import nullcontext

import pytest
import torch

from trimtab.signal import diagnostics
from trimtab.signal.diagnostics import Population, by_sign, kept_share, observe
from trimtab.signal.fields import Field, everything
from trimtab.signal.layout import Segments
from trimtab.signal.metrics import Metrics
from trimtab.signal.ratio import Ratio
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import as_on_a_device

SEGMENTS = Segments.from_counts(torch.tensor([2, 0, 1]), 3)


def drift(name: str, logratio: torch.Tensor, segments: Segments) -> Metrics:
    return diagnostics.drift({name: Ratio(logratio, segments)}, segments)


def among(tokens: torch.Tensor, advantage: torch.Tensor, segments: Segments = SEGMENTS) -> Population:
    return Population(Field(tokens, segments), Field(advantage, segments))


def numbers_of(tally: Tally) -> dict[str, float]:
    return Metrics(tally.entries(), {}).numbers()


def test_a_sequence_without_tokens_is_in_no_drift_metric_and_one_with_a_single_token_is() -> None:
    logratio = torch.tensor([0.1, 0.2, math.log(3.0)], dtype=torch.float64)
    numbers = drift("engine", logratio, SEGMENTS).numbers()
    first = math.exp(0.3)
    assert numbers["ratio_engine/sequence_mean"] == pytest.approx((first + 3) / 2)
    assert numbers["ratio_engine/sequence_std"] == pytest.approx((3 - first) / 2)
    assert (numbers["ratio_engine/sequence_min"], numbers["ratio_engine/sequence_max"]) == pytest.approx((first, 3.0))
    assert numbers["ess_engine/sequence"] == pytest.approx((first + 3) ** 2 / (2 * (first**2 + 9)))


def test_the_largest_gap_of_a_token_is_a_size_without_a_sign() -> None:
    numbers = drift("engine", torch.tensor([0.1, -0.25, 0.2], dtype=torch.float64), SEGMENTS).numbers()
    assert numbers["logratio_engine/token_abs_max"] == 0.25
    assert numbers["logratio_engine/token_abs_mean"] == pytest.approx(0.55 / 3)


def test_drift_of_float32_log_probs_is_computed_in_float64() -> None:
    """In float32 the tiny numbers would vanish beside the large one before they are summed."""
    logratio = torch.tensor([8.0, 1e-8, 1e-8, -8.0])
    segments = Segments.from_counts(torch.tensor([4]), 4)
    numbers = drift("engine", logratio, segments).numbers()
    assert numbers["ratio_engine/sequence_mean"] == pytest.approx(math.exp(2e-8), abs=1e-14)
    assert numbers["ratio_engine/sequence_mean"] > 1.0


def test_flags_by_the_sign_of_the_advantage_are_fractions_of_the_given_tokens_of_that_sign() -> None:
    advantage = torch.tensor([1.0, 2.0, -1.0, 0.0, -3.0, 5.0])
    tokens = torch.tensor([True, True, True, True, True, False])
    segments = Segments.from_counts(torch.tensor([6]), 6)
    flags = Field(torch.tensor([True, False, True, True, False, True]), segments)
    tally, positive = Tally(segments), Tally(segments)
    by_sign(tally, "loss", "clipped", flags, among(tokens, advantage, segments))
    assert numbers_of(tally) == {"loss/clipped_positive_tokens": 0.5, "loss/clipped_negative_tokens": 0.5}
    by_sign(positive, "loss", "clipped", flags, among(tokens, advantage.abs(), segments))
    assert numbers_of(positive) == {"loss/clipped_positive_tokens": 0.5, "loss/clipped_negative_tokens": 0.0}


def test_an_observation_is_a_fraction_of_tokens_or_of_the_sequences_that_hold_them() -> None:
    seen = {
        "over_high_tokens": Field(torch.tensor([True, False, True]), SEGMENTS),
        "drifted_sequences": torch.tensor([True, True, False]),
    }
    tally = Tally(SEGMENTS)
    observe(tally, "keep", seen, among(torch.tensor([True, True, False]), torch.ones(3)))
    assert numbers_of(tally) == {"keep/over_high_tokens": 0.5, "keep/drifted_sequences": 1.0}


def test_the_effective_batch_is_what_is_kept_and_has_an_advantage() -> None:
    for advantage, tokens in (((1.0, 1.0, 1.0), 1.0), ((0.0, 1.0, 1.0), 0.0)):
        tally, worth = Tally(SEGMENTS), torch.tensor(advantage)
        kept, trains = torch.tensor([True, False, False]), torch.tensor([True, False, True])
        kept_share(tally, among(kept, worth), among(trains, worth))
        numbers = numbers_of(tally)
        assert numbers["effective_batch/tokens"] == numbers["effective_batch/sequences"] == tokens
        assert numbers["effective_batch/token_fraction"] == tokens / 2
        assert numbers["kept/token_fraction"] == numbers["kept/sequence_fraction"] == 0.5


def test_flags_per_sequence_are_counted_like_the_same_flags_per_token() -> None:
    """Three sequences of 2, 0 and 1 tokens; whatever is asked of a shared field equals what is asked of its tokens."""
    shared = Field(torch.tensor([True, True, False]), SEGMENTS, True)
    value = Field(torch.tensor([0.5, 7.0, -2.0]), SEGMENTS, True)
    found: list[dict[str, float]] = []
    for flags, values in ((shared, value), (Field(shared.tokens, SEGMENTS), Field(value.tokens, SEGMENTS))):
        tally = Tally(SEGMENTS)
        tally.share("share", flags)
        tally.share("share among", flags, ~flags)
        tally.share_of_sequences("sequences", flags.sequences)
        tally.mean("mean", values)
        tally.mean("mean among", values, flags)
        tally.sum("sum", values)
        tally.sum_of_count("count", flags)
        tally.share("everything", everything(SEGMENTS), flags)
        found.append(numbers_of(tally))
    assert found[0] == found[1]
    assert found[0] == {
        "share": pytest.approx(2 / 3), "share among": 0.0, "sequences": pytest.approx(1 / 3),
        "mean": pytest.approx(-1 / 3), "mean among": 0.5, "sum": -1.0, "count": 2.0, "everything": 1.0,
    }  # fmt: skip


def test_an_infinite_log_ratio_is_bounded_like_any_other_and_of_nothing_nothing_is_said() -> None:
    numbers = drift("engine", torch.tensor([0.1, -torch.inf, 0.2], dtype=torch.float64), SEGMENTS).numbers()
    assert numbers["ratio_engine/token_min"] == pytest.approx(math.exp(-20))
    assert numbers["ratio_engine/token_max"] == pytest.approx(math.exp(0.2))
    empty = Segments.from_counts(torch.tensor([0, 0]), 0)
    assert drift("engine", torch.zeros(0), empty).numbers() == {}


def test_parts_without_tokens_change_no_drift_metric() -> None:
    whole = drift("engine", torch.tensor([0.1, -0.5, 0.2], dtype=torch.float64), SEGMENTS)
    for counts in ([], [0], [0, 0]):
        nothing = drift("engine", torch.zeros(0), Segments.from_counts(torch.tensor(counts, dtype=torch.long), 0))
        for merged in (nothing.merge(whole), whole.merge(nothing)):
            assert merged.numbers() == pytest.approx(whole.numbers(), rel=1e-12)
        assert nothing.merge(nothing).numbers() == {}


def test_ratios_are_bounded_from_20_on() -> None:
    for bound in (20.0, 21.0):
        numbers = drift("engine", torch.tensor([-bound, 0.0, bound], dtype=torch.float64), SEGMENTS).numbers()
        assert numbers["ratio_engine/token_min"] == pytest.approx(math.exp(-20), rel=1e-15)
        assert numbers["ratio_engine/token_max"] == pytest.approx(math.exp(20), rel=1e-15)


def test_the_spread_of_ratios_that_are_far_from_one_and_close_together_is_exact() -> None:
    segments = Segments.from_counts(torch.tensor([1000]), 1000)
    same = torch.full((1000,), 5.0, dtype=torch.float64)
    assert drift("engine", same, segments).numbers()["ratio_engine/token_std"] == pytest.approx(0.0, abs=1e-12)
    apart = torch.tensor([1e-9, -1e-9], dtype=torch.float64).repeat(500)
    numbers = drift("engine", apart, segments).numbers()
    assert numbers["ratio_engine/token_std"] == pytest.approx(1e-9, rel=1e-6)


def test_a_ratio_without_tokens_is_empty_on_a_device_too() -> None:
    for path in (nullcontext(), as_on_a_device()):
        with path:
            empty = Ratio(torch.empty(0), Segments.from_counts(torch.zeros(1, dtype=torch.long), 0))
            assert empty.value().shape == (0,)
            assert empty.sums.far == empty.sums.moved == empty.sums.around == 0.0
            assert empty.inside is None
