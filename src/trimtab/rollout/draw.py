"""The only place that draws a token: random numbers by (seed, place), cuts by top-k and top-p, inverse of the CDF."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trimtab.rollout.engine import Greedy, Sampling

_STEP, _MIX_1, _MIX_2 = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Constants of SplitMix64 (Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators, figure 17)."""

CHUNK_NUMBERS = 2**22
"""How many probabilities are handled at once. With float64 sums and their copies they take about 100 MiB."""


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Numbers in [0, 1), float64 `[seeds, count]`; the one at (row, i) depends on the row's seed and i alone."""
    start = _mixed(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64))
    bits = _mixed(start[:, None] + _STEP * np.arange(1, count + 1, dtype=np.uint64))
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mixed(
    bits: "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]":
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


def choose(logits: Tensor, how: Sampling | Greedy, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """One token per row, its log-prob under the distribution it was drawn from, and which tokens a cut left in it."""
    if isinstance(how, Greedy):
        return logits.argmax(-1), logits.new_zeros(len(logits)), None
    height = max(1, CHUNK_NUMBERS // logits.shape[-1])
    if len(logits) > height:  # a row's draw does not depend on the other rows
        parts = zip(logits.split(height), uniform.split(height), strict=True)
        chosen, logp, left = zip(*(choose(part, how, numbers) for part, numbers in parts), strict=True)
        return torch.cat(chosen), torch.cat(logp), torch.cat(left) if how.truncates else None
    logits = logits / how.temperature
    left = None
    if how.truncates:
        left = kept(logits, top_k=how.top_k, top_p=how.top_p)
        logits = logits.masked_fill(~left, -math.inf)
    logp = torch.log_softmax(logits, -1)
    chosen = drawn(logp, uniform)
    return chosen, logp.gather(-1, chosen[:, None])[:, 0], left


def drawn(logp: Tensor, uniform: Tensor) -> Tensor:
    """The first token at which the cumulative probability passes `uniform`.

    c_v = sum of exp(logp_j) over j <= v;  token = min { v : c_v > uniform * c_last }

    A token of probability zero is never chosen, because the sum does not grow there. `uniform` is below 1, so some
    token is always found.
    """
    cumulative = logp.double().exp_().cumsum(-1)
    passed = cumulative[:, -1:] * uniform[:, None]
    # If a logit is nan, nothing passes. The engine refuses that answer, so any token will do.
    return torch.searchsorted(cumulative, passed, right=True)[:, 0].clamp_max_(logp.shape[-1] - 1)


def kept(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Which tokens the cuts leave: the `top_k` likeliest, then of those the fewest that hold the share `top_p`.

    Of equally likely tokens the one with the lower id comes first. The likeliest is always left.
    """
    ranked, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    stays = torch.ones_like(ranked, dtype=torch.bool)
    if top_k > 0:
        stays[:, top_k:] = False
    if top_p < 1:
        share = torch.softmax(ranked.double().masked_fill(~stays, -math.inf), -1)
        stays &= share.cumsum(-1) - share < top_p
    stays &= ranked > -math.inf
    stays[:, 0] = True
    return torch.zeros_like(stays).scatter_(-1, order, stays)
