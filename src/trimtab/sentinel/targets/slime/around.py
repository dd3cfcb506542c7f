"""slime's functions around the loss: corrections, whitening, rewards of a rollout, scores from logits, reducers."""

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.stand_in import (
    Settings,
    answers,
    contiguous_groups,
    model_logits,
    normalised,
    row,
)

LOGITS = {"nonfinite_isolation": "logits that are not finite are a broken model, not the content of a masked cell"}


def weights(fn: Boundary, name: str) -> Subject:
    """TIS and IcePop: old over rollout, bounded or dropped outside the band, as a factor on the loss."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        old, rollout, mask = (case.list(n, with_prompt=False) for n in ("logp_old", "logp_rollout", "trainable"))
        factor, _, metrics = fn(
            Settings(**options), pg_loss=torch.ones_like(torch.cat(old)), train_log_probs=old,
            rollout_log_probs=rollout, loss_masks=mask,
        )  # fmt: skip
        low = 0.0 if name == "icepop_function" else options["tis_clip_low"]
        metric = answers(case, metrics["tis_clipfrac"], "metric", range=(0, 1), agreed=0.0)
        pair = ("logp_old", "logp_rollout")
        found = answers(case, factor.detach(), "importance", range=(low, options["tis_clip"]), pair=pair)
        return {"importance": found, "tis_clipfrac": metric}

    return Subject(
        name, call, options={"tis_clip_low": 0.5, "tis_clip": 2.0}, role="importance", couples="token",
        variants={"tis_clip_low": (0.9,), "tis_clip": (1.1,)},
    )  # fmt: skip


def whiten(fn: Boundary) -> Subject:
    """Advantages of the whole batch to mean 0 and spread 1 over trainable tokens."""
    return bind(
        fn, role="whitening", layout="packed", name="distributed_masked_whiten", args={"values": "advantage"},
        returns={"advantage": at((), "advantage")}, options={"shift_mean": True}, variants={"shift_mean": (False,)},
        waived={"mask_content": "every loss masks its values at untrainable tokens"},
    )  # fmt: skip


def post_processed_rewards(fn: Boundary) -> list[Subject]:
    """Rewards of a rollout batch, minus the mean of the group, over its spread. Groups are found by position."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        blocks = contiguous_groups(case)
        if max(map(len, blocks)) == 1:
            raise case.cannot("with one sample per prompt, the spread is off")
        args = Settings(
            rewards_normalization=True, n_samples_per_prompt=max(map(len, blocks)), rollout_batch_size=len(blocks),
            global_batch_size=case.num_sequences, **options,
        )  # fmt: skip
        holder = SimpleNamespace(args=args, custom_reward_post_process_func=None)
        rewards: list[float] = case.sequence("reward").tolist()
        samples = [SimpleNamespace(get_reward_value=lambda _, r=r: r, reward=r, index=i) for i, r in enumerate(rewards)]
        raw, found = fn(holder, samples)
        values = torch.tensor(found, dtype=torch.float32)
        return {"advantage": Result.sequence(values, "advantage"), "raw": Result.sequence(raw, "carried", of="reward")}

    return [
        Subject(
            "_post_process_rewards", call, couples="group", role="reward_normalisation",
            options={"advantage_estimator": "grpo", "grpo_std_normalization": std},
            definition=normalised("group", "group" if std else "none"), variants={"grpo_std_normalization": (not std,)},
        )
        for std in (False, True)
    ]  # fmt: skip


def log_probs(fn: Boundary) -> Subject:
    """Log-prob and entropy of each token from the logits that predict it."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        ids = torch.roll(case.packed("token_id"), -1, 0)
        logp, _ = fn(model_logits(case), ids, None, with_entropy=False)
        _, entropy = fn(model_logits(case), ids, None, with_entropy=True)  # its backward runs once
        back = [torch.roll(v.reshape(-1), 1, 0)[case.trainable] for v in (logp, entropy)]
        return {"logp": Result(back[0], "token", "logp"), "entropy": Result(back[1], "token", "entropy")}

    return Subject(
        "calculate_log_probs_and_entropy", call, definition=scored(), role="logp", couples="token", waived=LOGITS
    )


def scored_responses(fn: Boundary) -> Subject:
    """From packed model logits to the log-probs of each response, at the rollout's temperature."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if any(kinds[0] != "p" or n == 0 for kinds, n in zip(case.kinds, case.response_lengths, strict=True)):
            raise case.cannot("a sequence has no prompt or no response")
        ids = list(case.packed("token_id").split(case.lengths))
        found = fn(
            model_logits(case).float()[None], args=Settings(**options, rollout_top_p=1.0, log_probs_chunk_size=-1),
            unconcat_tokens=ids, total_lengths=case.lengths, response_lengths=case.response_lengths,
        )  # fmt: skip
        found = found[1] if isinstance(found, tuple) else found
        return {"logp": answers(case, found["log_probs"], "logp")}

    return Subject(
        "get_log_probs_and_entropy", call, options={"rollout_temperature": 1.0}, role="logp", couples="token",
        temperature="rollout_temperature", definition=scored(temperature="rollout_temperature", names=("logp",)),
        variants={"rollout_temperature": (0.5,)}, waived=LOGITS,
    )  # fmt: skip


def reduced(fn: Boundary) -> list[Subject]:
    """A sum over samples of masked means, or a sum over tokens."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        mask = case.list("trainable", with_prompt=False)
        extra = {"sample_denoms": None} if "sample_denoms" in inspect.signature(fn.function).parameters else {}
        reduce = fn(case.lengths, case.response_lengths, mask, **extra, **options)
        return {"loss": Result.scalar(reduce(row(case, "token_loss")), "loss")}

    names = {False: "sequence_sum_token_mean", True: "token_sum"}
    return [
        Subject(
            "get_sum_of_sample_mean", call, options={"calculate_per_token_loss": per_token}, combine="sum",
            role="aggregation", definition=average(name), conventions={"denominator": name},
            variants={"calculate_per_token_loss": (not per_token,)},
        )
        for per_token, name in names.items()
    ]  # fmt: skip
