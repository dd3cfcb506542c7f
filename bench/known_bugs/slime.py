"""Known bugs of slime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from bench.known_bugs import two_ranks
from bench.known_bugs.row import Row
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.slime import LOSS, TARGET
from trimtab.sentinel.targets.slime.batch import policy_losses
from trimtab.sentinel.targets.stand_in import Settings
from trimtab.sentinel.targets.target import Binding

_BOUND = {binding.name: binding for binding in TARGET.bindings}


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: str, note: str = "", **judged: Any
) -> Row:
    return Row(name, "slime", TARGET.repository, buggy, fixed, invariants, _BOUND[binding], note, **judged)


NO_MASK = (
    "slime/backends/megatron_utils/loss.py:779: the PPO branch hands no loss mask to get_advantages_and_returns_batch, "
    "so with tool output in an answer, and lambda or gamma below 1 or a KL in the reward, its steps count"
)
ONE_TOKEN = (
    "slime/backends/megatron_utils/loss.py:1260: with --calculate-per-token-loss, a sample whose loss mask is all 0 (a "
    "filtered one, or one that --mask-offpolicy-in-partial-rollout masks) adds one token to the count below the loss"
)
"""Judged real at the repair of another bug, and confirmed by somebody who did not write the bindings: where, and what
reaches it."""


def _per_token(fn: Boundary) -> Subject:
    """The loss that Megatron divides by all tokens, on batches in which every sample has some."""
    chosen = next(s for s in policy_losses(fn) if s.options["calculate_per_token_loss"])

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if any("a" not in kinds for kinds in case.kinds):
            raise case.cannot("a sample is fully masked")
        return chosen.call(case, options)

    return replace(chosen, call=call)


def _truncated(fn: Boundary) -> Subject:
    """The fraction of responses that reached the longest length allowed."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        lengths = torch.tensor([float(n) for n in case.response_lengths])
        share = fn(raw_response_lengths=lengths, args=Settings(rollout_max_response_len=float(lengths.max())))
        found = torch.tensor(share, dtype=torch.float32)
        return {"clip_ratio": Result.scalar(found, "metric", of=_at_limit)}

    return Subject("log_multi_turn_data (clip ratio)", call, inputs=frozenset({"length"}), couples="batch")


def _at_limit(case: Case) -> torch.Tensor:
    lengths = case.response_lengths
    return torch.tensor(sum(n == max(lengths) for n in lengths) / len(lengths), dtype=torch.float64)


def _teacher(fn: Boundary) -> Subject:
    """Log-probs of the teacher, at the temperature that it is asked for; greedy requests are scored at 1."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        payload = fn.awaited(args=Settings(**options), sample=Settings(tokens=[1]))["payload"]
        asked = payload["sampling_params"]["temperature"]
        scores = torch.log_softmax(case.flat("teacher_logits") / (asked or 1.0), -1)
        chosen = scores.gather(-1, case.flat("token_id")[:, None]).squeeze(-1)
        return {"logp": Result(chosen, "token", "logp")}

    return Subject("reward_func (teacher)", call, options={"rollout_temperature": 1.0}, couples="token",
                   temperature="rollout_temperature")  # fmt: skip


ROWS = [
    _row("SLIME-DUALCLIP", "e7a118711", "2b10784d8", ("on_policy_identity", "clip_geometry", "equals_definition"),
         "compute_policy_loss"),
    _row("SLIME-RFPP-KLMASK", "60bfe04fe", "166441911", ("credit_over_trainable", "mask_content", "equals_definition"),
         "get_reinforce_plus_plus_returns"),
    _row("SLIME-KL-ALIAS", "a0d6d26a2", "045310b2b", ("metric_truth", "no_aliasing"), "compute_advantages_and_returns",
         real={"mask_content": NO_MASK, "credit_over_trainable": NO_MASK}),
    _row("SLIME-DUALCLIP-WIRE", "351e559f1", "78156c53c", ("options_live",), "policy_loss",
         real={"mean_is_a_mean": ONE_TOKEN, "denominator": ONE_TOKEN}),
    Row("SLIME-PERTOKEN-SCALE", "slime", TARGET.repository, "4d837ff58", "763f18d5b", ("mean_is_a_mean",),
        replace(_BOUND["policy_loss"], make=_per_token),
        "batches with a fully masked sample are left out: slime counts one token for it, at the fix too"),
    _row("HEAD-SLIME-OPSM", "624b824a8", None, ("decision_granularity",), "compute_opsm_mask"),
    _row("HEAD-SLIME-GROUPNORM", "624b824a8", None, ("group_isolation",), "_post_process_rewards"),
    Row("SLIME-WHITEN-CP", "slime", TARGET.repository, "c1dd9ab24", "dd7f0379c", ("parallel_layout",),
        Binding("compute_advantages_and_returns", (
            Spec("compute_advantages_and_returns", file=LOSS, first="if args.normalize_advantages:",
                 last="if args.normalize_advantages:", results=("advantages",)),), two_ranks.slime,
            given=two_ranks.stand_ins), "two processes that own the halves of every sequence"),
    Row("SLIME-TRUNCRATE", "slime", TARGET.repository, "6fe4bb997", "e61b2d2ff", ("metric_truth",),
        Binding("log_multi_turn_data", (
            Spec("log_multi_turn_data", file="slime/backends/megatron_utils/data.py",
                 expression="args.rollout_max_response_len).float().mean().item()"),), _truncated)),
    Row("SLIME-OPD-TEMP", "slime", TARGET.repository, "045310b2b", "1da1bb19e", ("temperature_consistency",),
        Binding("reward_func", (
            Spec("reward_func", file="slime/rollout/on_policy_distillation.py", first="payload = {",
                 last="payload = {", results=("payload",)),), _teacher)),
]  # fmt: skip
