"""Value losses by hand."""

from tests.golden.exact import assert_is, assert_near, tokens

from trimtab.signal import value_loss


def test_value_loss_squared() -> None:
    # (3 - 1)^2 / 2 = 2; (0 - 3)^2 / 2 = 4.5
    loss, _ = value_loss.squared(tokens(3.0, 0.0), tokens(1.0, 3.0))
    assert_is(loss, 2.0, 4.5)


def test_value_loss_squared_clipped() -> None:
    # old 1, reach 0.5: values are held in [0.5, 1.5]. The larger of the two errors counts.
    #   value 1.25, return 2: inside, (0.75)^2 / 2 = 0.28125
    #   value 2, return 3:    held at 1.5: max(1, 2.25) / 2 = 1.125, the hold decides (its gradient is stopped)
    #   value 2, return 0:    held at 1.5: max(4, 2.25) / 2 = 2, the value itself decides
    #   value 0, return -1:   held at 0.5: max(1, 2.25) / 2 = 1.125, the hold decides on the other side
    value, old = tokens(1.25, 2.0, 2.0, 0.0), tokens(1.0, 1.0, 1.0, 1.0)
    loss, seen = value_loss.squared_clipped(value, old, tokens(2.0, 3.0, 0.0, -1.0), reach=0.5)
    assert_near(loss, 0.28125, 1.125, 2.0, 1.125)
    assert_is(seen["clipped_tokens"], 0, 1, 0, 1)


def test_value_loss_huber_clipped() -> None:
    # width 2: errors below it cost e^2 / 2, others 2 (|e| - 1). old 1, reach 0.5, as above.
    #   value 1.25, return 2:  inside, 0.28125
    #   value 2, return 5:     held at 1.5: max(2 * 2, 2 * 2.5) = 5, the hold decides
    #   value 2, return -3:    held at 1.5: max(2 * 4, 2 * 3.5) = 8, the value itself decides
    #   value 1, return 3:     at the width both forms are 2
    value, old = tokens(1.25, 2.0, 2.0, 1.0), tokens(1.0, 1.0, 1.0, 1.0)
    loss, seen = value_loss.huber_clipped(value, old, tokens(2.0, 5.0, -3.0, 3.0), reach=0.5, width=2.0)
    assert_near(loss, 0.28125, 5.0, 8.0, 2.0)
    assert_is(seen["clipped_tokens"], 0, 1, 0, 0)
    loss, seen = value_loss.huber_clipped(value, old, tokens(2.0, 5.0, -3.0, 3.0), reach=float("inf"), width=2.0)
    assert_near(loss, 0.28125, 4.0, 8.0, 2.0)
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0)
