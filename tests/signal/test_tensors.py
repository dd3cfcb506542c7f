"""What callers hold, read as tensors: copies, precisions, and what is refused."""

import numpy as np
import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal.tensors import (
    as_count,
    as_flags,
    as_integers,
    as_names,
    as_number,
    as_tensor,
)


def test_arrays_and_lists_are_copied_and_tensors_are_not() -> None:
    array, tensor = np.arange(4.0)[::-1], torch.zeros(1)
    read = as_tensor(array, "x")
    assert read.tolist() == [3.0, 2.0, 1.0, 0.0]
    array[0] = 9.0
    assert read[0] == 3.0
    assert as_tensor(tensor, "x") is tensor
    assert as_tensor([0.1], "x", dtype=torch.float64).dtype == torch.float64
    assert as_tensor([torch.tensor([1.0]), torch.tensor([2.0])], "x").tolist() == [[1.0], [2.0]]
    assert as_tensor([], "x").shape == (0,)
    assert not as_tensor([torch.ones(1, requires_grad=True)], "x").requires_grad


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("abc", r"x: is 'abc', so it holds no numbers"),
        (b"abc", r"x: is b'abc' \(bytes\)"),
        (3.5, r"x: is 3.5, so it holds no numbers"),
        (dict.fromkeys(range(30)), "x: is a dict, so it holds no numbers"),
        ([1.0, None], r"cannot be read as numbers \(entry 1 is None\)"),
        ([1.0, "a"], r"cannot be read as numbers \(entry 1 is 'a'\)"),
        (np.array(["a"]), r"cannot be read as numbers \(an array of <U1\)"),
        (torch.zeros(2).to_sparse(), "x: is sparse_coo, not dense"),
        (torch.zeros(2, device="meta"), "is on the meta device"),
        (torch.zeros(2, dtype=torch.complex64), "holds complex64 numbers"),
    ],
)
def test_what_holds_no_numbers_is_refused(given: object, says: str) -> None:
    with pytest.raises(SignalError, match=says):
        as_tensor(given, "x")


def test_flags_integers_and_names_are_new_tensors() -> None:
    flags, counts = torch.tensor([True, False]), torch.tensor([1, 2])
    for read, given in (
        (as_flags(flags, "x"), flags),
        (as_integers(counts, "x"), counts),
        (as_names(counts, "x"), counts),
    ):
        assert read.tolist() == given.tolist()
        assert read.data_ptr() != given.data_ptr()
    assert as_names([True, False], "x").tolist() == [1, 0]
    assert as_names(np.array(["a", "b"]), "x").tolist() == as_names(["a", "b"], "x").tolist()
    assert as_names([], "x").dtype == torch.long
    # 8 bytes of a hash, halved so that int64 holds them: the same everywhere
    assert as_names(["a"], "x").tolist() == [2340832890917691671]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([[0.0, 1.0], [0.5, 2.0]], r"x: is 0.5 at \[1, 0\], so it is neither in nor out"),
        ([0, 1, 2], r"x: is 2 at \[2\]"),
    ],
)
def test_flags_are_0_or_1(given: object, says: str) -> None:
    with pytest.raises(SignalError, match=says):
        as_flags(given, "x")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1.0, 2.5], r"x: holds float32 \(2.5 at 1\)"),
        ([1.0, 2.0], r"\(1.0 at 0\)"),
        ([True], r"holds bool \(True at 0\)"),
    ],
)
def test_integers_are_whole_and_no_flags(given: object, says: str) -> None:
    with pytest.raises(SignalError, match=says):
        as_integers(given, "x")


def test_counts_and_numbers_at_their_limits() -> None:
    assert as_count(1, "f", "n") == 1
    assert as_count(0, "f", "n", least=0) == 0
    for given in (0, True, 1.0, "3"):
        with pytest.raises(SignalError, match=rf"f: n = .*{given}.* is not possible. Give a whole number, 1 or more"):
            as_count(given, "f", "n")
    assert as_number(2, "f", "x", lambda x: x > 1, "More than 1.") == 2.0
    for given in (1, False, "2"):
        with pytest.raises(SignalError, match=rf"f: x = .*{given}.* is not possible. More than 1."):
            as_number(given, "f", "x", lambda x: x > 1, "More than 1.")


def test_a_value_is_shown_whole_up_to_forty_characters() -> None:
    for text, shown in (("a" * 38, repr("a" * 38)), ("a" * 39, "a str")):
        with pytest.raises(SignalError, match=f"n = {shown} is"):
            as_count(text, "f", "n")
    for last, shown in ((10, r"\[10, .* 10\] \(list\)"), (100, "a list")):  # [10, 10, …] is 40 and 41 characters long
        with pytest.raises(SignalError, match=f"n = {shown} is"):
            as_count([*[10] * 9, last], "f", "n")
