"""Entries in the dialect of NeMo-RL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.telling import parts_differ
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar
from tests.right.shapes import prompted, whole_tokens

from trimtab.sentinel import Subject, bind

UPDATE = gap("logp_current", "logp_old")
MASKS: dict[str, Any] = {"token_mask": "chosen", "sample_mask": lambda case: case.sequence("in_use")}


def _clipped(method: Any) -> Subject:
    def loss(
        curr_logprobs, prev_logprobs, reference_policy_logprobs, advantages, token_mask, sample_mask, global_valid_toks,
        ratio_clip_min, ratio_clip_max, reference_policy_kl_penalty,
    ):  # fmt: skip
        made = SimpleNamespace(ratio_clip_min=ratio_clip_min, ratio_clip_max=ratio_clip_max,
                               reference_policy_kl_penalty=reference_policy_kl_penalty)  # fmt: skip
        data = {"token_mask": token_mask, "sample_mask": sample_mask, "advantages": advantages,
                "prev_logprobs": prev_logprobs, "reference_policy_logprobs": reference_policy_logprobs}  # fmt: skip
        return method(made, curr_logprobs, data, torch.tensor(global_valid_toks, dtype=torch.float64))

    return bind(
        loss, role="policy_loss", name="ClippedPGLossFn.__call__",
        args={"curr_logprobs": "logp_current", "prev_logprobs": "logp_old", "reference_policy_logprobs": "logp_ref",
              "advantages": "advantage", **MASKS, "global_valid_toks": whole_tokens},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "reference_policy_kl_penalty": 0.1},
        variants={"ratio_clip_min": (0.1,), "ratio_clip_max": (0.5,), "reference_policy_kl_penalty": (0.0,)},
    )  # fmt: skip


def _clipped_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        kl = loops.k3(r.logp_current[t] - r.logp_ref[t])
        clipped = ppo(UPDATE(r, t), r.advantage[t], 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"])
        return clipped + o["reference_policy_kl_penalty"] * kl

    return sum(r.total(one) for r in rows) / (whole_tokens(rows[0].case) + 1e-8)


def _estimator(method: Any) -> Subject:
    def advantage(prompt_ids, rewards, valid_mask, use_leave_one_out_baseline):
        made = SimpleNamespace(use_leave_one_out_baseline=use_leave_one_out_baseline)
        return method(made, prompt_ids, rewards, valid_mask)

    return bind(
        advantage, role="group_advantage", name="GRPOAdvantageEstimator.compute_advantage",
        args={"prompt_ids": lambda case: case.sequence("group"), "rewards": "reward", "valid_mask": "votes"},
        options={"use_leave_one_out_baseline": True}, variants={"use_leave_one_out_baseline": (False,)},
    )  # fmt: skip


def _against_valid(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        voters = [p for p in loops.peers(rows, row) if p.votes]
        if o["use_leave_one_out_baseline"]:
            voters = [p for p in voters if p is not row]
        found.append(row.reward - loops.mean([p.reward for p in voters]) if voters else 0.0)
    return found


def _screened(rows: list[Row], o: Any) -> list[float]:
    def factor(r: Row, t: int) -> float:
        return loops.exp(abs(r.logp_old[t] - r.logp_rollout[t]))

    return [float(r.count > 0 and r.mean(factor) <= o["threshold"]) for r in rows]


def _spread(cls: Any) -> Subject:
    def spread(logits, temperature):
        return cls(temperature=temperature)(logits)

    return bind(
        spread, role="entropy", name="Spread", args={"logits": lambda case: prompted(case).logits()},
        view={"with_prompt": True, "shift": True}, options={"temperature": 0.7}, variants={"temperature": (1.0,)},
        temperature="temperature",
    )  # fmt: skip


ENTRIES = [
    Entry("ClippedPGLossFn.__call__", "nemo_rl", "policy_loss",
          "The KL penalty is a mean over the micro-batch, not over the global batch.", _clipped,
          scalar("loss", "loss", _clipped_value), several=True, pads_finite=True, differs=parts_differ(_clipped)),
    Entry("GRPOAdvantageEstimator.compute_advantage", "nemo_rl", "group_advantage",
          "Samples that are not valid move the baseline of the others.", _estimator,
          per_row("advantage", "advantage", _against_valid)),
    Entry("screen", "nemo_rl", "keep",
          "The log-ratio keeps its sign, so tokens that the trainer finds too unlikely make up for the others.",
          lambda fn: bind(
              fn, role="keep",
              args={"prev_logprobs": "logp_old", "generation_logprobs": "logp_rollout", **MASKS},
              options={"threshold": 1.5}, variants={"threshold": (1.2,)}),
          per_row("keep", "keep", _screened), neutral=True),
    Entry("Spread", "nemo_rl", "entropy",
          "The terms are averaged over the vocabulary instead of summed.", _spread,
          per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"])),
          neutral=True, single=True),
]  # fmt: skip
