"""Limits on one token's divergence as bands of its ratio: the same set of tokens in other units."""

from collections.abc import Callable
from math import exp, sqrt

Band = tuple[float, float]

FARTHEST = 700.0
"""Log-ratios beyond this have no exponential."""


def ratio_band(measure: str, limit: float) -> Band:
    """The ratios whose k2 or k3 is at most the limit.

    k2 = d^2 / 2 and k3 = exp(d) - d - 1, d the log-ratio
    """
    if measure == "k2":
        return exp(-sqrt(2 * limit)), exp(sqrt(2 * limit))
    return exp(-_root(lambda d: exp(-d) + d - 1, limit)), exp(_root(lambda d: exp(d) - d - 1, limit))


def inverse(band: Band) -> Band:
    """The band of the ratio the other way round."""
    low, high = band
    return 1 / high, 1 / low if low > 0 else float("inf")


def _root(rising: Callable[[float], float], limit: float) -> float:
    """Where a function that rises from 0 reaches the limit, found by halving."""
    low, high = 0.0, 1.0
    while high < FARTHEST and rising(high) < limit:
        high = min(2 * high, FARTHEST)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < limit else (low, middle)
    return high
