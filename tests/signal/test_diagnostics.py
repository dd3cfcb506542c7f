"""What is measured of log-ratios and decisions, against numbers counted by hand."""

import math

import pytest
import torch

from trimtab.signal.diagnostics import by_sign, drift, kept_share, observed
from trimtab.signal.layout import Segments
from trimtab.signal.metrics import Metrics

SEGMENTS = Segments.from_counts(torch.tensor([2, 0, 1]), 3)


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
    assert numbers["ratio_engine/sequence_mean"] == pytest.approx(math.exp(logratio.double().sum().item()), abs=1e-15)
    assert numbers["ratio_engine/sequence_mean"] > 1.0


def test_flags_by_the_sign_of_the_advantage_are_fractions_of_the_given_tokens_of_that_sign() -> None:
    flags = torch.tensor([True, False, True, True, False, True])
    advantage = torch.tensor([1.0, 2.0, -1.0, 0.0, -3.0, 5.0])
    tokens = torch.tensor([True, True, True, True, True, False])
    numbers = Metrics(by_sign("loss", "clipped", flags, advantage, tokens), {}).numbers()
    assert numbers == {"loss/clipped_positive_tokens": 0.5, "loss/clipped_negative_tokens": 0.5}
    only_positive = Metrics(by_sign("loss", "clipped", flags, advantage.abs(), tokens), {}).numbers()
    assert only_positive == {"loss/clipped_positive_tokens": 0.5, "loss/clipped_negative_tokens": 0.0}


def test_an_observation_is_a_fraction_of_tokens_or_of_the_sequences_that_hold_them() -> None:
    seen = {
        "over_high_tokens": torch.tensor([True, False, True]),
        "drifted_sequences": torch.tensor([True, True, False]),
    }
    numbers = Metrics(observed("keep", seen, torch.tensor([True, True, False]), SEGMENTS), {}).numbers()
    assert numbers == {"keep/over_high_tokens": 0.5, "keep/drifted_sequences": 1.0}


def test_the_effective_batch_is_what_trains_is_kept_and_has_an_advantage() -> None:
    keep, trains = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    for advantage, tokens in (((1.0, 1.0, 1.0), 1.0), ((0.0, 1.0, 1.0), 0.0)):
        numbers = Metrics(kept_share(keep, torch.tensor(advantage), trains, SEGMENTS), {}).numbers()
        assert numbers["effective_batch/tokens"] == numbers["effective_batch/sequences"] == tokens
        assert numbers["effective_batch/token_fraction"] == tokens / 2
        assert numbers["kept/token_fraction"] == numbers["kept/sequence_fraction"] == 0.5
