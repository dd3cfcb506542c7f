"""Trimtab keeps the training signal of LLM reinforcement learning true.

    loss, metrics = trimtab.loss(logp, recipe="dapo", logp_old=…, reward=…, group=…, mask=…)

`trimtab.signal` is the library, `trimtab.sentinel` holds functions to invariants, `trimtab.train` trains.
"""

from trimtab import signal
from trimtab.signal import (
    KL,
    Counts,
    Recipe,
    SignalBatch,
    Stage,
    Term,
    catalog,
    count,
    decide,
    formula,
    logp,
    logp_and_entropy,
    logp_from_hidden,
    loss,
    part,
    prepare,
    recipe,
    step,
    token_loss,
)

__version__ = "0.1.0"

__all__ = [
    "KL",
    "Counts",
    "Recipe",
    "SignalBatch",
    "Stage",
    "Term",
    "catalog",
    "count",
    "decide",
    "formula",
    "logp",
    "logp_and_entropy",
    "logp_from_hidden",
    "loss",
    "part",
    "prepare",
    "recipe",
    "signal",
    "step",
    "token_loss",
]
