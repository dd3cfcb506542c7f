"""What callers hold, as tensors: the only place that reads a tensor, an array or a list, or says why it cannot.

It knows names and kinds of numbers; it knows nothing of layouts, levels or formulas.
"""

import hashlib
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from trimtab.errors import SignalError

Numbers = Any
"""A tensor, an array, or a list (of numbers, of rows): whatever `as_tensor` reads. Callers are not all typed."""


def as_tensor(
    values: object, name: str, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """A tensor as it is; an array or a list as a new tensor on `device`, numbers of a list in `dtype`."""
    if isinstance(values, Tensor):
        return _dense(values, name)
    if isinstance(values, str | bytes) or not _is_array(values):
        raise SignalError(f"{name}: is {_shown(values)}, so it holds no numbers. Give a tensor, an array or a list.")
    try:
        return _read(values, dtype).to(device)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise SignalError(
            f"{name}: cannot be read as numbers ({_first_line(error)}). "
            "Give a tensor, an array, or a list of numbers without gaps; rows of a list are of one length."
        ) from error


class _Reading:
    """Whether plain numbers may be read; off, every tensor is treated as if it were on another device."""

    is_on: bool = True


def is_plain(values: Tensor) -> bool:
    """Numbers in the processor's own memory, without a gradient: what numpy reads where they lie."""
    return type(values) is Tensor and values.is_cpu and not values.requires_grad and _Reading.is_on


@contextmanager
def as_on_a_device() -> Generator[None]:
    """Run what a GPU would run, on CPU tensors: for tests, and for counting what would wait there."""
    before, _Reading.is_on = _Reading.is_on, False
    try:
        yield
    finally:
        _Reading.is_on = before


Array = Any
"""A few numbers: numpy's where they are in the processor's memory, torch's where they are on another device. What is
written with operators, and with the functions of `library`, works on both. numpy takes a fifth of torch's time per
call, which is all that counts for an array with one number per sequence."""


def host(values: Array) -> Array:
    """Plain numbers as numpy sees them; anything else as it is."""
    if type(values) is Tensor and values.is_cpu and not values.requires_grad and _Reading.is_on:
        return values.numpy()
    return values


def as_torch(values: Array) -> Tensor:
    """The way back."""
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


Taken = ParamSpec("Taken")
Given = TypeVar("Given")


def quiet(function: Callable[Taken, Given]) -> Callable[Taken, Given]:
    """numpy warns of a division by zero and torch does not: whoever computes with `Array` is quiet on both."""

    @wraps(function)
    def run(*given: Taken.args, **named: Taken.kwargs) -> Given:
        if _Here.is_quiet:  # inside another one
            return function(*given, **named)
        _Here.is_quiet = True
        try:
            with np.errstate(all="ignore"):
                return function(*given, **named)
        finally:
            _Here.is_quiet = False

    return run


class _Thread(threading.local):
    is_quiet: bool = False


_Here = _Thread()


NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def in_precision(values: Array, dtype: torch.dtype) -> Array:
    """The same numbers in another precision."""
    return values.to(dtype) if isinstance(values, Tensor) else np.asarray(values, NUMPY[dtype])


def library(values: Array) -> Any:
    """numpy or torch, whose array it is."""
    return np if isinstance(values, np.ndarray) else torch


def between(values: Array, low: float | None, high: float | None) -> Array:
    """Values held within bounds; numpy's own clip takes three times as long as the two functions it stands for."""
    if isinstance(values, Tensor):
        return values.clamp(low, high)
    raised = values if low is None else np.maximum(values, low)
    return raised if high is None else np.minimum(raised, high)


Number = float | Tensor
"""A plain number, or a number that is still on its device."""


def as_plain(number: Array) -> Number:
    """A number of an array: Python's own where it is numpy's."""
    return number if isinstance(number, Tensor) else float(number)


def read_if_plain(number: Tensor) -> Number:
    """A single number, read where reading costs nothing; in float64 where it stays."""
    return number.item() if is_plain(number) else number.double()


def read_all(numbers: Sequence[Array], more: Array) -> list[float]:
    """Single numbers and those of an array; a device is asked once for all of them."""
    if isinstance(more, np.ndarray):
        return [number.item() for number in numbers] + cast("list[float]", more.tolist())
    return cast("list[float]", torch.cat([*(one.reshape(1) for one in numbers), more.double()]).tolist())


def exceeds(first: Tensor, second: Tensor) -> Tensor:
    """first > second; numpy compares plain numbers in a fifth of torch's time."""
    if is_plain(first) and is_plain(second):
        return torch.from_numpy(np.greater(first.numpy(), second.numpy()))
    return first > second


def _dense(values: Tensor, name: str) -> Tensor:
    problem = (
        f"is {str(values.layout).removeprefix('torch.')}, not dense"
        if values.layout != torch.strided or values.is_nested
        else "is on the meta device and holds no numbers"
        if values.is_meta
        else f"holds {_dtype_name(values)} numbers"
        if values.is_complex() or values.is_quantized
        else ""
    )
    if problem:
        raise SignalError(
            f"{name}: {problem}, so it cannot be computed with. Give a plain dense tensor of real numbers."
        )
    return values


def _is_array(values: object) -> bool:
    return isinstance(values, Sequence) or hasattr(values, "__array__")


def _read(values: object, dtype: torch.dtype | None) -> Tensor:
    if hasattr(values, "__array__"):
        # A copy: the caller's memory is never aliased, and negative strides are straightened.
        array = np.array(values)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"an array of {array.dtype}")
        return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    entries = cast("Sequence[object]", values)
    if entries and all(hasattr(entry, "__array__") for entry in entries):
        return torch.stack([as_tensor(entry, "entry").detach() for entry in entries])
    _refuse_gaps(entries)
    read = torch.as_tensor(entries)
    return read if dtype is None else torch.as_tensor(entries, dtype=dtype)


def _refuse_gaps(entries: Sequence[object]) -> None:
    for place, entry in enumerate(entries):
        if entry is None or isinstance(entry, str | bytes):
            raise TypeError(f"entry {place} is {entry!r}")


def as_flags(values: object, name: str, device: torch.device | None = None) -> Tensor:
    """A mask as booleans, always a new tensor; anything but 0 and 1 is refused."""
    mask = as_tensor(values, name, device=device)
    if mask.dtype == torch.bool:
        return mask.clone()
    flags = mask != 0
    odd = (mask != flags.to(mask.dtype)).nonzero()
    if odd.shape[0]:
        at = [int(place) for place in odd[0]]
        raise SignalError(
            f"{name}: is {mask[tuple(at)].item()} at {at}, so it is neither in nor out. "
            "It holds 0 and 1; a soft weight belongs in the loss weighting."
        )
    return flags


def as_integers(values: object, name: str, device: torch.device | None = None) -> Tensor:
    """Whole numbers, always a new tensor of int64; 2.7 and True are refused."""
    numbers = as_tensor(values, name, device=device)
    if numbers.numel() and (numbers.dtype == torch.bool or numbers.dtype.is_floating_point):
        fractions = numbers != numbers.double().floor()
        at = int(fractions.reshape(-1).to(torch.long).argmax())
        value = numbers.reshape(-1)[at].item()
        raise SignalError(
            f"{name}: holds {_dtype_name(numbers)} ({value} at {at}), and it counts or names things. Give integers."
        )
    return numbers.to(device, torch.long, copy=True)


def as_names(values: object, name: str, device: torch.device | None = None) -> Tensor:
    """Names of things as integers, always a new tensor: integers as they are, strings by a hash that ranks share."""
    listed = cast("Any", values).tolist() if _holds_strings(values) else values
    if isinstance(listed, list | tuple):
        entries = cast("list[object]", listed)
        texts = [entry for entry in entries if isinstance(entry, str)]
        if texts and len(texts) == len(entries):
            return torch.tensor([_hash(text) for text in texts], device=device)
    read = as_tensor(values, name, device=device)
    return read.to(device, torch.long) if read.dtype == torch.bool else as_integers(read, name, device)


def _holds_strings(values: Any) -> bool:
    """An array of texts, or of objects that may be texts."""
    return getattr(getattr(values, "dtype", None), "kind", "") in ("U", "O")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def as_count(value: object, where: str, what: str, *, least: int = 1) -> int:
    """A whole number of things, at least `least`; True, 1.5 and "3" are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SignalError(f"{where}: {what} = {_shown(value)} is not possible. Give a whole number, {least} or more.")
    return value


def as_number(value: object, where: str, what: str, holds: Callable[[float], bool], says: str) -> float:
    """A real number with a property; booleans and texts are refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(float(value)):
        raise SignalError(f"{where}: {what} = {_shown(value)} is not possible. {says}")
    return float(value)


def _dtype_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= 40 and isinstance(value, int | float | str):
        return text
    return f"{text} ({type(value).__name__})" if len(text) <= 40 else f"a {type(value).__name__}"
