"""Numbers that numpy reads where they lie, and those that stay with torch: a gradient, or another device."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden.exact import assert_is, tokens

from trimtab.errors import SignalError
from trimtab.signal import tensors
from trimtab.signal.tensors import (
    as_number,
    as_on_a_device,
    as_plain,
    as_torch,
    between,
    exceeds,
    host,
    in_precision,
    is_plain,
    library,
    quiet,
    read_all,
    read_if_plain,
)  # fmt: skip

PLAIN, LEAF = tokens(1.0, 2.0), tokens(1.0, 3.0).requires_grad_()


def test_a_tensor_with_a_gradient_is_not_plain() -> None:
    assert is_plain(PLAIN)
    assert not is_plain(LEAF)
    assert not is_plain(torch.nn.Parameter(PLAIN.clone(), requires_grad=False))
    assert isinstance(host(PLAIN), np.ndarray)
    assert host(LEAF) is LEAF
    assert host(3.0) == 3.0
    assert as_torch(host(PLAIN)).data_ptr() == PLAIN.data_ptr()


def test_as_on_a_device_nothing_is_plain_until_it_ends_even_with_an_error() -> None:
    with as_on_a_device():
        assert not is_plain(PLAIN)
        assert host(PLAIN) is PLAIN
        with as_on_a_device():
            pass
        assert not is_plain(PLAIN)
    with pytest.raises(ZeroDivisionError), as_on_a_device():
        _ = 1 // 0
    assert is_plain(PLAIN)


def test_numbers_are_compared_whether_or_not_one_has_a_gradient() -> None:
    for first, second in ((PLAIN, LEAF), (PLAIN, LEAF.detach())):
        assert_is(exceeds(first, second), 0, 0)
    assert_is(exceeds(LEAF, PLAIN), 0, 1)
    assert_is(exceeds(LEAF.detach(), PLAIN), 0, 1)


def test_a_number_is_read_where_reading_costs_nothing() -> None:
    assert read_if_plain(torch.tensor(0.5)) == 0.5
    assert isinstance(read_if_plain(torch.tensor(0.5)), float)
    with as_on_a_device():
        there = read_if_plain(torch.tensor(0.5))
    assert isinstance(there, torch.Tensor)
    assert there.dtype == torch.float64
    assert isinstance(as_plain(np.float64(2.0)), float)
    assert as_plain(there) is there


def test_all_numbers_are_read_at_once_in_double_precision() -> None:
    assert read_all([np.float64(0.1)], np.array([2.0, 3.0])) == [0.1, 2.0, 3.0]
    # 0.1 of float64 is not that of float32, and 2^24 + 1 is no number of float32
    assert read_all([torch.tensor(0.1, dtype=torch.float64)], torch.tensor([2.0, 3.0])) == [0.1, 2.0, 3.0]
    assert read_all([torch.tensor([2**24 + 1])], torch.tensor([2.0, 3.0])) == [2.0**24 + 1, 2.0, 3.0]


@pytest.mark.parametrize("values", [np.array([-3.0, 0.0, 3.0]), tokens(-3.0, 0.0, 3.0)])
def test_numbers_are_held_within_the_bounds_that_there_are(values: Any) -> None:
    for bounds, held in (
        ((-1, 2), [-1, 0, 2]), ((None, 2), [-3, 0, 2]), ((-1, None), [-1, 0, 3]), ((0, None), [0, 0, 3]),
    ):  # fmt: skip
        assert between(values, *bounds).tolist() == held


def test_a_precision_is_kept_by_arrays_and_by_tensors() -> None:
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        assert in_precision(np.array([1, 2]), dtype).dtype == np.dtype(name)
        assert in_precision(torch.tensor([1, 2]), dtype).dtype == dtype
    assert library(np.zeros(1)) is np
    assert library(PLAIN) is torch


def divided(by: float) -> float:
    return float(np.float64(1.0) / np.float64(by))


def test_whoever_is_quiet_hears_nothing_of_a_division_by_zero_and_others_do_afterwards() -> None:
    run = quiet(divided)
    outer = quiet(lambda: (run(0.0), run(0.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(0.0) == np.inf
        assert outer() == (np.inf, np.inf)
        assert run(0.0) == np.inf
        with pytest.raises(RuntimeWarning, match="divide by zero"):
            _ = divided(0.0)


def test_numpy_is_told_once_to_be_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    errstate: Callable[..., Any] = np.errstate

    def told(**how: str) -> Any:
        asked.extend(how.values())
        return errstate(**how)

    monkeypatch.setattr(tensors.np, "errstate", told)
    assert quiet(lambda: quiet(divided)(0.0))() == np.inf
    assert asked == ["ignore"]


def test_a_quiet_function_that_fails_leaves_numpy_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        _ = quiet(lambda: 1 // 0)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            _ = divided(0.0)
        assert quiet(divided)(0.0) == np.inf


def test_a_number_is_a_float_and_no_switch() -> None:
    found = as_number(3, "here", "limit", lambda limit: limit > 2, "Above 2.")
    assert (found, type(found)) == (3.0, float)
    for wrong, shown in ((True, "True"), ("3", "'3'"), (2, "2"), ([3], r"\[3\] \(list\)")):
        with pytest.raises(SignalError, match=rf"^here: limit = {shown} is not possible\. Above 2\.$"):
            _ = as_number(wrong, "here", "limit", lambda limit: limit > 2, "Above 2.")
