"""The only place that makes a checksum of parameters, so that two sides can tell that they hold the same."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

CHECKSUM = "sha256"
"""1.6 GB/s on one core with the CPU's own instructions for it, faster than any of its rivals in hashlib."""


def digest(state: Mapping[str, Tensor]) -> str:
    """A checksum of names, shapes, number formats and bits; the order of the names does not matter.

    >>> import torch
    >>> one, two = torch.zeros(2), torch.ones(2)
    >>> digest({"a": one, "b": two}) == digest({"b": two, "a": one})
    True
    >>> digest({"a": one, "b": two}) == digest({"a": two, "b": one})
    False
    """
    whole = hashlib.new(CHECKSUM)
    known: dict[tuple[object, ...], bytes] = {}  # tied parameters are one tensor under two names: read it once
    for name in sorted(state):
        tensor = state[name].detach()
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if place not in known:
            known[place] = hashlib.new(CHECKSUM, _bits(tensor)).digest()
        whole.update(f"{name!r} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        whole.update(known[place])
    return whole.hexdigest()


def _bits(tensor: Tensor) -> memoryview:
    """The bytes of a tensor as they lie in memory, row after row."""
    flat = tensor.to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
