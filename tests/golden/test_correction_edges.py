"""Corrections at their bounds: a ratio exactly on one is inside."""

from typing import Any

import pytest
import torch
from tests.golden.exact import assert_is, index, lengths, tokens

from trimtab.signal import correction

SEGMENTS = lengths(2, 1)
TURNS = index(0, 0, 0)
BANDED: dict[str, Any] = {
    "truncated": lambda ratio, band: correction.truncated(ratio, SEGMENTS, band=band),
    "truncated by sequence": lambda ratio, band: correction.truncated(ratio, SEGMENTS, level="sequence", band=band),
    "truncated by mean": lambda ratio, band: correction.truncated(ratio, SEGMENTS, level="geometric", band=band),
    "truncated_by_turn": lambda ratio, band: correction.truncated_by_turn(ratio, SEGMENTS, TURNS, band=band),
    "token_band": lambda ratio, band: correction.token_band(ratio, band=band),
    "product_band": lambda ratio, band: correction.product_band(ratio, SEGMENTS, band=band),
    "geometric_band": lambda ratio, band: correction.geometric_band(ratio, SEGMENTS, band=band),
    "veto": lambda ratio, band: correction.veto(ratio, SEGMENTS, low=band[0], high=band[1]),
}


@pytest.mark.parametrize("name", BANDED)
@pytest.mark.parametrize("band", [(0.5, 1.0), (1.0, 1.5)])
def test_a_ratio_on_a_bound_is_inside(name: str, band: tuple[float, float]) -> None:
    # every log-ratio is 0, so every ratio, product and mean is exactly 1
    found, seen = BANDED[name](tokens(0.0, 0.0, 0.0), band)
    assert_is(found, 1, 1, 1)
    assert not any(bool(flags.any()) for flags in seen.values())


@pytest.mark.parametrize("name", [one for one in BANDED if one.startswith("truncated")])
def test_an_exponent_of_20_is_still_itself(name: str) -> None:
    # alone in its sequence and in its turn, so that every level has the same exponent
    for exponent, is_bounded in ((20.0, 0), (-20.0, 0), (20.5, 1), (-20.5, 1)):
        _, seen = BANDED[name](tokens(0.0, 0.0, exponent), (0.0, 2.0))
        assert_is(seen["exponent_bounded_tokens"], 0, 0, is_bounded)


@pytest.mark.parametrize("name", BANDED)
def test_no_correction_sends_a_gradient_to_its_ratio(name: str) -> None:
    found, _ = BANDED[name](tokens(0.1, 0.0, -0.1).requires_grad_(), (0.5, 1.5))
    assert not found.requires_grad


def test_where_no_sequence_trains_importances_are_not_divided() -> None:
    nobody = torch.zeros(2, dtype=torch.bool)
    for level in ("token", "sequence", "geometric"):
        found, _ = correction.self_normalised(tokens(0.0, 0.0, 5.0), SEGMENTS, nobody, level=level)
        assert_is(found, 1, 1, 2)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_who_does_not_train_enters_no_mean_even_if_it_is_not_a_number(level: Any) -> None:
    # the second sequence trains: its one ratio is 2, and so is the mean
    trains = torch.tensor([False, True])
    for there in (0.5, torch.nan):
        found, _ = correction.self_normalised(tokens(there, 0.0, 5.0), SEGMENTS, trains, level=level)
        assert_is(found[2:], 1)
