"""Tokens that the environment wrote: the only place that knows how many there are and what a term on them weighs.

They are no tokens of the batch: the policy did not choose them, so they have no ratio, no advantage and no vote. A term
on them is a stream of its own: the batch knows how many each sequence holds, `token_loss` gets their log-probs, and
their denominator is their own number in the whole optimiser step.
"""

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.fields import Field
from trimtab.signal.layout import PerToken, Scalar
from trimtab.signal.tensors import as_tensor, as_torch, is_plain
from trimtab.signal.update import OBSERVED, OBSERVED_SHARE, Slice


def observed_share(whole: Slice, dtype: torch.dtype) -> Field:
    """What the environment's tokens of each sequence weigh together: their share of all those of the update."""
    held = whole.fields.held(OBSERVED).values
    numbers = as_torch(held).to(dtype)
    total = numbers.sum()
    return Field(torch.where(total > 0, numbers / total, torch.zeros_like(numbers)), whole.segments, True)


def observed_term(part: Slice, logp_observed: PerToken) -> Scalar:
    """The mean negative log-likelihood of the environment's tokens, times coef: this micro-batch's part of it.

    -coef * sum_t logp_t / n,   n the environment's tokens of the whole update

    Differs from prime-rl's ECHO: it divides by its own tokens of the micro-batch, so its gradient depends on the split.
    """
    term = part.recipe.observed
    assert term is not None  # check_observed has looked
    counts, share = (as_torch(part.fields.held(name).values) for name in (OBSERVED, OBSERVED_SHARE))
    # Where a sequence holds none, 0 / 0 is repeated 0 times.
    each = (share / counts).to(logp_observed.dtype)
    weight = each.repeat_interleave(counts, output_size=logp_observed.shape[0])
    return -term.coef * (weight * logp_observed).sum()


def check_observed(part: Slice, given: Tensor | None) -> None:
    """The log-probs of the environment's tokens are there exactly where the recipe reads them, one for each token."""
    term = part.recipe.observed
    if term is None and given is None:
        return
    name = part.recipe.name
    if term is None or given is None:
        says = "was not given" if term is not None else "was given, and nothing reads it"
        raise SignalError(
            f"token_loss: recipe {name!r} has {'a' if term is not None else 'no'} term on the environment's tokens, "
            f"and logp_observed {says}. Give the log-probs where the recipe has `observed`, and only there."
        )
    values, counts = as_tensor(given, "token_loss: logp_observed"), as_torch(part.fields.held(OBSERVED).values)
    due = int(counts.sum()) if is_plain(counts) else values.shape[0]
    if values.ndim != 1 or values.shape[0] != due:
        raise SignalError(
            f"token_loss: logp_observed has shape {list(values.shape)} for {due} tokens of the environment, so numbers "
            "and tokens would not match. Give one number per token, sequence after sequence."
        )
