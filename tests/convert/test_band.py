"""A limit on k2 or k3 of one token is a band of its ratio."""

from math import exp, inf, log

import pytest

from trimtab.convert.band import inverse, ratio_band


@pytest.mark.parametrize("limit", [1e-6, 0.01, 0.5, 30.0, 1e5])
def test_at_both_ends_the_divergence_is_the_limit(limit: float) -> None:
    for end in ratio_band("k2", limit)[: 2 if limit < 1e5 else 0]:
        assert log(end) ** 2 / 2 == pytest.approx(limit, rel=1e-9)
    low, high = ratio_band("k3", limit)
    assert exp(log(high)) - log(high) - 1 == pytest.approx(limit, rel=1e-5)
    assert low < 1 < high
    assert limit > 600 or low - log(low) - 1 == pytest.approx(limit, rel=1e-5)


def test_the_other_ratio() -> None:
    assert inverse((0.5, 4.0)) == (0.25, 2.0)
    assert inverse((0.0, 2.0)) == (0.5, inf)
