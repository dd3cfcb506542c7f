"""NeMo-RL (NVIDIA-NeMo/RL): losses over [rows, width] with counts of the whole batch, estimators, KL, metrics.

Rows hold prompt and response. The loss drops position 0 of everything except the log-probs. Parts of a batch are
summed, each divided by counts of the whole batch.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import bind
from trimtab.sentinel.binding.like import average, like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.nemo_rl import loss as losses
from trimtab.sentinel.targets.stand_in import Settings, bounded
from trimtab.sentinel.targets.target import Binding, Target


def kl(fn: Boundary) -> list[Subject]:
    """k1, k2, k3; inputs and outputs are bounded unless this is switched off."""
    taken = inspect.signature(fn.function).parameters
    if "kl_type" not in taken:
        args = {"logprobs_policy": "logp_current", "logprobs_reference": "logp_ref"}
        return [bind(fn, role="kl", layout="flat", name="calculate_kl", args=args, definition=bounded(like("kl.k3")))]
    args = {"logprobs": "logp_current", "logprobs_reference": "logp_ref"}
    single = {"half_precision": "log-probs come from logits that were cast to float32"}
    open_ended = {"input_clamp_value": None, "output_clamp_value": None}
    options = {k: v for k, v in open_ended.items() if k in taken}
    return [
        bind(
            fn, role="kl", layout="flat", name="calculate_kl", args=args, options={"kl_type": kind, **options},
            definition=bounded(like(f"kl.{kind}")), impossible={"kl_type": ("k9",)},
            variants={"kl_type": tuple(k for k in ("k1", "k2", "k3") if k != kind)}, waived=single,
        )
        for kind in ("k1", "k2", "k3")
    ]  # fmt: skip


def baseline(fn: Boundary) -> list[Subject]:
    """A baseline and a spread per prompt, over valid samples only."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward, valid = case.sequence("reward").float(), case.sequence("votes").float()
        mean, spread = fn(case.sequence("group")[:, None], reward, valid, **options)
        acts = case.sequence("votes")
        # Invalid samples are masked out of the loss, so their results are never read.
        mean, spread = torch.where(acts, mean, reward), torch.where(acts, spread, torch.zeros_like(spread))
        return {"advantage": Result.sequence(reward - mean, "advantage"), "std": Result.sequence(spread, "statistic")}

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        reward, votes, group = (case.sequence(n).tolist() for n in ("reward", "votes", "group"))
        out: list[float] = []
        for i, own in enumerate(reward):
            voters = [r for r, v, g in zip(reward, votes, group, strict=True) if v and g == group[i]]
            count, total = len(voters), sum(voters)
            if options["leave_one_out_baseline"]:
                count, total = count - 1, total - own
            out.append(own - total / count if votes[i] and len(voters) > 1 else 0.0)
        return {"advantage": Result.sequence(out, "advantage")}

    return [
        Subject(
            "calculate_baseline_and_std_per_prompt", call, couples="group", role="reward_normalisation",
            options={"leave_one_out_baseline": one}, definition=define, variants={"leave_one_out_baseline": (not one,)},
        )
        for one in (True, False)
    ]  # fmt: skip


def estimator(fn: Boundary, name: str) -> list[Subject]:
    """An estimator object made without its config classes; advantages are masked by every loss."""
    made: dict[str, tuple[Any, list[dict[str, Any]]]] = {
        "GRPOAdvantageEstimator": ("group", [{"use_leave_one_out_baseline": one, "normalize_rewards": std}
                                             for one in (True, False) for std in (True, False)]),
        "ReinforcePlusPlusAdvantageEstimator": ("batch", [{"minus_baseline": True}, {"minus_baseline": False}]),
        "RawRewardAdvantageEstimator": ("batch", [{"normalize_advantages": False}, {"normalize_advantages": True}]),
    }  # fmt: skip
    couples, choices = made[name]

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        held = fn.made(**options, use_kl_in_reward=False, kl_coef=0.0, kl_type="k3")
        mask = case.padded("trainable", dtype=torch.float32)
        if not bool(mask.any()):
            raise case.cannot("nothing trains")
        found = fn(held, case.sequence("group")[:, None], case.sequence("reward").float(), mask, repeated_batch={})
        found = found[0] if isinstance(found, tuple) else found
        return {"advantage": Result(case.from_padded(found), "token", "advantage")}

    return [
        Subject(
            f"{name}.compute_advantage", call, couples=couples, role="group_advantage", options=options,
            variants={k: (not v,) for k, v in options.items()},
        )
        for options in choices
    ]  # fmt: skip


def gae(fn: Boundary) -> list[Subject]:
    """GAE with the reward on the last trainable token; masked tokens are skipped."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        held = fn.made(
            gae_lambda_value=None, gae_lambda_policy=None, length_adaptive_alpha=0, use_kl_in_reward=True,
            kl_type="k1", **options,
        )  # fmt: skip
        mask = case.padded("trainable", dtype=torch.float64)
        advantages, returns = fn(
            held, None, case.sequence("outcome"), mask, case.padded("value_old").detach(),
            reference_logprobs=case.padded("logp_ref").detach(), logprobs=case.padded("logp_old").detach(),
        )  # fmt: skip
        advantage = Result.token(case, advantages, "advantage")
        return {"advantage": advantage, "returns": Result(case.from_padded(returns), "token", "return")}

    coupled: tuple[tuple[bool, Any], ...] = ((False, "sequence"), (True, "batch"))
    options = {"gae_lambda": 0.95, "gae_gamma": 1.0, "kl_coef": 0.1}
    return [
        Subject(
            "GeneralizedAdvantageEstimator.compute_advantage", call, role="returns", couples=couples,
            options={**options, "normalize_advantages": white}, penalties={} if white else {"kl_coef": "logp_ref"},
            variants={"gae_lambda": (0.5,), "gae_gamma": (0.9,), "kl_coef": (0.3,)}, waived=losses.FINITE,
        )
        for white, couples in coupled
    ]  # fmt: skip


def masked_mean(fn: Boundary) -> list[Subject]:
    """A mean over a mask, or a sum divided by the count of the whole batch."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        factor = {"global_normalization_factor": float(case.whole.segments.num_tokens)} if options["whole"] else {}
        if factor and not case.whole.segments.num_tokens:
            raise case.cannot("nothing trains in the whole batch")
        value = fn(case.padded("token_loss"), case.padded("trainable", dtype=torch.float64), **factor)
        return {"loss": Result.scalar(value, "loss")}

    whole = "global_normalization_factor" in inspect.signature(fn.function).parameters
    return [
        Subject(
            "masked_mean", call, options={"whole": one}, role="aggregation", definition=average("token_mean"),
            combine="sum" if one else None, conventions={"denominator": "token_mean"},
        )
        for one in ((True, False) if whole else (False,))
    ]  # fmt: skip


def rollout_metrics(fn: Boundary) -> Subject:
    """Combine numbers of several groups."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward: list[float] = case.sequence("reward").tolist()
        told = {"max_reward": reward, "min_reward": reward, "reward/max": reward, "reward/min": reward, "mean": reward}
        found = fn(rollout_metrics=told)["rollout_metrics"] if fn.spec.results else fn(told)
        facts: dict[str, Any] = {"of": "reward", "population": "sequence"}
        return {
            "max": Result.scalar(found["reward/max"], "metric", reduction="max", **facts),
            "min": Result.scalar(found["reward/min"], "metric", reduction="min", **facts),
            "mean": Result.scalar(found["mean"], "metric", reduction="mean", **facts),
        }

    return Subject("aggregate_rollout_metrics", call, role="metric", couples="batch")


def scaled_rewards(fn: Boundary) -> Subject:
    """Map rewards from one range to another, with a clamp."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        batch = {"total_reward": case.sequence("reward").clamp(0, 1)}  # it prints a warning for each reward outside
        cfg = Settings(enabled=True, source_min=0.0, source_max=1.0, target_min=-1.0, target_max=1.0)
        return {"reward": Result.sequence(fn(batch, cfg)["total_reward"], "reward")}

    return Subject("scale_rewards", call, role="reward_plumbing", couples="sequence")


def _place(name: str, *files: str) -> tuple[Spec, ...]:
    return (Spec(name, file=files[0], or_files=files[1:]),)


UTILS = "nemo_rl/algorithms/utils.py"
ESTIMATOR = "nemo_rl/algorithms/advantage_estimator.py"
GRPO = "nemo_rl/algorithms/grpo.py"
LOSSES = ("nemo_rl/algorithms/loss/loss_functions.py", "nemo_rl/algorithms/loss_functions.py")


def bindings() -> tuple[Binding, ...]:
    """KL, baselines, estimators, reducers, losses, metrics."""
    estimators = ("GRPOAdvantageEstimator", "ReinforcePlusPlusAdvantageEstimator", "RawRewardAdvantageEstimator")
    return (
        Binding("calculate_kl", (*_place("calculate_kl", UTILS), *_place("calculate_kl_penalty_joschu2020", UTILS)),
                kl),
        Binding("calculate_baseline_and_std_per_prompt", _place("calculate_baseline_and_std_per_prompt", UTILS),
                baseline),
        Binding("masked_mean", _place("masked_mean", UTILS), masked_mean),
        *[
            Binding(name, _place(f"{name}.compute_advantage", ESTIMATOR), partial(estimator, name=name))
            for name in estimators
        ],
        Binding("GeneralizedAdvantageEstimator",
                _place("GeneralizedAdvantageEstimator.compute_advantage", ESTIMATOR), gae),
        Binding("aggregate_rollout_metrics", _place("aggregate_rollout_metrics", GRPO), rollout_metrics),
        Binding("scale_rewards", _place("scale_rewards", GRPO), scaled_rewards),
        Binding("ClippedPGLossFn", (*_place("ClippedPGLossFn", *LOSSES), *_place("ClippedPGLoss", *LOSSES)),
                losses.clipped, given=losses.given),
        Binding("NLLLossFn", (*_place("NLLLossFn", *LOSSES), *_place("NLLLoss", *LOSSES)), losses.likelihood),
        Binding("MseValueLossFn", _place("MseValueLossFn", *LOSSES), losses.value),
    )  # fmt: skip


TARGET = Target("nemo_rl", "NVIDIA-NeMo/RL", bindings=bindings())
