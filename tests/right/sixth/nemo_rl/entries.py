"""Entries in the dialect of NeMo-RL."""

import math
from collections.abc import Callable
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, ppo, scalar, together
from tests.right.shapes import prompted, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
ENGINE = gap("logp_old", "logp_rollout")
DRIFT = gap("logp_current", "logp_rollout")
ROOM = 1e-8


def _full(name: str) -> Callable[[Case], torch.Tensor]:
    """[rows, width] with the prompt; the function drops the first column itself."""
    return lambda case: prompted(case).padded(name)


def _seqs(case: Case) -> float:
    return float(case.whole.sequence("in_use").sum())


def _used(rows: list[Row]) -> list[Row]:
    flags = rows[0].case.sequence("in_use").tolist()
    return [row for row in rows if flags[row.index]]


def _loss(method: Any) -> Subject:
    owner = method.__globals__["SequenceLevelPGLossFn"]

    def loss(
        next_token_logprobs, token_mask, sample_mask, advantages, prev_logprobs, generation_logprobs,
        global_valid_seqs, ratio_clip_min, ratio_clip_max, truncated_importance_sampling_ratio,
    ):  # fmt: skip
        loss_fn = owner(
            {
                "ratio_clip_min": ratio_clip_min,
                "ratio_clip_max": ratio_clip_max,
                "truncated_importance_sampling_ratio": truncated_importance_sampling_ratio,
            }
        )
        data = {"token_mask": token_mask, "sample_mask": sample_mask, "advantages": advantages,
                "prev_logprobs": prev_logprobs, "generation_logprobs": generation_logprobs}  # fmt: skip
        return method(loss_fn, next_token_logprobs, data, global_valid_seqs)

    return bind(
        loss, role="policy_loss", name="SequenceLevelPGLossFn.__call__", combine="sum",
        args={"next_token_logprobs": lambda case: prompted(case).padded("logp_current", drop_first=True),
              "token_mask": _full("chosen"), "sample_mask": "in_use", "advantages": _full("advantage"),
              "prev_logprobs": _full("logp_old"), "generation_logprobs": _full("logp_rollout"),
              "global_valid_seqs": _seqs},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "truncated_importance_sampling_ratio": 2.0},
        variants={"ratio_clip_min": (0.05,), "ratio_clip_max": (0.05,),
                  "truncated_importance_sampling_ratio": (None, 1.0)},
        returns={"loss": at(0, "loss"),
                 "weight": at((1, "sampling_importance_ratio"), "metric", reduction="sum")},
    )  # fmt: skip


def _mean(row: Row, value: Any) -> float:
    return row.total(value) / (row.count + ROOM)


def _weight(row: Row, o: Any) -> float:
    cap = o["truncated_importance_sampling_ratio"]
    found = loops.exp(_mean(row, ENGINE))
    return found if cap is None else min(found, cap)


def _loss_value(rows: list[Row], o: Any) -> float:
    low, high = 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"]
    total = 0.0
    for row in _used(rows):
        ratio = _mean(row, UPDATE)
        total += _weight(row, o) * _mean(row, lambda r, t, x=ratio: ppo(x, r.advantage[t], low, high))
    return total / (_seqs(rows[0].case) + ROOM)


def _weight_value(rows: list[Row], o: Any) -> float:
    return sum((_weight(row, o) for row in _used(rows)), 0.0) / (_seqs(rows[0].case) + ROOM)


def _rescaled(fn: Any) -> Subject:
    def rescale(rewards, enabled, source_min, source_max, target_min, target_max):
        cfg = {"enabled": enabled, "source_min": source_min, "source_max": source_max, "target_min": target_min,
               "target_max": target_max}  # fmt: skip
        return fn({"total_reward": rewards}, cfg)["total_reward"]

    return bind(
        rescale, name="rescale", args={"rewards": "reward"},
        options={"enabled": True, "source_min": -1.0, "source_max": 1.5, "target_min": -1.0, "target_max": 1.0},
        variants={"enabled": (False,), "source_min": (0.5,), "source_max": (1.0,), "target_min": (0.0,),
                  "target_max": (2.0,)},
        returns={"reward": at((), "reward", level="sequence")},
    )  # fmt: skip


def _rescaled_value(rows: list[Row], o: Any) -> list[float]:
    if not o["enabled"]:
        return [row.reward for row in rows]
    width = o["source_max"] - o["source_min"]
    shares = [(loops.clamp(row.reward, o["source_min"], o["source_max"]) - o["source_min"]) / width for row in rows]
    return [(1 - share) * o["target_min"] + share * o["target_max"] for share in shares]


def _kl_loss(method: Any) -> Subject:
    owner = method.__globals__["ReferenceKLLossFn"]

    def loss(
        next_token_logprobs, token_mask, sample_mask, prev_logprobs, generation_logprobs, reference_policy_logprobs,
        global_valid_toks, penalty, kl_type, on_policy,
    ):  # fmt: skip
        loss_fn = owner(
            {
                "reference_policy_kl_penalty": penalty,
                "reference_policy_kl_type": kl_type,
                "use_on_policy_kl_approximation": on_policy,
            }
        )
        data = {"token_mask": token_mask, "sample_mask": sample_mask, "prev_logprobs": prev_logprobs,
                "generation_logprobs": generation_logprobs,
                "reference_policy_logprobs": reference_policy_logprobs}  # fmt: skip
        return method(loss_fn, next_token_logprobs, data, global_valid_toks)

    return bind(
        loss, role="kl_in_loss", name="ReferenceKLLossFn.__call__", combine="sum",
        args={"next_token_logprobs": lambda case: prompted(case).padded("logp_current", drop_first=True),
              "token_mask": _full("chosen"), "sample_mask": "in_use", "prev_logprobs": _full("logp_old"),
              "generation_logprobs": _full("logp_rollout"), "reference_policy_logprobs": _full("logp_ref"),
              "global_valid_toks": whole_tokens},
        options={"penalty": 0.1, "kl_type": "k3", "on_policy": True},
        variants={"penalty": (0.5,), "kl_type": ("k1", "k2"), "on_policy": (False,)},
    )  # fmt: skip


def _kl_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        x = r.logp_current[t] - r.logp_ref[t]
        kl = {"k1": x, "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_type"]]
        return o["penalty"] * kl * (loops.exp(DRIFT(r, t)) if o["on_policy"] else 1.0)

    return sum((row.total(one) for row in _used(rows)), 0.0) / (whole_tokens(rows[0].case) + ROOM)


def _divergence(r: Row, t: int, o: Any) -> float:
    student, teacher = loops.log_softmax(r.logits[t]), loops.log_softmax(r.teacher_logits[t])
    both = list(zip(student, teacher, strict=True))
    forward = sum(math.exp(q) * (q - s) for s, q in both)
    reverse = sum(math.exp(s) * (s - q) for s, q in both)
    share = {"forward": 1.0, "reverse": 0.0}.get(o["kl_type"], o["mixed_kl_weight"])
    return share * forward + (1 - share) * reverse


def _slopes_apart(right: Any, wrong: Any) -> bool:
    """Whether the gradients of the two versions differ."""
    found = []
    for fn in (right, wrong):
        pupil = torch.linspace(-1.0, 2.0, 30, dtype=torch.float64).view(2, 3, 5).requires_grad_()
        fn(pupil, pupil.detach().flip(-1), torch.ones(2, 3, dtype=torch.float64), "reverse").backward()
        found.append(pupil.grad)
    return not torch.allclose(found[0], found[1], atol=1e-6)


ENTRIES = [
    Entry("SequenceLevelPGLossFn.__call__", "nemo_rl", "policy_loss",
          "The logged weight is left with two dimensions and broadcast against the sample mask to all pairs of rows.",
          _loss, together(scalar("loss", "loss", _loss_value), scalar("weight", "metric", _weight_value)),
          several=True, pads_finite=True),
    Entry("rescale", "nemo_rl", None,
          "The share is multiplied by the target's upper end instead of its width, which is right for a target from 0.",
          _rescaled, per_row("reward", "reward", _rescaled_value), neutral=True),
    Entry("ReferenceKLLossFn.__call__", "nemo_rl", "kl_in_loss",
          "The weights of the estimate are those of the previous policy over the engine, not of the current one.",
          _kl_loss, scalar("loss", "loss", _kl_value, detached=True), pads_finite=True),
    Entry("match", "nemo_rl", "distillation",
          "The student's probabilities are detached, so the reverse divergence loses a part of its gradient.",
          lambda fn: bind(
              fn, role="distillation", view={"with_prompt": True, "shift": True},
              args={"pupil": lambda case: prompted(case).logits(), "guide": "teacher_logits", "live": "trainable"},
              options={"kl_type": "mixed", "mixed_kl_weight": 0.5},
              variants={"kl_type": ("forward", "reverse"), "mixed_kl_weight": (0.1,)}),
          scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: _divergence(r, t, o))),
          neutral=True, unusual=True, single=True, pads_finite=True, differs=_slopes_apart),
]  # fmt: skip
