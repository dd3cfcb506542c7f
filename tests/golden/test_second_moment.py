"""keep.second_moment and keep.second_moment_by_sign, squares and means by hand."""

from tests.golden.exact import assert_is, index, tokens

from trimtab.signal import second_moment


def test_keep_second_moment() -> None:
    # squares 0.01, 0.04, 0.16, 1.0: means of the nearest 0.01, 0.025, 0.07, 0.3025
    far = tokens(-0.2, 1.0, 0.1, -0.4)
    key = index(3, 2, 1, 0)
    for limit, kept in ((0.31, (1, 1, 1, 1)), (0.3, (1, 0, 1, 1)), (0.05, (1, 0, 1, 0)), (0.001, (0, 0, 1, 0))):
        keep, seen = second_moment.second_moment(far, key, limit=limit)
        assert_is(keep, *kept)
        assert keep.equal(~seen["over_high_tokens"])
    # of equally far ones the smaller key stays: 0.25 twice, means 0, 0.125 and 0.167
    keep, _ = second_moment.second_moment(tokens(0.5, -0.5, 0.0), index(7, 5, 9), limit=0.15)
    assert_is(keep, 0, 1, 1)
    assert second_moment.second_moment(tokens(), index(), limit=0.2)[0].numel() == 0


def test_keep_second_moment_by_sign() -> None:
    # outward are those whose log-ratio and advantage agree in sign: -0.2, 1.0 and -0.4, squares 0.04, 1.0, 0.16;
    # their means, nearest first: 0.04, 0.1, 0.4. The token at 0.1 moves back, and stays whatever the limit.
    far, pull, key = tokens(-0.2, 1.0, 0.1, -0.4), tokens(-1.0, 2.0, -1.0, -0.5), index(3, 2, 1, 0)
    for limit, kept in ((0.41, (1, 1, 1, 1)), (0.39, (1, 0, 1, 1)), (0.09, (1, 0, 1, 0)), (0.03, (0, 0, 1, 0))):
        keep, seen = second_moment.second_moment_by_sign(far, pull, key, limit=limit)
        assert_is(keep, *kept)
        assert keep.equal(~seen["over_high_tokens"])
    # a token that did not move is none of them and dilutes no mean: 0.04 and 0.16 have 0.1, not 0.2 / 3
    still, up = tokens(0.0, 0.2, 0.4), tokens(1.0, 1.0, 1.0)
    assert_is(second_moment.second_moment_by_sign(still, up, index(0, 1, 2), limit=0.08)[0], 1, 1, 0)
    # a token of advantage 0 has no sign and stays; a lone one beyond the limit goes
    assert_is(
        second_moment.second_moment_by_sign(tokens(9.0, -0.5), tokens(0.0, -1.0), index(1, 0), limit=0.2)[0], 1, 0
    )
    # of equally far ones the smaller key stays: squares 0.25 twice beside 0.01, means 0.01, 0.13, 0.17
    tied, pull = tokens(0.5, -0.5, 0.1), tokens(1.0, -1.0, 1.0)
    assert_is(second_moment.second_moment_by_sign(tied, pull, index(7, 5, 9), limit=0.15)[0], 0, 1, 1)
    assert second_moment.second_moment_by_sign(tokens(), tokens(), index(), limit=0.2)[0].numel() == 0


def test_a_mean_of_exactly_the_limit_is_kept() -> None:
    # squares 1 and 4: means 1 and 2.5
    for limit, kept in ((2.5, (1, 1)), (2.4, (1, 0)), (1.0, (1, 0))):
        assert_is(second_moment.second_moment(tokens(1.0, -2.0), index(0, 1), limit=limit)[0], *kept)
    assert_is(second_moment.second_moment_by_sign(tokens(2.0), tokens(0.5), index(0), limit=4.0)[0], 1)
    assert_is(second_moment.second_moment_by_sign(tokens(2.0), tokens(0.5), index(0), limit=3.9)[0], 0)


def test_a_token_that_has_not_moved_is_no_company_for_those_that_have() -> None:
    # with the square 0 beside it, 1 would have a mean of 0.5; alone it is above 0.6
    keep, _ = second_moment.second_moment_by_sign(tokens(0.0, 1.0), tokens(1.0, 1.0), index(0, 1), limit=0.6)
    assert_is(keep, 1, 0)


def test_squares_add_up_in_double_precision() -> None:
    # 1 and 2^24 have a mean of 2^23 + 1/2, and float32 would make it 2^23
    far = tokens(1.0, 4096.0).float()
    assert_is(second_moment.second_moment(far, index(0, 1), limit=2.0**23 + 0.25)[0], 1, 0)
    assert_is(second_moment.second_moment(far, index(0, 1), limit=2.0**23 + 0.5)[0], 1, 1)
