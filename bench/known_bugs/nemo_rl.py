"""Known bugs of NeMo-RL; statements of its trainers are cut out where they never were a function."""

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.tensor  # the loss asks whether its logits are distributed

from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.nemo_rl import GRPO, LOSSES, TARGET, rollout_metrics
from trimtab.sentinel.targets.nemo_rl.loss import CLIPPED, counts, data, given
from trimtab.sentinel.targets.stand_in import by_group
from trimtab.sentinel.targets.target import Binding

_BOUND = {binding.name: binding for binding in TARGET.bindings}


def leave_one_out(fn: Boundary) -> Subject:
    """Advantages relative to the other samples of the group, over their spread."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward = case.sequence("reward")
        centred, spread = torch.zeros_like(reward), torch.zeros_like(reward)
        for rows in by_group(case):
            for i in rows:
                others = torch.stack([reward[j] for j in rows if j != i]) if len(rows) > 1 else reward[i : i + 1]
                centred[i] = reward[i] - others.mean()
                spread[i] = others.std() if len(others) > 1 else 0.0
        found = fn(centred[:, None], spread)
        return {"advantage": Result.sequence(found[:, 0], "advantage")}

    return Subject("normalize_advantages_with_epsilon", call, couples="group", role="reward_normalisation")


def at_temperature(fn: Boundary) -> Subject:
    """The log-probs that the loss sees, from the model's logits."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        logits = torch.roll(case.packed("logits"), -1, 0).clone()
        seen: list[Any] = []
        worker = SimpleNamespace(cfg={"generation": dict(options)})
        fn(
            self=worker, outputs=SimpleNamespace(logits=logits), mb={},
            loss_fn=lambda given, _: (seen.append(given), (given.sum(), {}))[1],
        )  # fmt: skip
        ids = case.packed("token_id")
        scores = torch.roll(torch.log_softmax(seen[0], -1), 1, 0).gather(-1, ids[:, None]).squeeze(-1)
        return {"logp": Result(scores[case.trainable], "token", "logp")}

    return Subject(
        "train (logits to loss)", call, options={"temperature": 1.0}, couples="token", role="logp",
        definition=scored(temperature="temperature", names=("logp",)), variants={"temperature": (0.5,)},
    )  # fmt: skip


class LossPostProcessor:
    """Stands for the class that the forward pass tells apart by type; notes the logits it is handed."""

    enable_seq_packing = False

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, logits: Any, **_: Any) -> Any:
        self.seen.append(logits)
        return logits.sum(), {}


class _Other:
    """Stands for the other post-processors."""


def post_processors() -> dict[str, object]:
    """The classes and the forward pass of the automodel path."""
    return {
        "LossPostProcessor": LossPostProcessor, "LogprobsPostProcessor": _Other, "TopkLogitsPostProcessor": _Other,
        "ScorePostProcessor": _Other, "model_forward": lambda model, *_, **__: model,
        "extract_logits": lambda model, outputs: outputs,
    }  # fmt: skip


def forwarded(fn: Boundary) -> Subject:
    """The log-probs that the loss post-processor sees."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        logits = torch.roll(case.packed("logits"), -1, 0).clone()[None]
        loss = LossPostProcessor()
        batch = SimpleNamespace(data_dict={"input_lengths": None}, processed_inputs=None)
        fn(logits, {"generation": {"top_p": 1.0, "top_k": None, **options}}, loss, batch)
        ids = case.packed("token_id")
        scores = torch.roll(torch.log_softmax(loss.seen[0][0], -1), 1, 0).gather(-1, ids[:, None]).squeeze(-1)
        return {"logp": Result(scores[case.trainable], "token", "logp")}

    return Subject(
        "forward_with_post_processing_fn", call, options={"temperature": 1.0}, couples="token", role="logp",
        definition=scored(temperature="temperature", names=("logp",)),
    )  # fmt: skip


def two_batches(fn: Boundary) -> Subject:
    """A maximum and a sum of one of two global batches, as they are logged."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward: list[float] = case.sequence("reward").tolist()
        metrics = {"ratio_max": max(reward), "ratio_min": min(reward), "loss": sum(reward)}
        fn(loss_metrics=metrics, num_global_batches=2)
        facts: dict[str, Any] = {"of": "reward", "population": "sequence"}
        return {
            "max": Result.scalar(metrics["ratio_max"], "metric", reduction="max", **facts),
            "min": Result.scalar(metrics["ratio_min"], "metric", reduction="min", **facts),
        }

    return Subject("train (metrics of a global batch)", call, role="metric", couples="batch")


class Ids(torch.Tensor):
    """Token ids whose `to` does nothing: the loss sends them to another device."""

    def cuda(self, *_: Any, **__: Any) -> "Ids":
        return self


def from_logits(fn: Boundary) -> Subject:
    """The loss of a micro-batch from logits; the trainer averages micro-batches unless it passes global counts."""
    told = "total_valid_tokens_or_seqs" in inspect.signature(fn.function.__call__).parameters

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if not bool(case.trainable.any()):
            raise case.cannot("a micro-batch has something to train on")
        config = fn.get("ClippedPGLossConfig")(**{**CLIPPED, "token_level_loss": True})
        names = {"advantages": "advantage", "prev_logprobs": "logp_old", "generation_logprobs": "logp_rollout",
                 "reference_policy_logprobs": "logp_ref"}  # fmt: skip
        batch = data(case, **names)
        ids = torch.cat([torch.zeros(case.num_sequences, 1).long(), case.padded("token_id")], 1)
        batch["input_ids"] = ids.as_subclass(Ids)
        logits = case.padded("logits")
        logits = torch.cat([logits, torch.zeros_like(logits[:, :1])], 1)
        loss, _ = fn.function(config)(logits, batch, *([counts(case)["global_valid_toks"]] if told else []))
        # It scores logits in float32 and adds 1e-8 to its counts: finer differences than that say nothing.
        return {"loss": Result.scalar(loss.as_subclass(torch.Tensor).float(), "loss")}

    return Subject("ClippedPGLossFn", call, combine="sum" if told else "mean", role="policy_loss")


def _row(name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: Binding, **judged: Any) -> Row:
    return Row(name, "nemo_rl", TARGET.repository, buggy, fixed, invariants, binding, **judged)


LOCAL_COUNT = (
    "nemo_rl/algorithms/loss/loss_functions.py:641, from ppo.py:1294: in PPO with positive_example_nll_weight > 0, the "
    "likelihood of correct answers is divided by the count of the micro-batch, and the losses are summed"
)
LOGGED_RATIO = (
    "nemo_rl/algorithms/loss/loss_functions.py:654, from grpo.py:2650: with disable_ppo_ratio and without "
    "force_on_policy_ratio, `ratios` holds log-probs, and their mean is logged as probs_ratio"
)
"""Judged real at the repair of another bug, and confirmed by somebody who did not write the bindings: where, and what
reaches it."""


WORKER = "nemo_rl/models/policy/dtensor_policy_worker.py"
ROWS = [
    _row("NEMO-KL-GRAD", "2369c0aec", "33bce20d7", ("expected_gradient",), _BOUND["ClippedPGLossFn"],
         real={"metric_truth": LOGGED_RATIO, "sample_isolation": LOCAL_COUNT, "group_isolation": LOCAL_COUNT,
               "split": LOCAL_COUNT}),
    _row("NEMO-LOO-EXPLODE", "74b9b1789", "775fc3486", ("degenerate_bounded",),
         Binding("normalize_advantages_with_epsilon", (Spec("normalize_advantages_with_epsilon", file=GRPO),),
                 leave_one_out)),
    _row("NEMO-TEMP", "3f0c7d128", "4e02da031", ("temperature_consistency", "options_live"),
         Binding("train", (Spec("DTensorPolicyWorker.train", file=WORKER, first='if not hasattr(outputs, "logits")',
                                last="loss, loss_metrics = loss_fn(logits, mb)"),), at_temperature)),
    _row("NEMO-TEMP-V2", "87a98fcab", "ed718b47d", ("temperature_consistency",),
         Binding("forward", (Spec("forward_with_post_processing_fn", file="nemo_rl/models/automodel/train.py"),),
                 forwarded, given=post_processors)),
    _row("NEMO-MINMAX", "a572aab7d", "0eb5fffec", ("metric_truth",),
         Binding("train", (Spec("DTensorPolicyWorker.train",
                                file="nemo_rl/models/policy/workers/dtensor_policy_worker.py",
                                first="for k in loss_metrics.keys()", last="for k in loss_metrics.keys()"),),
                 two_batches)),
    _row("NEMO-ROLLOUT-METRIC", "b60356812", "501cd12ce", ("metric_truth",),
         Binding("aggregate_rollout_metrics",
                 (Spec("aggregate_rollout_metrics", file=GRPO),
                  Spec("async_grpo_train", file=GRPO, first="rollout_metrics = { k: (sum(v)",
                       last="rollout_metrics = { k: (sum(v)", results=("rollout_metrics",))), rollout_metrics)),
    _row("NEMO-MB-ACC", "bb75f66a5", "af9f6e861", ("split",),
         Binding("ClippedPGLossFn", (Spec("ClippedPGLossFn", file=LOSSES[1]),), from_logits, given=given)),
]  # fmt: skip
