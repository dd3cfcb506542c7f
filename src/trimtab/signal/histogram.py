"""Histograms of log-ratios: the only place that knows their bins, and how to find a value's bin by its bits."""

import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.tensors import is_plain


@dataclass(frozen=True)
class Histogram:
    """Counts in fixed bins of the log-ratio, so that histograms of different batches add up.

    Bins mirror at 0; a value on an edge belongs to the bin farther out. Edges have at most eight significant bits, so
    the upper half of a float32 says in which bin it lies, and nothing is compared.
    Of more than LARGE values, every k-th is counted, k times: extremes are metrics of their own, and exact.
    """

    counts: Tensor

    OUTER = (0.010009765625, 0.030029296875, 0.10009765625, 0.30078125, 1.0, 3.0, 10.0)
    EDGES = (*(-edge for edge in OUTER[::-1]), *OUTER)
    LARGE = 8_192
    """More values than this are sampled."""

    @classmethod
    def of(cls, logratio: Tensor) -> "Histogram":
        num = logratio.numel()
        every = max(1, num // cls.LARGE)
        values = logratio.detach()
        if is_plain(values):
            chosen = np.ascontiguousarray(values.numpy()[: num // every * every : every], dtype=np.float32)
            place = BIN_OF_UPPER.take(chosen.view(np.uint16)[UPPER::2])
            return cls(torch.from_numpy(np.bincount(place, minlength=len(cls.EDGES) + 1) * every))
        chosen = values[::every][: num // every].float()
        place = torch.bucketize(chosen.contiguous(), torch.from_numpy(BEYOND).to(chosen.device), right=True)
        blank = torch.zeros(len(cls.EDGES) + 1, dtype=torch.long, device=chosen.device)
        return cls(blank.index_add(0, place, torch.full_like(place, every)))

    def merge(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)


_EDGES = np.array(Histogram.EDGES, dtype=np.float32)
BEYOND = np.maximum(_EDGES, np.nextafter(_EDGES, np.float32(0)))
"""Each edge as the least number beyond it, so that a negative value on an edge lies outside too."""
UPPER = 1 if sys.byteorder == "little" else 0
BIN_OF_UPPER = np.searchsorted(BEYOND, (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32), side="right").astype(
    np.uint8
)
"""The bin of a float32, by its upper half; in bytes, so that it stays in the processor's cache."""
