"""Known bugs of verl: rows, and bindings of statements that old commits had inside larger methods."""

from collections.abc import Mapping
from typing import Any

import torch

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.handed import Record, Settings
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.verl import TARGET
from trimtab.sentinel.targets.verl.source import ALGOS, FUNCTIONAL

REPOSITORY = "verl-project/verl"
ACTOR = "verl/workers/actor/dp_actor.py"


def of(name: str) -> Binding:
    """A binding of the ready target."""
    return next(binding for binding in TARGET.bindings if binding.name == name)


def _dual_clip(boundary: Boundary) -> Subject:
    returns = {
        "loss": at(0, "loss"),
        "lower": at(3, "metric", range=(0.0, 1.0), agreed=0.0, reduction="mean"),
    }
    return bind(boundary, role="policy_loss", options={"cliprange": 0.2, "clip_ratio_c": 3.0}, returns=returns)


def _data_metrics(boundary: Boundary) -> Subject:
    def read(case: Case) -> Any:
        if any("o" in row or not row or row[0] != "p" for row in case.kinds):
            raise case.cannot("a prompt and an answer, without tools: all of the answer trains")
        answer: dict[str, Any] = {"with_prompt": False}
        prompt = torch.ones(case.num_sequences, 1, dtype=torch.long)
        mask = case.padded("response", dtype=torch.long, **answer)
        batch = Record(
            token_level_scores=handed.reward_on_last(case), token_level_rewards=handed.reward_on_last(case),
            responses=case.padded("token_id", **answer), attention_mask=torch.cat([prompt, mask], 1),
            advantages=case.padded("advantage", **answer), returns=case.padded("returns", **answer),
            values=case.padded("value", **answer),
        )  # fmt: skip
        return boundary(Settings(batch=batch))

    names = {"advantages": "advantage", "returns": "returns", "values": "value"}
    returns = {
        f"{n}/{kind}": at((f"critic/{n}/{kind}",), "metric", of=field, reduction=kind, level="scalar")
        for n, field in names.items() for kind in ("max", "min")
    }  # fmt: skip
    return bind(read, role="metric", name=boundary.spec.name, args={"case": lambda c: c}, returns=returns)


def _kl_in_loss(boundary: Boundary) -> Subject:
    def loss(case: Case, kl_loss_coef: float) -> Any:
        view: dict[str, Any] = {"with_prompt": False}
        logp = case.padded("logp_current", **view)
        config = Settings(kl_loss_type="mse", kl_loss_coef=kl_loss_coef)
        return boundary(
            self=Settings(config=config), log_prob=logp, ref_log_prob=case.padded("logp_ref", **view),
            response_mask=case.padded("trainable", **view), policy_loss=0.0 * logp.sum(), metrics={},
        )["policy_loss"]  # fmt: skip

    return bind(loss, role="kl_in_loss", name="update_policy: KL loss", args={"case": lambda c: c},
                options={"kl_loss_coef": 0.1}, penalties={"kl_loss_coef": "logp_ref"})  # fmt: skip


def _accumulation(boundary: Boundary) -> Subject:
    """Two micro-batches of unequal size under dynamic batching, each a mean over its sequences."""

    def call(case: Case, _: Mapping[str, Any]) -> Out:
        mask = case.padded("trainable", with_prompt=False)
        by_row = (case.padded("token_loss", with_prompt=False) * mask).sum(1) / mask.sum(1).clamp(min=1)
        whole = case.whole.num_sequences
        config = Settings(use_dynamic_bsz=True, ppo_mini_batch_size=whole, ppo_micro_batch_size_per_gpu=1)
        own = Settings(config=config, gradient_accumulation=whole)
        found = boundary(self=own, policy_loss=by_row.mean(), data=list(range(case.num_sequences)))
        return {"loss": Result.scalar(found["loss"], "loss")}

    return Subject("update_policy: accumulation", call, combine="sum", boundary=boundary)


def _temperature(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        logits = case.packed("logits")
        heat = torch.full((logits.shape[0],), float(chosen["temperature"]))
        found = boundary(logits_rmpad=logits.detach()[None].squeeze(0), temperature_rmpad=heat, DTensor=Settings)
        scaled = found["logits_rmpad"].log_softmax(-1).gather(-1, case.packed("token_id")[:, None]).squeeze(-1)
        return {"logp": Result.token(case, scaled, "logp", layout="packed")}

    return Subject("forward_step: temperature", call, options={"temperature": 0.7}, couples="token", boundary=boundary)


def _end_mask(boundary: Boundary) -> Subject:
    def mask(case: Case) -> Any:
        ids = handed.ending_ids(case)
        try:
            return boundary(ids, list(case.eos_ids))
        except TypeError:  # it takes only one id, and the caller passes that of the tokenizer
            return boundary(ids, case.eos_ids[0])

    return bind(mask, role="response_mask", name=boundary.spec.name, args={"case": lambda c: c})


def _sft_mask(boundary: Boundary) -> Subject:
    """The mask for the labels input_ids[:, 1:]. Instead of a mask, it holds numbers that name their token."""

    def call(case: Case, _: Mapping[str, Any]) -> Out:
        coded = case.padded("logp_old", side="right")
        if coded.shape[1] < 2:
            raise case.cannot("a sequence has two tokens")
        flat = boundary(self=Settings(device_name="cpu"), batch={"loss_mask": coded})["loss_mask"]
        rows = flat.reshape(coded.shape[0], coded.shape[1] - 1)
        return {"mask": Result.token(case, rows, "carried", of="logp_old", side="right", drop_first=True)}

    return Subject("_compute_loss_and_backward: mask", call, boundary=boundary)


def _cut(name: str, file: str, make: Any, **cut: Any) -> Binding:
    return Binding(name, (Spec(name, file=file, **cut),), make)


UPDATE = "DataParallelPPOActor.update_policy"
ENGINE = "verl/workers/engine/fsdp/transformer_impl.py"
SFT = "verl/trainer/fsdp_sft_trainer.py"


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: Binding, note: str = ""
) -> Row:
    return Row(name, "verl", REPOSITORY, buggy, fixed, invariants, binding, note)


ROWS: list[Row] = [
    _row("VERL-AGG-SUM", "7fc8330d9", "4d722b176", ("equals_definition",), of("agg_loss")),
    _row("VERL-RFPPB-MASK", "6de40fcdf", "4e9586a3a", ("mask_content",),
         of("compute_reinforce_plus_plus_baseline_outcome_advantage")),
    _row("VERL-MASKED-NAN", "891c87382", "5cbad8379", ("nonfinite_isolation",), of("masked_mean")),
    _row("VERL-EMPTY-MASK", "a1dd9224b", "e9bcd2ba0", ("degenerate_bounded",), of("masked_mean")),
    _row("VERL-CLIPFRAC-LOWER", "fa23b696d", "88db55407", ("metric_reach",), _cut("compute_policy_loss", ALGOS,
        _dual_clip)),
    _row("VERL-RFPP-OBS", "f773c96a7", "8a1bf6d5b", ("credit_over_trainable",),
         of("compute_reinforce_plus_plus_outcome_advantage")),
    _row("VERL-METRIC-INTIDX", "99d2c19b0", "d46eb7d80", ("metric_truth", "mask_content"),
         _cut("compute_data_metrics", "verl/trainer/ppo/ray_trainer.py", _data_metrics)),
    _row("VERL-KL-SIGN", "38ac52554", "a65c9157b", ("penalty_direction",),
         _cut(UPDATE, ACTOR, _kl_in_loss, first="kld = core_algos.kl_penalty", last="policy_loss = policy_loss",
              results=("policy_loss",))),
    _row("VERL-DYNBSZ", "78a4606d8", "695bdbb03", ("split",), Binding("accumulation", (
        Spec(UPDATE, file=ACTOR, first="if self.config.use_dynamic_bsz: # relative",
            last="if self.config.use_dynamic_bsz: # relative",
             results=("loss",)),
        Spec(UPDATE, file=ACTOR, first="if self.config.use_dynamic_bsz: loss",
            last="if self.config.use_dynamic_bsz: loss",
             results=("loss",)),
        Spec(UPDATE, file=ACTOR, first="loss = policy_loss / self.gradient_accumulation", results=("loss",))),
            _accumulation)),
    _row("VERL-DIV-INPLACE", "90d6a667f", "51504d849", ("no_aliasing",), Binding("temperature", (
        Spec("FSDPEngineWithLMHead.prepare_model_outputs", file=ENGINE, first="logits_rmpad.div_(temperature_rmpad",
            results=("logits_rmpad",)),
        Spec("FSDPEngineWithLMHead.prepare_model_outputs", file=ENGINE,
            first="logits_rmpad = logits_rmpad / temperature_rmpad",
             results=("logits_rmpad",))), _temperature)),
    _row("VERL-MULTI-EOS", "27484a7bb", "3140cc2f9", ("eos_semantics",), _cut("get_eos_mask", FUNCTIONAL, _end_mask)),
    _row("VERL-SFT-SHIFT", "02e06fa2e", "2d6c6dbb3", ("alignment",),
         _cut("FSDPSFTTrainer._compute_loss_and_backward", SFT, _sft_mask, first="loss_mask = batch.pop",
             results=("loss_mask",))),
    _row("HEAD-VERL-GEOMEAN-MICRO", "1dda039b9", None, ("split",), of("compute_policy_loss_geo_mean")),
    _row("HEAD-VERL-AGG-SEQNAN", "1dda039b9", None, ("nonfinite_isolation",), of("agg_loss")),
]  # fmt: skip
