"""Entries in the dialect of NeMo-RL."""

from collections.abc import Callable
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together
from tests.right.shapes import prompted, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
ENGINE = gap("logp_old", "logp_rollout")
ROOM = 1e-8


def _full(name: str) -> Callable[[Case], torch.Tensor]:
    """[rows, width] with the prompt; the function drops the first column itself."""
    return lambda case: prompted(case).padded(name)


def _seqs(case: Case) -> float:
    return float(case.whole.sequence("in_use").sum())


def _loss(method: Any) -> Subject:
    owner = method.__globals__["ClippedPGLossFn"]

    def loss(
        next_token_logprobs, token_mask, sample_mask, advantages, prev_logprobs, generation_logprobs,
        reference_policy_logprobs, global_valid_seqs, global_valid_toks, ratio_clip_min, ratio_clip_max,
        reference_policy_kl_penalty, token_level_loss, truncated_importance_sampling_ratio,
    ):  # fmt: skip
        loss_fn = owner(
            {
                "ratio_clip_min": ratio_clip_min,
                "ratio_clip_max": ratio_clip_max,
                "reference_policy_kl_penalty": reference_policy_kl_penalty,
                "token_level_loss": token_level_loss,
                "truncated_importance_sampling_ratio": truncated_importance_sampling_ratio,
            }
        )
        data = {
            "token_mask": token_mask,
            "sample_mask": sample_mask,
            "advantages": advantages,
            "prev_logprobs": prev_logprobs,
            "generation_logprobs": generation_logprobs,
            "reference_policy_logprobs": reference_policy_logprobs,
        }
        return method(loss_fn, next_token_logprobs, data, global_valid_seqs, global_valid_toks)

    return bind(
        loss, role="policy_loss", name="ClippedPGLossFn.__call__", combine="sum",
        args={"next_token_logprobs": lambda case: prompted(case).padded("logp_current", drop_first=True),
              "token_mask": _full("chosen"), "sample_mask": "in_use", "advantages": _full("advantage"),
              "prev_logprobs": _full("logp_old"), "generation_logprobs": _full("logp_rollout"),
              "reference_policy_logprobs": _full("logp_ref"), "global_valid_seqs": _seqs,
              "global_valid_toks": whole_tokens},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "reference_policy_kl_penalty": 0.01,
                 "token_level_loss": True, "truncated_importance_sampling_ratio": 2.0},
        variants={"ratio_clip_min": (0.05,), "ratio_clip_max": (0.05,), "reference_policy_kl_penalty": (0.0, 0.5),
                  "token_level_loss": (False,), "truncated_importance_sampling_ratio": (None, 1.0)},
        returns={"loss": at(0, "loss"), "probs_ratio": at((1, "probs_ratio"), "metric", reduction="sum")},
    )  # fmt: skip


def _used(rows: list[Row]) -> list[Row]:
    flags = rows[0].case.sequence("in_use").tolist()
    return [row for row in rows if flags[row.index]]


def _loss_value(rows: list[Row], o: Any) -> float:
    cap = o["truncated_importance_sampling_ratio"]

    def one(r: Row, t: int) -> float:
        weight = loops.exp(ENGINE(r, t))
        weight = weight if cap is None else min(weight, cap)
        kl = loops.k3(r.logp_current[t] - r.logp_ref[t])
        clipped = ppo(UPDATE(r, t), r.advantage[t], 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"])
        return weight * clipped + o["reference_policy_kl_penalty"] * kl

    case, used = rows[0].case, _used(rows)
    if o["token_level_loss"]:
        return sum((row.total(one) for row in used), 0.0) / (whole_tokens(case) + ROOM)
    return sum((row.total(one) / (row.count + ROOM) for row in used), 0.0) / (_seqs(case) + ROOM)


def _ratio(rows: list[Row], o: Any) -> float:
    total = sum((row.total(lambda r, t: loops.exp(UPDATE(r, t))) for row in _used(rows)), 0.0)
    return total / (whole_tokens(rows[0].case) + ROOM)


def _others(rows: list[Row], row: Row, o: Any) -> list[float]:
    peers = [p for p in loops.peers(rows, row) if p.votes]
    return [p.reward for p in peers if p is not row or not o["leave_one_out_baseline"]]


def _scored(fn: Any) -> Subject:
    def scored(next_token_logits, input_ids, temperature):
        return fn(next_token_logits, input_ids, {"temperature": temperature})

    return bind(
        scored, role="logp", name="score_next", view={"with_prompt": True},
        args={"next_token_logits": lambda case: prompted(case).logits(), "input_ids": _full("token_id")},
        options={"temperature": 0.7}, variants={"temperature": (1.0, 1.5)}, temperature="temperature",
    )  # fmt: skip


ENTRIES = [
    Entry("ClippedPGLossFn.__call__", "nemo_rl", "policy_loss",
          "The importance weights are those of the generating over the training policy, upside down.",
          _loss, together(scalar("loss", "loss", _loss_value), scalar("probs_ratio", "metric", _ratio)),
          several=True, pads_finite=True),
    Entry("prompt_stats", "nemo_rl", "group_advantage",
          "The sum over the other samples is divided by the number of all samples of the prompt.",
          lambda fn: bind(
              fn, role="group_advantage",
              args={"prompts": lambda case: case.sequence("group")[:, None], "rewards": "reward",
                    "valid_mask": "votes"},
              options={"leave_one_out_baseline": True}, variants={"leave_one_out_baseline": (False,)},
              returns={"baseline": at(0, "statistic", level="sequence"), "std": at(1, "statistic", level="sequence")}),
          together(per_row("baseline", "statistic",
                           lambda rows, o: [loops.mean(_others(rows, row, o)) for row in rows]),
                   per_row("std", "statistic",
                           lambda rows, o: [loops.spread(_others(rows, row, o), 1) for row in rows])),
          neutral=True, several=True),
    Entry("score_next", "nemo_rl", "logp",
          "The temperature divides the log-probs instead of the logits, so they are not normalised.",
          _scored,
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          neutral=True, single=True),
]  # fmt: skip
