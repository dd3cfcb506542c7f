"""Trust regions on their limits, at an advantage of 0, and where a measure tells a small move from none."""

import pytest
import torch
from tests.golden.exact import assert_is, flags, index, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.signal import part, trust_region
from trimtab.signal.tensors import as_on_a_device

HALF, QUARTER = logp(0.5), logp(0.25)
# Four tokens that moved from 1/2 to 1/4 or back: moves -1/4, -1/4, 1/4, 1/4, exactly
LATER, EARLIER = torch.cat([QUARTER, QUARTER, HALF, HALF]), torch.cat([HALF, HALF, QUARTER, QUARTER])
FOUR = lengths(1, 1, 1, 1)


def test_a_move_of_exactly_the_limit_is_kept() -> None:
    assert float(HALF.exp() - QUARTER.exp()) == 0.25
    for by_sign in (True, False):
        keep, seen = trust_region.probability_band(
            LATER, EARLIER, tokens(1.0, -1.0, 1.0, -1.0), low=0.25, high=0.25, by_sign=by_sign
        )
        assert_is(keep, 1, 1, 1, 1)
        assert_is(seen["over_high_tokens"], 0, 0, 0, 0)
        assert_is(seen["under_low_tokens"], 0, 0, 0, 0)
    keep, seen = trust_region.total_variation(LATER, EARLIER, FOUR, limit=0.25)
    assert_is(keep, 1, 1, 1, 1)
    assert_is(seen["over_high_sequences"], 0, 0, 0, 0)


def test_advantages_are_known_by_their_sign_and_0_has_none() -> None:
    for credit, kept in (
        ((0.0, 0.0, 0.0, 0.0), (1, 1, 1, 1)), ((0.5, 0.5, 0.5, 0.5), (1, 1, 0, 0)),
        ((-0.5, -0.5, -0.5, -0.5), (0, 0, 1, 1)),
    ):  # fmt: skip
        keep, _ = trust_region.probability_band(LATER, EARLIER, tokens(*credit), low=0.2, high=0.2)
        assert_is(keep, *kept)
        # ratios 1/2 and 2
        keep, _ = trust_region.token_band_by_sign(LATER - EARLIER, tokens(*credit), band=(0.8, 1.2))
        assert_is(keep, *kept)
        # from 0.5 to 0.25: 0.5 log 2 + 0.5 log (0.5 / 0.75) = 0.144; back: 0.25 log 0.5 + 0.75 log 1.5 = 0.131
        keep, _ = trust_region.binary_kl(LATER, EARLIER, tokens(*credit), FOUR, limit=0.1)
        assert_is(keep, *kept)
        # |1/2 - 1| and |2 - 1|
        keep, _ = trust_region.outward_drift(LATER - EARLIER, tokens(*credit), FOUR, limit=0.4)
        assert_is(keep, *kept)


@pytest.mark.parametrize("band", [(1.0, 2.0), (0.5, 1.0)])
def test_a_ratio_on_a_bound_of_the_band_is_kept(band: tuple[float, float]) -> None:
    keep, seen = trust_region.token_band_by_sign(tokens(0.0, 0.0), tokens(1.0, -1.0), band=band)
    assert_is(keep, 1, 1)
    assert_is(seen["over_high_tokens"], 0, 0)
    assert_is(seen["under_low_tokens"], 0, 0)


def test_a_binary_kl_of_exactly_the_limit_is_kept() -> None:
    same = tokens(0.0)  # probability 1 and 1/2: 1 * log 2 + (0 + eps) log(eps / (0.5 + eps)) is nothing but log 2
    limit = float(trust_region._binary_kl(same, HALF, 1e-8))
    assert limit == pytest.approx(0.6931471805599453, abs=1e-15)
    for level in ("token", "sequence"):
        keep, _ = trust_region.binary_kl(HALF, same, tokens(1.0), lengths(1), limit=limit, level=level, by_sign=False)
        assert_is(keep, 1)


def test_a_divergence_of_exactly_the_limit_is_kept() -> None:
    # ratios 2 and 1: |2 - 1| = 1 and 0, with a mean of 1/2; exp |d| is 2 and 1, with a mean of 3/2
    moved, both = torch.cat([HALF - QUARTER, tokens(0.0)]), lengths(2)
    assert float(moved[0].exp()) == 2
    for measure, mean in (("ratio_distance", 0.5), ("exp_distance", 1.5)):
        assert_is(trust_region.divergence(moved, both, limit=mean, measure=measure)[0], 1, 1)
        assert_is(trust_region.divergence(moved, both, limit=2 * mean, measure=measure, total="sum")[0], 1, 1)
        assert_is(trust_region.divergence(moved, both, limit=0.99 * mean, measure=measure)[0], 0, 0)
    keep, seen = trust_region.outward_drift(moved, tokens(1.0, 1.0), both, limit=0.5)
    assert_is(keep, 1, 1)
    assert_is(seen["drifted_sequences"], 0)


def test_policies_that_agree_have_not_drifted() -> None:
    for measure in ("k2", "k3", "ratio_distance"):
        keep, seen = trust_region.divergence(tokens(0.0, 0.0), lengths(1, 1, 0), limit=1e-9, measure=measure)
        assert_is(keep, 1, 1)
        assert_is(seen["over_high_sequences"], 0, 0, 0)
    _, seen = trust_region.outward_drift(tokens(0.0, 0.0), tokens(1.0, -1.0), lengths(1, 1, 0), limit=1e-9)
    assert_is(seen["drifted_sequences"], 0, 0, 0)
    # beside a token of ratio 2, one that has not moved stays
    keep, _ = trust_region.outward_drift(logp(2.0, 1.0), tokens(1.0, 1.0), lengths(2), limit=0.4)
    assert_is(keep, 0, 1)


def test_a_log_prob_far_above_0_is_still_a_probability_of_1() -> None:
    # 1 - 0.9 = 0.1 is inside 0.2; e^0.5 - 0.9 is not
    keep, _ = trust_region.probability_band(tokens(0.5), logp(0.9), tokens(1.0), low=0.2, high=0.2)
    assert_is(keep, 1)
    # coins that show it always: no distance, in either direction
    for ends in ((tokens(0.5), tokens(0.0)), (tokens(0.0), tokens(0.5))):
        for direction in ("earlier_to_later", "later_to_earlier"):
            keep, _ = trust_region.binary_kl(
                *ends, tokens(1.0), lengths(1), limit=1e-12, direction=direction, by_sign=False
            )
            assert_is(keep, 1)
    # from a coin that shows it always to 1/2 it is log 2 = 0.69, back more
    for ends in ((HALF, tokens(0.5)), (tokens(0.5), HALF)):
        for direction in ("earlier_to_later", "later_to_earlier"):
            keep, _ = trust_region.binary_kl(
                *ends, tokens(1.0), lengths(1), limit=0.6, direction=direction, by_sign=False
            )
            assert_is(keep, 0)


def test_a_mean_over_a_sequence_goes_without_the_sign() -> None:
    assert part("keep.binary_kl", limit=0.1, level="sequence", by_sign=False)
    assert part("keep.binary_kl", limit=0.1, level="token", by_sign=True)


def test_versions_are_compared_on_a_device_as_elsewhere() -> None:
    # sequence 0 was resumed at 4, sequence 1 at 5; the empty one has no newest
    version, segments = index(3, 4, 3, 5, 5), lengths(2, 0, 3)
    here = [trust_region.recent_version(version, segments, newest=newest)[0] for newest in ("batch", "sequence")]
    with as_on_a_device():
        there = [trust_region.recent_version(version, segments, newest=newest)[0] for newest in ("batch", "sequence")]
    for found in (here, there):
        assert_is(found[0], 0, 0, 0, 1, 1)
        assert_is(found[1], 0, 1, 0, 1, 1)


def test_of_no_token_none_is_left_out() -> None:
    keep, seen = trust_region.high_entropy(tokens())
    assert keep.dtype == seen["under_low_tokens"].dtype == torch.bool
    assert keep.shape == seen["under_low_tokens"].shape == (0,)
    keep, seen = trust_region.recent_version(index(), lengths(0))
    assert keep.dtype == seen["under_low_tokens"].dtype == torch.bool
    assert flags().equal(keep)
