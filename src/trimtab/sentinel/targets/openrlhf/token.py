"""OpenRLHF: masked statistics, log-probs and entropies."""

from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, scored
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.openrlhf.source import (
    UTILS,
    found_in,
)
from trimtab.sentinel.targets.target import Binding


def _masked_mean(boundary: Boundary) -> Subject:
    returns = {"mean": at((), "statistic", level="scalar", of="token_loss", reduction="mean")}
    return bind(
        boundary,
        role="statistic",
        args={"tensor": "token_loss", "mask": "trainable"},
        returns=returns,
        definition=average("token_mean", result="mean"),
    )


def _masked_normalize(boundary: Boundary) -> Subject:
    return bind(
        torch.no_grad()(boundary),
        role="whitening",
        name=boundary.spec.name,
        couples="sequence",
        args={"tensor": "advantage", "mask": "trainable"},
    )


def _logp(boundary: Boundary) -> Subject:
    def score(case: Case, temperature: float) -> Any:
        # The caller passes the output of a model and does not read it again, so dividing it in place is harmless.
        return boundary(
            case.padded("logits", side="right").clone(), case.padded("token_id", side="right"), temperature=temperature
        )

    return bind(
        score,
        role="logp",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        view={"with_prompt": True, "side": "right"},
        options={"temperature": 0.7},
        definition=scored(temperature="temperature", names=("logp",)),
        returns={"logp": at((), "logp", level="token")},
        variants={"temperature": (1.0,)},
    )


def _entropy(boundary: Boundary) -> Subject:
    return bind(
        boundary,
        role="entropy",
        args={"logits": "logits"},
        definition=scored(names=("entropy",)),
        returns={"entropy": at((), "entropy", level="token")},
    )


BINDINGS: tuple[Binding, ...] = (
    found_in(UTILS, "masked_mean", _masked_mean),
    found_in(UTILS, "masked_normalize", _masked_normalize),
    found_in(UTILS, "log_probs_from_logits", _logp),
    found_in(UTILS, "compute_entropy", _entropy),
)
