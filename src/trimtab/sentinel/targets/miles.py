"""miles (radixark/miles): a fork of slime with its own parallel state, GAE and rewards per rollout."""

import inspect
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.slime import around, batch, token
from trimtab.sentinel.targets.stand_in import Alone, OneProcess, Settings, answers, by_group, normalised
from trimtab.sentinel.targets.target import Binding, Target


class State:
    """A parallel state in which every group is this process."""

    is_pp_last_stage = True
    is_ulysses_cp = False
    vpp_size = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SimpleNamespace(size=1, rank=0, group=None)


def alone() -> dict[str, object]:
    """Stand-ins for the parallel state and torch.distributed."""
    return {
        "get_parallel_state": State, "dist": Alone(), "mpu": OneProcess(), "is_multi_lora_enabled": lambda _: False,
    }  # fmt: skip


def scoring() -> dict[str, object]:
    """The same, with numbers of the case instead of scored logits."""
    return {**batch.given(), **alone()}


def shaped(fn: Boundary) -> list[Subject]:
    """Advantages and returns of every estimator from the KL that the trainer stores and logs."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        estimator = options["advantage_estimator"]
        if estimator == "reinforce_plus_plus" and any("a" not in kinds for kinds in case.kinds):
            raise case.cannot("it refuses a sequence that is fully masked")
        kl = case.list("kl", with_prompt=False)
        # The KL of a trainer is not a leaf. Without gradients, it is the memory of the case itself.
        kl = [k.clone() for k in kl] if torch.is_grad_enabled() else kl
        mask = case.list("trainable", with_prompt=False)
        values = case.list("value_old", with_prompt=False) if estimator == "ppo" else None
        advantages, returns = fn(
            args=Settings(gamma=1.0, lambd=0.95, qkv_format="thd", **options), kl=kl,
            rewards=case.sequence("outcome").tolist(), log_probs=mask, loss_masks=mask, total_lengths=case.lengths,
            response_lengths=case.response_lengths, values=values,
        )  # fmt: skip
        kind = "return" if estimator in ("ppo", "reinforce_plus_plus") else "advantage"
        return {"advantage": answers(case, advantages, "advantage"), "returns": answers(case, returns, kind)}

    estimators = ("grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo")
    return [
        Subject(
            "compute_advantages", call, options={"advantage_estimator": e, "kl_coef": 0.05}, role="returns",
            penalties={"kl_coef": "kl"}, variants={} if e == "grpo" else {"kl_coef": (0.1,)},
            waived={"nonfinite_isolation": batch.FINITE},
        )
        for e in estimators
    ]  # fmt: skip


def rewards_by_rollout(fn: Boundary) -> list[Subject]:
    """One reward per rollout, minus the mean of its prompt; all segments of a rollout share it."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        groups = by_group(case)
        episodes: list[int] = case.sequence("episode").tolist()
        most = max(len({episodes[i] for i in rows}) for rows in groups)
        if most == 1:
            raise case.cannot("with one sample per prompt, the spread is off")
        args = Settings(
            rewards_normalization=True, n_samples_per_prompt=most, rollout_batch_size=len(groups), **options
        )
        samples = [
            Settings(
                get_reward_value=lambda _, r=r: r, reward=r, index=i, rollout_id=episodes[i],
                group_index=int(case.sequence("group")[i]), loss_mask=[1] * 2, response_length=2,
                effective_response_length=2,
            )
            for i, r in enumerate(case.sequence("reward").tolist())
        ]  # fmt: skip
        raw, found = fn(args, samples, custom_reward_post_process_func=None)
        values = torch.tensor(found, dtype=torch.float32)
        return {"advantage": Result.sequence(values, "advantage"), "raw": Result.sequence(raw, "carried", of="reward")}

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        if len(set(case.sequence("episode").tolist())) != case.num_sequences:
            raise case.cannot("a rollout is in several segments")
        spread = "group" if options["grpo_std_normalization"] else "none"
        return normalised("group", spread)(case, options)

    return [
        Subject(
            "_post_process_rewards", call, couples="group", role="reward_normalisation",
            options={"advantage_estimator": "grpo", "grpo_std_normalization": std}, definition=define,
            variants={"grpo_std_normalization": (not std,)},
        )
        for std in (False, True)
    ]  # fmt: skip


def gathered(fn: Boundary) -> Subject:
    """Combine numbers of two ranks: a mean by count, and extrema."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        reward: list[float] = case.sequence("reward").tolist()
        if len(reward) < 2:
            raise case.cannot("there is nothing for a second rank")
        parts = [reward[: len(reward) // 2], reward[len(reward) // 2 :]]
        ranks = [{"mean": (sum(p), float(len(p))), "top_max": max(p), "low_min": min(p)} for p in parts]
        told = "reduction_by_key" in inspect.signature(fn.function).parameters
        more = {"reduction_by_key": {"top_max": "max", "low_min": "min"}} if told else {}
        found = fn(ranks, 2, **more)
        facts: dict[str, Any] = {"of": "reward", "population": "sequence"}
        return {
            "mean": Result.scalar(found["mean"], "metric", reduction="mean", **facts),
            "max": Result.scalar(found["top_max"], "metric", reduction="max", **facts),
            "min": Result.scalar(found["low_min"], "metric", reduction="min", **facts),
        }

    return Subject("reduce_gathered_log_dict", call, role="metric", couples="batch")


HUB = "miles/backends/training_utils/loss_hub"
MATH = (f"{HUB}/math_utils.py", "miles/utils/ppo_utils.py")
LOSS = "miles/backends/training_utils/loss.py"


def _at(name: str, *files: str) -> tuple[Spec, ...]:
    return (Spec(name, file=files[0], or_files=files[1:]),)


def bindings() -> tuple[Binding, ...]:
    """Functions of slime at their places in miles, and functions of miles itself."""
    one = partial(Binding, given=alone)
    math = {
        "compute_approx_kl": token.approx_kl, "compute_opsm_mask": token.opsm, "compute_gspo_kl": token.gspo_kl,
        "compute_policy_loss": partial(token.policy_term, dtype=torch.float32), "get_grpo_returns": token.grpo_returns,
        "get_reinforce_plus_plus_returns": token.togo, "get_advantages_and_returns_batch": token.gae,
        "get_reinforce_plus_plus_baseline_advantages": token.baseline_advantages,
    }  # fmt: skip
    corrections = (f"{HUB}/corrections.py", LOSS)
    tis = [
        one(name, _at(name, *corrections), partial(around.weights, name=name))
        for name in ("vanilla_tis_function", "icepop_function")
    ]
    return (
        *[one(name, _at(name, *MATH), make) for name, make in math.items()],
        *tis,
        one("distributed_masked_whiten", _at("distributed_masked_whiten", "miles/utils/distributed_utils.py"),
            around.whiten),
        one("get_sum_of_sample_mean", _at("get_sum_of_sample_mean", "miles/backends/training_utils/cp_utils.py",
            "miles/backends/megatron_utils/cp_utils.py"), around.reduced),
        one("compute_advantages", _at("compute_advantages", f"{HUB}/advantages.py"), shaped),
        one("_post_process_rewards", _at("_post_process_rewards", "miles/ray/rollout/train_data_conversion.py"),
            rewards_by_rollout),
        one("reduce_gathered_log_dict", _at("reduce_gathered_log_dict",
            "miles/backends/training_utils/log_utils.py"), gathered),
        Binding("policy_loss", _at("loss_function", LOSS), batch.policy_losses, given=scoring),
        Binding("value_loss", _at("loss_function", LOSS), batch.value_losses, given=scoring),
    )  # fmt: skip


TARGET = Target("miles", "radixark/miles", bindings=bindings())
