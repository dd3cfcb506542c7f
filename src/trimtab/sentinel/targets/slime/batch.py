"""Functions of slime on a whole training batch: stored advantages, and losses in the form that Megatron expects."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.stand_in import Alone, OneProcess, Settings, answers

MICRO_BATCHES = 2
"""The number of micro-batches that the trainer reports. Megatron divides by it, so it must not matter."""


FINITE = "log-probs of every response token come from the model, and nothing is padded"


def stored(case: Case, **fields: str) -> dict[str, Any]:
    """A rollout batch as the trainer stores it, with copies of these fields."""
    return {
        **{name: [v.clone() for v in case.list(own, with_prompt=False)] for name, own in fields.items()},
        "loss_masks": case.list("trainable", with_prompt=False), "response_lengths": case.response_lengths,
        "total_lengths": case.lengths, "unconcat_tokens": None,
    }  # fmt: skip


def estimated(fn: Boundary) -> list[Subject]:
    """Advantages, returns and the KL that is logged, for every estimator."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        estimator = options["advantage_estimator"]
        if estimator == "reinforce_plus_plus" and any("a" not in kinds for kinds in case.kinds):
            raise case.cannot("it refuses a sequence that is fully masked")
        values = {"values": "value_old"} if estimator == "ppo" else {}
        batch = stored(case, log_probs="logp_old", ref_log_probs="logp_ref", **values)
        batch["rewards"] = case.sequence("outcome").tolist()
        fn(Settings(kl_loss_type="k1", gamma=1.0, lambd=0.95, **options), batch)
        kind = "return" if estimator in ("ppo", "reinforce_plus_plus") else "advantage"
        return {
            "advantage": answers(case, batch["advantages"], "advantage"),
            "returns": answers(case, batch["returns"], kind),
            "kl": answers(case, batch["kl"], "kl", of=raw_kl),
        }

    estimators = ("grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo")
    return [
        Subject(
            "compute_advantages_and_returns", call, options={"advantage_estimator": e, "kl_coef": 0.05}, role="returns",
            penalties={"kl_coef": "logp_ref"}, variants={} if e == "grpo" else {"kl_coef": (0.1,)},
            waived={"nonfinite_isolation": FINITE},
        )
        for e in estimators
    ]  # fmt: skip


def raw_kl(case: Case) -> Tensor:
    """k1 of the old policy against the reference."""
    return case.flat("logp_old") - case.flat("logp_ref")


class Scored(dict[str, Any]):
    """The return value of scoring: a mapping, or in some versions a pair whose second entry is the mapping."""

    def __iter__(self) -> Any:
        return iter((None, self))


def scored_already(logits: Any, *, args: Settings, **_: Any) -> Scored:
    """A stand-in for the head of the model: numbers of the case."""
    return Scored(log_probs=args.case_logp, entropy=args.case_entropy, values=args.case_values)


def given() -> dict[str, object]:
    """One process, with numbers of the case instead of log-probs or values from logits."""
    return {
        "mpu": OneProcess(), "dist": Alone(), "get_log_probs_and_entropy": scored_already, "get_values": scored_already,
        "load_function": lambda path: path,
    }  # fmt: skip


POLICY: dict[str, Any] = {
    "advantage_estimator": "grpo", "eps_clip": 0.2, "eps_clip_high": 0.28, "eps_clip_c": None, "entropy_coef": 0.0,
    "use_kl_loss": False, "kl_loss_coef": 0.0, "kl_loss_type": "k3", "use_opsm": False, "opsm_delta": 0.1,
    "use_tis": False, "tis_clip_low": 0.5, "tis_clip": 2.0, "calculate_per_token_loss": False,
}  # fmt: skip


def scaled(
    fn: Boundary, case: Case, options: Mapping[str, Any], kind: str, batch: dict[str, Any]
) -> tuple[Tensor, Mapping[str, Any]]:
    """The loss value at the optimiser, and the logged numbers."""
    whole, per_token = case.whole, options.get("calculate_per_token_loss")
    args = Settings(
        loss_type=kind, global_batch_size=whole.num_sequences, rollout_top_p=1.0, qkv_format="thd",
        use_dynamic_global_batch_size=False, **options,
    )  # fmt: skip
    for name in ("case_logp", "case_entropy", "case_values"):
        setattr(args, name, batch.get(name))
    batch["rollout_mask_sums"] = [mask.sum() for mask in batch["loss_masks"]]
    taken = inspect.signature(fn.function).parameters
    counts = {"step_global_batch_size": whole.num_sequences, "num_rollouts": whole.num_sequences}
    told = {name: value for name, value in counts.items() if name in taken}
    told |= {"apply_megatron_loss_scaling": True} if "apply_megatron_loss_scaling" in taken else {}
    loss, _, log = fn(args, batch, MICRO_BATCHES, logits=torch.zeros(1), **told)
    tokens = sum(max(kinds.count("a"), 1) for kinds in whole.kinds)
    total = loss / tokens if per_token else loss / MICRO_BATCHES
    return total, dict(zip(log["keys"], log["values"][1:], strict=True))


def engine_gap(case: Case) -> Tensor:
    """Distance of the old policy from the sampler: a mean per sequence, summed."""
    gap, owner = (case.flat("logp_old") - case.flat("logp_rollout")).abs(), case.segments.sequence_of_token
    rows = [gap[owner == i].mean() for i in range(case.num_sequences) if bool((owner == i).any())]
    return torch.stack(rows).sum() if rows else gap.sum()


def policy_losses(fn: Boundary) -> list[Subject]:
    """The policy loss of every estimator, with each correction and penalty."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        more = {"ref_log_probs": "logp_ref"} if options["use_kl_loss"] else {}
        more |= {"rollout_log_probs": "logp_rollout"} if options["use_tis"] else {}
        batch = stored(case, log_probs="logp_old", advantages="advantage", **more)
        batch["case_logp"] = case.list("logp_current", with_prompt=False)
        flat = options["entropy_coef"] == 0
        batch["case_entropy"] = batch["log_probs"] if flat else case.list("entropy", with_prompt=False)
        loss, log = scaled(fn, case, options, "policy_loss", batch)
        clipfrac = Result.scalar(log["pg_clipfrac"], "metric", reduction="sum", agreed=0.0)
        kl = Result.scalar(log["ppo_kl"], "metric", reduction="sum", agreed=0.0)
        found = {"loss": Result.scalar(loss, "loss"), "pg_clipfrac": clipfrac, "ppo_kl": kl}
        if "train_rollout_logprob_abs_diff" in log and not options["calculate_per_token_loss"]:
            gap = log["train_rollout_logprob_abs_diff"]
            found["train_rollout_gap"] = Result.scalar(gap, "metric", of=engine_gap, agreed=0.0)
        return found

    chosen: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({}, {"variants": {"eps_clip": (0.5,), "eps_clip_high": (0.6,), "calculate_per_token_loss": (True,)}}),
        ({"calculate_per_token_loss": True}, {"conventions": {"denominator": "token_mean"}}),
        ({"eps_clip_c": 3.0}, {"variants": {"eps_clip_c": (1.5, None)}}),
        ({"advantage_estimator": "gspo"}, {"variants": {"advantage_estimator": ("grpo",)}}),
        ({"advantage_estimator": "cispo"}, {"stops_gradient": True, "variants": {"advantage_estimator": ("grpo",)}}),
        ({"use_opsm": True}, {"variants": {"opsm_delta": (0.6,), "use_opsm": (False,)}}),
        ({"use_tis": True}, {"variants": {"tis_clip": (1.1,), "tis_clip_low": (0.9,), "use_tis": (False,)}}),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coef": 0.01},
            {"penalties": {"kl_loss_coef": "logp_ref", "entropy_coef": "entropy"},
             "variants": {"kl_loss_coef": (0.2,), "entropy_coef": (0.1,), "kl_loss_type": ("k1", "k2")}},
        ),
    )  # fmt: skip
    shared = "the sequence ratio shares a token's gradient among its sequence"
    subjects: list[Subject] = []
    for options, facts in chosen:
        if options.get("advantage_estimator") == "cispo" and "cispo" not in fn.source:
            continue  # miles does not have it
        gspo = options.get("advantage_estimator") == "gspo"
        waived = {"nonfinite_isolation": FINITE, **({"denominator": shared} if gspo else {})}
        full = {**POLICY, **options}
        subjects.append(
            Subject("policy_loss", call, options=full, combine="sum", role="policy_loss", waived=waived, **facts)
        )
    return subjects


def value_losses(fn: Boundary) -> Subject:
    """The clipped value loss."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        batch = stored(case, values="value_old", returns="returns")
        batch["case_values"] = case.list("value", with_prompt=False)
        loss, log = scaled(fn, case, options, "value_loss", batch)
        return {
            "loss": Result.scalar(loss, "loss"),
            "value_clipfrac": Result.scalar(log["value_clipfrac"], "metric", reduction="sum"),
        }

    return Subject(
        "value_loss", call, options={"value_clip": 0.2}, combine="sum", role="value_loss",
        variants={"value_clip": (0.6,)}, waived={"nonfinite_isolation": FINITE},
    )  # fmt: skip
