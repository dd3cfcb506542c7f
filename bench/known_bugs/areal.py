"""Known bugs of AReaL: rows, and bindings of statements that old commits had inside larger methods."""

from collections.abc import Mapping
from typing import Any

import torch

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import average, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.areal import TARGET
from trimtab.sentinel.targets.areal.source import ACTOR
from trimtab.sentinel.targets.stand_in import Settings
from trimtab.sentinel.targets.target import Binding

REPOSITORY = "areal-project/AReaL"


def of(name: str) -> Binding:
    """A binding of the ready target."""
    return next(binding for binding in TARGET.bindings if binding.name == name)


class _Engine:
    """An engine whose model gives the case's logits."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    def eval(self) -> None:
        pass

    def forward(self, input_: Any, post_hook: Any, aggregate_fn: Any) -> Any:
        return aggregate_fn([post_hook(self.logits, input_)])


def _logp(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        if any(not row or row[0] != "p" for row in case.kinds):
            raise case.cannot("a sequence starts with its prompt")
        shifted = torch.roll(case.packed("logits"), -1, 0)
        actor = boundary.made(engine=_Engine(shifted), temperature=chosen["temperature"], config=Settings(**chosen))
        found = boundary(actor, {"input_ids": case.packed("token_id")})
        return {"logp": Result.token(case, torch.roll(found, 1, 0), "logp", layout="packed")}

    return Subject(
        "PPOActor.compute_logp", call, options={"temperature": 0.7}, couples="token", boundary=boundary,
        definition=scored(temperature="temperature", names=("logp",)),
    )  # fmt: skip


def _accumulation(boundary: Boundary) -> Subject:
    """The loss value at the optimiser with one micro-batch per sequence; Megatron's schedule divides it again."""

    def call(case: Case, _: Mapping[str, Any]) -> Out:
        own = Settings(optimizer=Settings(get_loss_scale=lambda: torch.tensor(1.0)))
        groups = Settings(get_data_parallel_world_size=lambda: 1)
        parts = list(range(case.num_sequences))
        factor = boundary(self=own, mpu=groups, mb_list=parts)["loss_multiplier"]
        total = case.flat("token_loss").sum() / max(case.segments.num_tokens, 1)
        return {"loss": Result.scalar(total * factor / max(len(parts), 1), "loss")}

    return Subject("MegatronEngine.train_batch: multiplier", call, boundary=boundary, definition=average("token_mean"))


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: Binding, note: str = ""
) -> Row:
    return Row(name, "areal", REPOSITORY, buggy, fixed, invariants, binding, note)


MEGATRON = "areal/engine/megatron_engine.py"
ROWS: list[Row] = [
    _row("AREAL-NORM-VARGROUP", "a315ea97d", "bbc10f0e9", ("group_isolation", "sample_isolation"), of("Normalization")),
    _row("AREAL-LOGP-TEMP", "d78f6282a", "abc85aba2", ("temperature_consistency", "equals_definition"),
         Binding("compute_logp", tuple(Spec("PPOActor.compute_logp", file=file) for file in ACTOR), _logp,
                 lambda: {"is_npu_available": True})),
    _row("AREAL-MCORE-MB", "b4387877b", "5e9fb505c", ("equals_definition",), Binding("multiplier", (
        Spec("MegatronEngine.train_batch", file=MEGATRON, first="loss_multiplier = (", results=("loss_multiplier",)),),
        _accumulation)),
    _row("HEAD-AREAL-NOEOS", "cbff54d64", None, ("suppressed_do_not_vote",), of("_compute_advantages")),
]  # fmt: skip
