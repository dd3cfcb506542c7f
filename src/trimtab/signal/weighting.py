"""Weights: each token's share in the loss. The only place where a denominator lives.

A weighting sees the whole update once and returns one number per token; the loss is their weighted sum, so it does not
matter how the update is split afterwards. `over = "all"` counts every token of the sequences that train (rejection
shrinks the step), `over = "kept"` only those a correction kept. A token that is not kept weighs 0 either way.
"""

from typing import Literal

import torch

from trimtab.errors import SignalError
from trimtab.signal.catalogue import Positive, formula
from trimtab.signal.group import renumbered
from trimtab.signal.layout import Keep, PerToken, Segments, TokenIndex, places
from trimtab.signal.reduce import segment_sum, sequence_any, sequence_count, to_tokens

Over = Literal["all", "kept"]
By = Literal["weights", "tokens"]

OWNERS = ("episode_of_token", "group_of_token")
"""What only weightings read: nobody needs it once an update has its weights."""

_PROMISES = ("no_aliasing", "permutation", "equals_definition")


@formula(
    source="Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 8", scope="update", promises=_PROMISES, divides_by="tokens"
)
def token_mean(advantage: PerToken, keep: Keep, *, over: Over = "all") -> PerToken:
    """Every token weighs the same; the weights sum to one over the population.

    w_t = 1 / number of tokens
    """
    count = keep.sum() if over == "kept" else keep.shape[0]
    return _where_kept(torch.ones_like(advantage) / count, keep)


@formula(
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3",
    scope="update",
    promises=_PROMISES,
    divides_by="sequences",
)
def sequence_mean_token_mean(advantage: PerToken, keep: Keep, segments: Segments, *, over: Over = "all") -> PerToken:
    """Every sequence weighs the same, shared evenly by its tokens; the weights sum to one over the population.

    w_t = 1 / (number of sequences * tokens of t's sequence)
    """
    counted = _population(keep, over)
    tokens = sequence_count(counted, segments, advantage)
    return _where_kept(1 / (to_tokens(tokens, segments) * _sequences(counted, segments)), keep)


@formula(
    source="Ahmadian et al. 2024, RLOO, arXiv:2402.14740: a sequence's log-prob is a sum",
    scope="update",
    promises=_PROMISES,
    divides_by="sequences",
)
def sequence_mean_token_sum(advantage: PerToken, keep: Keep, segments: Segments, *, over: Over = "all") -> PerToken:
    """Tokens add up inside a sequence, sequences are averaged; the weights sum to the mean number of tokens.

    w_t = 1 / number of sequences
    """
    return _where_kept(torch.ones_like(advantage) / _sequences(_population(keep, over), segments), keep)


@formula(
    source="Liu et al. 2025, Dr.GRPO, arXiv:2503.20783, sec. 3.2",
    scope="update",
    promises=_PROMISES,
    divides_by="sequences",
    known_as=("Dr.GRPO",),
)
def constant_divisor(
    advantage: PerToken, keep: Keep, segments: Segments, *, divisor: Positive, over: Over = "all"
) -> PerToken:
    """As sequence_mean_token_sum, over a constant; the weights sum to the mean number of tokens / divisor.

    w_t = 1 / (number of sequences * divisor)

    Settings in use: Dr.GRPO divides by the maximum completion length; it must not change during a run.
    """
    return sequence_mean_token_sum(advantage, keep, segments, over=over) / divisor


@formula(
    source="Williams 1992, REINFORCE, Machine Learning 8, sec. 4: the gradient of a trajectory is a sum over its steps",
    scope="update",
    promises=_PROMISES,
    divides_by="nothing",
)
def token_sum(advantage: PerToken, keep: Keep) -> PerToken:
    """Every token weighs 1; the weights sum to the number of kept tokens.

    w_t = 1

    For a caller who divides: SkyRL and prime-rl scale advantages or the loss themselves. The step grows with the batch.
    """
    return _where_kept(torch.ones_like(advantage), keep)


@formula(
    source="Khatri et al. 2025, ScaleRL, arXiv:2510.13786: prompt-level loss aggregation",
    scope="update",
    promises=_PROMISES,
    known_as=("ScaleRL prompt mean",),
)
def prompt_mean(advantage: PerToken, keep: Keep, group_of_token: TokenIndex, *, over: Over = "all") -> PerToken:
    """Every prompt weighs the same, shared evenly by the tokens of all its answers; the weights sum to one.

    w_t = 1 / (number of groups * tokens of t's group)

    A group must not be spread over optimiser steps, or it would count in each: `updates` keeps groups together.
    """
    return _mean_of(advantage, keep, group_of_token, over)


@formula(
    source="slime, per-rollout mean over all segments of a sample (rollout_mask_sums)",
    scope="update",
    promises=_PROMISES,
)
def episode_mean(advantage: PerToken, keep: Keep, episode_of_token: TokenIndex, *, over: Over = "all") -> PerToken:
    """Every episode weighs the same, shared evenly by the tokens of all its sequences; the weights sum to one.

    w_t = 1 / (number of episodes * tokens of t's episode)

    Where every episode is one sequence it is sequence_mean_token_mean.
    """
    return _mean_of(advantage, keep, episode_of_token, over)


@formula(
    source="prime-rl, loss weights per token (tokens); ROLL, sample weights (weights)",
    scope="update",
    promises=_PROMISES,
)
def given_weight(
    advantage: PerToken, keep: Keep, weight: PerToken, *, by: By = "weights", over: Over = "all"
) -> PerToken:
    """The caller's own weight of each token, `extra["weight"]`, over the sum of the weights or the number of tokens.

    w_t = weight_t / (sum of the weights, or number of tokens)

    For difficulty, length or any other importance of a sample. by = "weights" sums to one, whatever the weights' scale.
    Differs from ROLL: the mean weight is 1 over the update, not over a micro-batch.
    Undefined where a weight is below 0.
    """
    below = places(weight < 0)
    if below:
        raise SignalError(
            f"given_weight: weight is {float(weight[below[0]].detach()):g} at token {below[0]}, so that token would "
            "train the wrong way. Give weights of 0 or more."
        )
    counted = _population(keep, over)
    shares = weight if by == "weights" else torch.ones_like(weight)
    total = torch.where(counted, shares, torch.zeros_like(shares)).sum()
    return _where_kept(weight.to(advantage.dtype) / torch.where(total > 0, total, torch.ones_like(total)), keep)


def _mean_of(advantage: PerToken, keep: Keep, unit: TokenIndex, over: Over) -> PerToken:
    """Every unit weighs the same, shared evenly by its tokens."""
    place, count = renumbered(unit)
    tokens = segment_sum(_population(keep, over).to(advantage.dtype), place, count)
    return _where_kept(1 / (tokens[place] * (tokens > 0).sum()), keep)


def _population(keep: Keep, over: Over) -> Keep:
    return keep if over == "kept" else torch.ones_like(keep)


def _sequences(counted: Keep, segments: Segments) -> torch.Tensor:
    return sequence_any(counted, segments).sum()


def _where_kept(weight: PerToken, keep: Keep) -> PerToken:
    return torch.where(keep, weight, torch.zeros_like(weight))
