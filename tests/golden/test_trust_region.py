"""Trust regions by hand: probabilities of the sampled token before and after, in sequences of 2 and 3 tokens."""

from math import inf, log, nan

import pytest
import torch
from tests.golden.exact import assert_is, flags, index, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.errors import SignalError
from trimtab.signal import Recipe, SignalBatch, Stage, decide, part, prepare, token_loss, trust_region
from trimtab.signal.tensors import as_on_a_device

# moves +0.3, -0.3, +0.1 | -0.1, 0.3 at advantages of both signs and of none
EARLIER = logp(0.5, 0.5, 0.5, 0.5, 0.5)
LATER = logp(0.8, 0.2, 0.6, 0.4, 0.8)
LENGTHS = lengths(2, 3)


def test_keep_probability_band() -> None:
    # by sign, 0.2 each way: +0.3 at A > 0 and -0.3 at A < 0 go; +0.3 at A < 0 and at A = 0 stays
    keep, seen = trust_region.probability_band(LATER, EARLIER, tokens(1.0, -1.0, 1.0, -1.0, 0.0), low=0.2, high=0.2)
    assert_is(keep, 0, 0, 1, 1, 1)
    assert_is(seen["over_high_tokens"], 1, 0, 0, 0, 1)
    assert_is(seen["under_low_tokens"], 0, 1, 0, 0, 0)
    keep, _ = trust_region.probability_band(LATER, EARLIER, tokens(-1.0, 1.0, 1.0, -1.0, -1.0))
    assert_is(keep, 1, 1, 1, 1, 1)
    # bounds of their own: 0.05 below catches -0.1 at A < 0, 0.35 above catches nothing
    keep, _ = trust_region.probability_band(LATER, EARLIER, tokens(1.0, 1.0, 1.0, -1.0, 1.0), low=0.05, high=0.35)
    assert_is(keep, 1, 1, 1, 0, 1)
    # without the sign whatever moved too far goes, also at A = 0
    keep, _ = trust_region.probability_band(LATER, EARLIER, tokens(-1.0, 1.0, 1.0, -1.0, 0.0), by_sign=False)
    assert_is(keep, 0, 0, 1, 1, 0)


def test_keep_token_band_by_sign() -> None:
    # ratios 2, 2, 1/2, 1/2, 1.25 in the band (0.75, 1.5): out goes 2 at A > 0 and 1/2 at A < 0
    ratios = logp(2.0, 2.0, 0.5, 0.5, 1.25)
    keep, seen = trust_region.token_band_by_sign(ratios, tokens(1.0, -1.0, 1.0, -1.0, 1.0), band=(0.75, 1.5))
    assert_is(keep, 0, 1, 1, 0, 1)
    assert_is(seen["over_high_tokens"], 1, 1, 0, 0, 0)
    assert_is(seen["under_low_tokens"], 0, 0, 1, 1, 0)
    keep, _ = trust_region.token_band_by_sign(ratios, tokens(0.0, 0.0, 0.0, 0.0, 0.0), band=(0.75, 1.5))
    assert_is(keep, 1, 1, 1, 1, 1)


def test_a_log_prob_above_0_by_rounding_is_a_probability_of_1() -> None:
    # 1.0001 - 0.9999 would be 2e-4 above; as probabilities 1 - 0.9999 = 1e-4
    keep, _ = trust_region.probability_band(tokens(1e-4), logp(0.9999), tokens(1.0), low=1.0, high=1.5e-4)
    assert_is(keep, 1)
    # from 0.5 to 1, whatever the rounding: 0.5 log(0.25 / 1e-8) = 8.5; from 1 to 0.5 log 2 = 0.69; from 1 to 1 nothing
    for above in (0.0, 1e-4):
        for later, earlier, limit, kept in (
            (above, log(0.5), 8.0, 0),
            (log(0.5), above, 0.6, 0),
            (above, above, 0.1, 1),
        ):
            ends = tokens(later), tokens(earlier)
            assert_is(trust_region.binary_kl(*ends, tokens(1.0), lengths(1), limit=limit, by_sign=False)[0], kept)


def test_keep_binary_kl() -> None:
    # from coin 0.5 to coin 0.8: 0.5 log(0.5/0.8) + 0.5 log(0.5/0.2) = 0.2231;  back: 0.8 log 1.6 + 0.2 log 0.4 = 0.1927
    # from 0.5 to 0.6 (0.4): 0.5 log(0.5/0.6) + 0.5 log(0.5/0.4) = 0.0204;  back 0.0201
    credit = tokens(1.0, 1.0, -1.0, -1.0, 1.0)
    keep, seen = trust_region.binary_kl(LATER, EARLIER, credit, LENGTHS, limit=0.05)
    assert_is(keep, 0, 1, 1, 1, 0)  # token 1 fell at A > 0: not where its advantage pulls
    assert_is(seen["over_high_tokens"], 1, 1, 0, 0, 1)
    keep, _ = trust_region.binary_kl(LATER, EARLIER, credit, LENGTHS, limit=0.05, by_sign=False)
    assert_is(keep, 0, 0, 1, 1, 0)
    keep, _ = trust_region.binary_kl(LATER, EARLIER, credit, LENGTHS, limit=0.02, by_sign=True)
    assert_is(keep, 0, 1, 1, 0, 0)  # 0.0204 > 0.02: token 3 fell at A < 0
    # an advantage of 0 pulls nowhere
    keep, _ = trust_region.binary_kl(LATER, EARLIER, tokens(0.0, 0.0, 0.0, 0.0, 0.0), LENGTHS, limit=0.05)
    assert_is(keep, 1, 1, 1, 1, 1)
    # the direction parts 0.2231 from 0.1927
    for direction, kept in (("earlier_to_later", 0), ("later_to_earlier", 1), ("larger", 0)):
        keep, _ = trust_region.binary_kl(
            LATER[:1], EARLIER[:1], tokens(1.0), lengths(1), limit=0.2, direction=direction
        )
        assert_is(keep, kept)


def test_binary_kl_of_a_sequence_is_the_mean_of_its_tokens() -> None:
    # means 0.2231 and (0.0204 + 0.0204 + 0.2231) / 3 = 0.0880; an empty sequence is near
    segments = lengths(2, 3, 0)
    keep, seen = trust_region.binary_kl(
        LATER, EARLIER, tokens(0.0, 0.0, 0.0, 0.0, 0.0), segments, limit=0.1, level="sequence", by_sign=False
    )
    assert_is(keep, 0, 0, 1, 1, 1)
    assert_is(seen["over_high_sequences"], 1, 0, 0)
    with pytest.raises(SignalError, match="by_sign compares the move of one token"):
        part("keep.binary_kl", limit=0.1, level="sequence")


def test_binary_kl_near_probability_1_is_finite() -> None:
    # 1 - 1e-7 to 0.99: about log(1 / 0.99) = 0.01005; 1 to 0.5: log 2; 0.5 to 1, bounded by eps: 0.5 log(0.25 / 1e-8)
    ends = (tokens(log(1 - 1e-7), 0.0, log(0.5)), tokens(log(0.99), log(0.5), 0.0))
    for limit, kept in ((0.011, (1, 0, 0)), (0.0100, (0, 0, 0)), (0.7, (1, 1, 0)), (9.0, (1, 1, 1))):
        keep, _ = trust_region.binary_kl(
            ends[1], ends[0], tokens(0.0, 0.0, 0.0), lengths(3), limit=limit, by_sign=False
        )
        assert_is(keep, *kept)


def test_keep_total_variation() -> None:
    # mean |move|: 0.3 and (0.1 + 0.1 + 0.3) / 3 = 0.1667. Signed means would be 0 and 0.1.
    keep, seen = trust_region.total_variation(LATER, EARLIER, lengths(2, 3, 0), limit=0.2)
    assert_is(keep, 0, 0, 1, 1, 1)
    assert_is(seen["over_high_sequences"], 1, 0, 0)
    keep, _ = trust_region.total_variation(LATER, EARLIER, LENGTHS, limit=0.16)
    assert_is(keep, 0, 0, 0, 0, 0)


# log-ratios log 2, -log 2 | 0, log 2: with L = log 2 = 0.6931
DRIFT = logp(2.0, 0.5, 1.0, 2.0)


def test_keep_divergence() -> None:
    def kept(limit: float, **how: str) -> torch.Tensor:
        return trust_region.divergence(DRIFT, lengths(2, 2, 0), limit=limit, **how)[0]

    # k2 is L^2 / 2 = 0.2402 | mean 0.1201, sum 0.2402;  sum of the first 0.4805
    assert_is(kept(0.2, measure="k2"), 0, 0, 1, 1)
    assert_is(kept(0.3, measure="k2", total="sum"), 0, 0, 1, 1)
    assert_is(kept(0.5, measure="k2", total="sum"), 1, 1, 1, 1)
    # k3: 2 - L - 1 = 0.3069 and 0.5 + L - 1 = 0.1931: mean 0.25 | 0.1534
    assert_is(kept(0.24), 0, 0, 1, 1)
    assert_is(kept(0.26, measure="k3", total="mean"), 1, 1, 1, 1)
    # |ratio - 1|: 1 and 0.5: mean 0.75 | 0.5
    assert_is(kept(0.6, measure="ratio_distance"), 0, 0, 1, 1)
    # exp |d| is 2 and 2: mean 2 | 1.5
    assert_is(kept(1.6, measure="exp_distance"), 0, 0, 1, 1)
    assert_is(kept(1.4, measure="exp_distance"), 0, 0, 0, 0)
    _, seen = trust_region.divergence(DRIFT, lengths(2, 2, 0), limit=0.24)
    assert_is(seen["over_high_sequences"], 1, 0, 0)


def test_keep_outward_drift() -> None:
    # mean |ratio - 1| is 0.75 | 0.5: only the first has drifted past 0.6; of it goes what moves on: log-ratio * A > 0
    keep, seen = trust_region.outward_drift(DRIFT, tokens(1.0, 1.0, 1.0, 1.0), lengths(2, 2), limit=0.6)
    assert_is(keep, 0, 1, 1, 1)
    assert_is(seen["drifted_sequences"], 1, 0)
    keep, _ = trust_region.outward_drift(DRIFT, tokens(-1.0, -1.0, -1.0, -1.0), lengths(2, 2), limit=0.4)
    assert_is(keep, 1, 0, 1, 1)
    keep, _ = trust_region.outward_drift(DRIFT, tokens(0.0, 0.0, 0.0, 0.0), lengths(2, 2), limit=0.1)
    assert_is(keep, 1, 1, 1, 1)
    # a token that did not move stays, also in a sequence that has drifted
    assert_is(trust_region.outward_drift(DRIFT, tokens(1.0, 1.0, 1.0, 1.0), lengths(2, 2), limit=0.4)[0], 0, 1, 1, 0)


def test_keep_high_entropy() -> None:
    entropy = tokens(0.5, 2.0, 1.0, 1.0, 0.0)
    for fraction, kept in ((0.2, (0, 1, 0, 0, 0)), (0.0, (0, 1, 0, 0, 0)), (0.4, (0, 1, 1, 1, 0)), (1.0, (1,) * 5)):
        keep, seen = trust_region.high_entropy(entropy, fraction=fraction)
        assert_is(keep, *kept)  # of the two equal ones both stay
        assert keep.equal(~seen["under_low_tokens"])
    assert trust_region.high_entropy(tokens())[0].numel() == 0


def test_keep_recent_version() -> None:
    # the batch's newest is 5; sequence 0 was resumed at 4, sequence 1 at 5
    version, segments = index(3, 4, 3, 5, 5), lengths(2, 3)
    assert_is(trust_region.recent_version(version, segments)[0], 0, 0, 0, 1, 1)
    assert_is(trust_region.recent_version(version, segments, lag=1)[0], 0, 1, 0, 1, 1)
    keep, seen = trust_region.recent_version(version, segments, newest="sequence")
    assert_is(keep, 0, 1, 0, 1, 1)
    assert_is(seen["under_low_tokens"], 1, 0, 1, 0, 0)
    assert_is(trust_region.recent_version(version, segments, lag=1, newest="sequence")[0], 1, 1, 0, 1, 1)
    assert trust_region.recent_version(index(), lengths(0))[0].numel() == 0
    with as_on_a_device():
        assert_is(trust_region.recent_version(version, lengths(2, 0, 3), newest="sequence")[0], 0, 1, 0, 1, 1)


def test_distances_of_a_far_ratio() -> None:
    # a ratio of 4 is 3 away from 1, and exp|d| is 4
    four = logp(4.0)
    for measure, limit in (("ratio_distance", 3.0), ("exp_distance", 4.0)):
        for total in ("mean", "sum"):
            assert_is(trust_region.divergence(four, lengths(1), limit=limit, measure=measure, total=total)[0], 1)
            assert_is(trust_region.divergence(four, lengths(1), limit=limit - 0.1, measure=measure, total=total)[0], 0)
    assert_is(trust_region.outward_drift(four, tokens(1.0), lengths(1), limit=3.0)[0], 1)
    assert_is(trust_region.outward_drift(four, tokens(1.0), lengths(1), limit=2.9)[0], 0)


@pytest.mark.parametrize("ratio", ["engine", "update", "total"])
def test_a_trust_region_is_asked_about_the_two_ends_of_its_ratio(ratio: str) -> None:
    """rollout 0.3, old 0.5, current 0.9, and one token where nobody moved: bounds that part 0.2, 0.4 and 0.6."""
    move = {"engine": 0.2, "update": 0.4, "total": 0.6}[ratio]

    def kept(bound: float) -> list[bool]:
        chosen = Recipe(
            name="region",
            loss=Stage(part("policy_loss.reinforce")),
            normalize=part("normalize.raw"),
            weighting=part("weighting.token_mean"),
            correction=(Stage(part("keep.probability_band", low=bound, high=bound, by_sign=False), ratio=ratio),),
        )
        given = {"logp_old": [[log(0.5), log(0.5)]], "logp_rollout": [[log(0.3), log(0.5)]]}
        batch = SignalBatch.from_padded([[1, 1]], reward=[1.0], group=[0], **given)
        (micro,) = decide(next(prepare(batch, chosen)[0].updates(1))).split(num=1)
        return token_loss(micro, torch.tensor([log(0.9), log(0.5)], requires_grad=True)).keep.tolist()

    assert kept(move + 0.05) == [True, True]
    assert kept(move - 0.05) == [False, True]


def test_a_limit_is_a_number_above_0() -> None:
    for limit in (0.0, -1.0, inf, nan):
        with pytest.raises(SignalError, match="limit"):
            part("keep.total_variation", limit=limit)
    with pytest.raises(SignalError, match="lag"):
        part("keep.recent_version", lag=-1)
    assert flags(1).equal(trust_region.recent_version(index(0), lengths(1))[0])
