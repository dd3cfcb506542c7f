"""What callers hold, read as tensors: each kind is taken as it is or refused with the place that is wrong."""

import hashlib

import numpy
import pytest
import torch
from tests.golden.exact import assert_is

from trimtab.errors import SignalError
from trimtab.signal.tensors import as_flags, as_integers, as_names, as_tensor


def test_numbers_of_a_list_are_read_in_the_dtype_that_is_asked_for() -> None:
    assert as_tensor([1, 2], "here").dtype == torch.long
    assert as_tensor([1, 2], "here", dtype=torch.float64).dtype == torch.float64
    assert as_tensor(numpy.array([1.0], dtype="float32"), "here", dtype=torch.float64).dtype == torch.float32
    given = torch.ones(2)
    assert as_tensor(given, "here", dtype=torch.float64) is given


def test_rows_that_are_tensors_or_arrays_keep_their_dtype_and_leave_their_graph() -> None:
    arrays = [numpy.array([1.0], dtype="float32"), numpy.array([2.0], dtype="float32")]
    assert as_tensor(arrays, "here", dtype=torch.float64).dtype == torch.float32
    tensors = [torch.ones(1, requires_grad=True), torch.ones(1)]
    assert not as_tensor(tensors, "here").requires_grad


def test_an_array_of_other_than_real_numbers_is_refused_by_its_dtype() -> None:
    for array in (numpy.array([1j]), numpy.array(["2"])):
        with pytest.raises(SignalError, match=f"an array of {array.dtype}"):
            as_tensor(array, "here")


@pytest.mark.parametrize("entries", [[1.0, None], [1.0, "2"], [b"1", 2.0], [[1.0], [1.0, 2.0]], "12", 3.0, None])
def test_what_holds_no_numbers_is_refused(entries: object) -> None:
    with pytest.raises(SignalError, match=r"^here: "):
        as_tensor(entries, "here")


@pytest.mark.parametrize(("entries", "said"), [([1.0, None], "entry 1 is None"), ([b"1", 2.0], "entry 0 is b'1'")])
def test_an_entry_without_a_number_is_named_by_its_place(entries: object, said: str) -> None:
    with pytest.raises(SignalError, match=said):
        as_tensor(entries, "here")


@pytest.mark.parametrize("length", [40, 41])
def test_a_value_of_up_to_40_characters_is_shown_whole(length: int) -> None:
    given = {0, 1, 2, "x" * (length - 13)}
    assert len(repr(given)) == length
    shown = f"{given!r} (set)" if length == 40 else "a set"
    with pytest.raises(SignalError) as refusal:
        as_tensor(given, "here")
    assert f"is {shown}, so it holds no numbers" in str(refusal.value)


@pytest.mark.parametrize(("length", "shown"), [(40, repr("x" * 38)), (41, "a str")])
def test_a_text_of_up_to_40_characters_is_shown_without_its_kind(length: int, shown: str) -> None:
    with pytest.raises(SignalError) as refusal:
        as_tensor("x" * (length - 2), "here")
    assert f"is {shown}, so it holds no numbers" in str(refusal.value)


def test_a_mask_holds_0_and_1() -> None:
    assert_is(as_flags([0, 1, 1.0], "here"), 0, 1, 1)
    assert_is(as_flags(torch.tensor([True, False]), "here"), 1, 0)
    with pytest.raises(SignalError, match=r"is 0.5 at \[1, 0\]"):
        as_flags([[0.0, 1.0], [0.5, 1.0]], "here")
    with pytest.raises(SignalError, match=r"is -1 at \[2\]"):
        as_flags([0, 1, -1], "here")


def test_integers_are_whole_and_a_fraction_is_named_by_its_place() -> None:
    given = torch.tensor([3, -2])
    read = as_integers(given, "here")
    assert_is(read, 3, -2)
    assert read.data_ptr() != given.data_ptr()
    assert as_integers(torch.tensor([3], dtype=torch.int32), "here").dtype == torch.long
    with pytest.raises(SignalError, match=r"holds float32 \(2\.5 at 2\)"):
        as_integers([1.0, 2.0, 2.5, 3.5], "here")
    with pytest.raises(SignalError, match=r"holds float32 \(4\.5 at 3\)"):
        as_integers(torch.tensor([[1.0, 2.0], [3.0, 4.5]]), "here")
    with pytest.raises(SignalError, match="bool"):
        as_integers([True, False], "here")
    assert as_integers(torch.zeros(0), "here").dtype == torch.long


def test_a_name_that_is_a_text_becomes_the_same_number_everywhere() -> None:
    """63 bits of blake2b: a 64-bit number would not fit into a signed one."""
    words = ["gsm8k/17", "gsm8k/18", "", "é"]
    digests = [hashlib.blake2b(word.encode(), digest_size=8).hexdigest() for word in words]
    expected = [int(digest, 16) // 2 for digest in digests]
    for given in (words, tuple(words), numpy.array(words), numpy.array(words, dtype=object)):
        assert as_names(given, "here").tolist() == expected
    assert as_names([7, -7], "here").tolist() == [7, -7]
    assert as_names(torch.tensor([True, False]), "here").tolist() == [1, 0]
    with pytest.raises(SignalError, match="here"):
        as_names(["a", 3], "here")
