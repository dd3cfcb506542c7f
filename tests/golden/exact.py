"""How a golden case is written: the only place that says what its inputs look like and how exact its numbers are.

Everything is float64. Log-probs are given as probabilities, so that a ratio is a quotient that can be worked out by
hand: `log(0.6)` over `log(0.4)` is a ratio of 1.5.
"""

import torch
from torch import Tensor

from trimtab.signal.layout import Segments

ATOL = 1e-12


def tokens(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log(*probabilities: float) -> Tensor:
    return tokens(*probabilities).log()


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def index(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


def lengths(*counts: int) -> Segments:
    return Segments.from_counts(index(*counts), sum(counts))


def assert_near(actual: Tensor, *expected: float, atol: float = ATOL) -> None:
    """Within 1e-12, absolutely, unless the case says how much rounding it brings."""
    torch.testing.assert_close(actual, tokens(*expected), rtol=0, atol=atol)


def assert_is(actual: Tensor, *expected: float) -> None:
    """Bit for bit; flags are compared with 0 and 1."""
    wanted = flags(*(int(v) for v in expected)) if actual.dtype == torch.bool else tokens(*expected).to(actual.dtype)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
