"""Sources of episodes: the only place that measures how sampler and trainer differ for each of them.

A source is what the caller numbers: an environment, a data set, a kind of task. Nothing else reads it.
"""

from typing import cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.metric_kind import Mean, Metric
from trimtab.signal.reduce import LOG_BOUND, segment_sum

MOST_SOURCES = 64
"""Each source has metrics of its own at every step: more of them are no longer read, and are likely to be episodes."""


def by_source(batch: SignalBatch) -> dict[str, Metric]:
    """Mean |log-ratio| and k3 of trainer and sampler, over all trainable tokens of each source; d = old - rollout."""
    if batch.source is None or batch.logp_old is None or batch.logp_rollout is None:
        return {}
    found, place = cast("tuple[Tensor, Tensor]", torch.unique(batch.source, return_inverse=True))
    names = cast("list[int]", found.tolist())
    if len(names) > MOST_SOURCES:
        raise SignalError(
            f"prepare: source names {len(names)} different sources, and at most {MOST_SOURCES} have metrics of their "
            "own, so nobody would read them all. Number environments or data sets, not prompts or episodes."
        )
    of_token = place.index_select(0, batch.levels.episode_of_token)
    apart = batch.logp_old.double() - batch.logp_rollout
    k3 = torch.expm1(apart.clamp(-LOG_BOUND, LOG_BOUND)) - apart
    far, moved, tokens = (
        cast("list[float]", segment_sum(one, of_token, len(names)).tolist())
        for one in (apart.abs(), k3, torch.ones_like(apart))
    )
    entries: dict[str, Metric] = {}
    for name, distance, divergence, count in zip(names, far, moved, tokens, strict=True):
        entries[f"logratio_engine_source_{name}/token_abs_mean"] = Mean(distance, count)
        entries[f"k3_engine_source_{name}/token_mean"] = Mean(divergence, count)
    return entries
