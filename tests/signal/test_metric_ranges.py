"""Each metric's range, derived from what its name says."""

import math

import pytest

from trimtab.signal.metric_names import METRICS, WATCH, declared

INF = math.inf
ANY_SIGN = {
    "reward/episode_mean", "advantage/token_mean", "kl_ref/token_mean", "k1_*/token_mean", "loss/*",
}  # fmt: skip
FROM_MINUS_ONE = {
    "chi2_engine/token_mean": INF,
    "chi2_engine/sequence_mean": INF,
    "probability_engine/token_correlation": 1.0,
}
SHARES = ("_fraction", "_tokens", "_sequences")
COUNTS = {"effective_batch/tokens", "effective_batch/sequences"}


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_a_metric_has_the_range_of_its_kind(spec: object) -> None:
    """A share lies in [0, 1]; a mean of something signed anywhere; everything else is at least 0."""
    name = spec.name
    if name in FROM_MINUS_ONE:  # a square less 1, and a correlation
        assert (spec.low, spec.high) == (-1.0, FROM_MINUS_ONE[name])
        return
    if name == "value_old/explained_variance":  # a critic can be worse than the mean
        assert (spec.low, spec.high) == (-INF, 1.0)
        return
    share = (name.endswith(SHARES) or name.startswith("ess_")) and name not in COUNTS
    assert (spec.low, spec.high) == ((-INF, INF) if name in ANY_SIGN else (0.0, 1.0) if share else (0.0, INF))


def test_what_is_worth_watching_is_declared() -> None:
    assert len(WATCH) == 10
    assert all(any(spec.name == name for spec in METRICS) or declared(name) for name in WATCH)
    assert declared("nothing/like_it") is None
