"""Known bugs of open-instruct."""

from collections.abc import Mapping
from typing import Any

import torch

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.open_instruct import TARGET
from trimtab.sentinel.targets.stand_in import Alone, Settings
from trimtab.sentinel.targets.target import Binding

_BOUND = {binding.name: binding for binding in TARGET.bindings}


def accumulated(fn: Boundary) -> Subject:
    """The loss of one of two micro-batches, as backward gets it."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        values, mask = case.padded("token_loss"), case.padded("trainable", dtype=torch.bool)
        parts = 1 if case.within is None else 2
        if parts == 2 and not bool(case.trainable.any()):
            raise case.cannot("a micro-batch has something to train on")
        found = fn(
            pg_loss_max=values, mb_response_masks_bool=mask, args=Settings(load_ref_policy=False),
            accumulation_steps=parts, loss_denominator=float(case.whole.segments.num_tokens),
        )  # fmt: skip
        return {"loss": Result.scalar(found["loss"], "loss")}

    return Subject("train (loss to backward)", call, combine="sum", role="aggregation")


KL_TERM = "if args.load_ref_policy: mb_ref_logprob = collated_ref_logprobs[i] # Here we recalculate kl"
ROWS = [
    Row("HEAD-OI-WHEREGRAD", "open_instruct", TARGET.repository, "e6c3044aa", None, ("degenerate_bounded",),
        _BOUND["masked_mean"]),
    Row("OI-DENOM", "open_instruct", TARGET.repository, "c4c1b1c8f", "7708f0adf", ("split",),
        Binding("train", (
            Spec("PolicyTrainerRayProcess.train", file="open_instruct/grpo_fast.py", results=("loss",),
                 first=KL_TERM, last="loss = loss / accumulation_steps"),
            Spec("PolicyTrainerRayProcess.train", file="open_instruct/grpo_fast.py", results=("loss",),
                 first=KL_TERM, last="loss *= dist.get_world_size()")),
            accumulated, given=lambda: {"dist": Alone()})),
]  # fmt: skip
