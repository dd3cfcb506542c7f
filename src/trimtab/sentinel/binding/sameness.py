"""When two results count as the same."""

import torch
from torch import Tensor

from trimtab.sentinel.binding.subject import Result

SINGLE = 1e-5
"""Relative tolerance of a result that a subject computes in float32 for any input dtype."""


def same(first: Tensor, second: Tensor, *, tolerance: float = 1e-9) -> bool:
    """Equal within a relative tolerance, NaN equal to NaN; exactly equal when the tolerance is 0."""
    if first.shape != second.shape:
        return False
    single = any(one.dtype.is_floating_point and one.dtype != torch.float64 for one in (first, second))
    allowed = max(tolerance, SINGLE) if single and tolerance else tolerance
    return bool(torch.allclose(first.double(), second.double(), rtol=allowed, atol=allowed, equal_nan=True))


def same_gradient(first: Tensor, second: Tensor, result: Result, *, tolerance: float = 1e-9) -> bool:
    """Like `same`, in the precision of the result: leaves stay float64 even if a subject casts to float32."""
    single = result.value.dtype != torch.float64
    return same(first, second, tolerance=max(tolerance, SINGLE) if single and tolerance else tolerance)
