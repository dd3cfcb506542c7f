"""Entries in the dialect of NeMo-RL."""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, k3, per_row, per_token, ppo, scalar, together
from tests.right.shapes import prompted, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind

WHOLE_ROWS = {"token_mask": lambda case: case.padded("chosen"), "sample_mask": lambda case: case.sequence("in_use")}


def _tokens(case: Case) -> torch.Tensor:
    return torch.tensor(float(whole_tokens(case)))


def _rows(case: Case) -> torch.Tensor:
    return case.whole.sequence("in_use").sum()


def _clipped(method: Any) -> Subject:
    owner = _owner(method)

    def loss(
        next_token_logprobs, prev_logprobs, advantages, token_mask, sample_mask, global_valid_seqs, global_valid_toks,
        **cfg,
    ):  # fmt: skip
        data = {"prev_logprobs": prev_logprobs, "advantages": advantages, "token_mask": token_mask,
                "sample_mask": sample_mask}  # fmt: skip
        return method(owner(cfg), next_token_logprobs, data, global_valid_seqs, global_valid_toks)

    return bind(
        loss, role="policy_loss", name="ClippedPGLossFn.__call__",
        args={"next_token_logprobs": lambda case: case.padded("logp_current", drop_first=True),
              "prev_logprobs": lambda case: case.padded("logp_old"),
              "advantages": lambda case: case.padded("advantage"), **WHOLE_ROWS,
              "global_valid_seqs": _rows, "global_valid_toks": _tokens},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "ratio_clip_c": 3.0, "token_level_loss": False,
                 "sequence_level_importance_ratios": True},
        variants={"ratio_clip_min": (0.05,), "ratio_clip_max": (0.05,), "ratio_clip_c": (1.1, None),
                  "token_level_loss": (True,), "sequence_level_importance_ratios": (False,)},
        returns={"loss": at(0, "loss"), "ratio": at((1, "probs_ratio"), "metric")},
    )  # fmt: skip


def _owner(method: Any) -> Callable[[Any], Any]:
    """The class of a method, from the module that has it."""
    return getattr(sys.modules[method.__module__], method.__qualname__.split(".")[0])


def _log_ratio(r: Row, t: int, o: Any) -> float:
    one = gap("logp_current", "logp_old")
    return r.mean(one) if o["sequence_level_importance_ratios"] else one(r, t)


def _clipped_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        low, high = 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"]
        return ppo(_log_ratio(r, t, o), r.advantage[t], low, high, o["ratio_clip_c"])

    return loops.token_mean(rows, one) if o["token_level_loss"] else loops.row_mean(rows, one)


def _folded(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        counted = [p for p in loops.peers(rows, row) if p.votes]
        compared = [p.reward for p in counted if p is not row or not o["leave_one_out"]]
        one = row.reward - loops.mean(compared) if compared else 0.0
        size = loops.spread([p.reward for p in counted], 1)
        found.append(one / (size + 1e-6) if o["sharpen"] and size > 1e-6 else one)
    return found


def _penalty(r: Row, t: int, o: Any) -> float:
    logr = loops.clamp(r.logp_ref[t] - r.logp_current[t], -o["input_clamp_value"], o["input_clamp_value"])
    kl = {"k1": -logr, "k2": logr**2 / 2, "k3": loops.exp(logr) - 1 - logr}[o["kl_type"]]
    weighted = loops.exp(r.logp_current[t] - r.logp_rollout[t]) * kl
    return loops.clamp(weighted, -o["output_clamp_value"], o["output_clamp_value"])


def _summarize(fn: Any) -> Subject:
    return bind(
        fn, role="metric",
        args={"prev_logprobs": lambda case: case.padded("logp_old", drop_first=True),
              "generation_logprobs": lambda case: case.padded("logp_rollout", drop_first=True),
              "token_mask": lambda case: case.padded("chosen", drop_first=True),
              "sample_mask": lambda case: case.sequence("in_use"), "global_valid_toks": _tokens},
        returns={"error": at("token_mult_prob_error", "metric"), "generation": at("gen_kl_error", "metric"),
                 "policy": at("policy_kl_error", "metric"), "js": at("js_divergence_error", "metric")},
    )  # fmt: skip


def _js(r: Row, t: int) -> float:
    p, q = r.logp_old[t], r.logp_rollout[t]
    middle = math.log((math.exp(p) + math.exp(q)) / 2)
    return (k3(p - middle) + k3(q - middle)) / 2


def _token_mean(name: str, value: Callable[[Row, int], float]) -> Any:
    return scalar(name, "metric", lambda rows, o: loops.token_mean(rows, value))


def _pairs(name: str, **view: Any) -> Callable[[Case], torch.Tensor]:
    """Rows of the pairs: chosen, rejected, chosen, rejected."""

    def taken(case: Case) -> torch.Tensor:
        if not case.pairs:
            raise case.cannot("it needs a chosen and a rejected answer")
        order = [i for pair in case.pairs for i in pair]
        return case.padded(name, **view)[order]

    return taken


def _dpo(method: Any) -> Subject:
    owner = _owner(method)

    def loss(next_token_logprobs, reference_policy_logprobs, token_mask, global_valid_seqs, **cfg):
        data = {"reference_policy_logprobs": reference_policy_logprobs, "token_mask": token_mask,
                "sample_mask": torch.ones_like(token_mask[:, 0])}  # fmt: skip
        return method(owner(cfg), next_token_logprobs, data, global_valid_seqs)

    return bind(
        loss, role="preference", name="DPOLossFn.__call__",
        args={"next_token_logprobs": _pairs("logp_current", drop_first=True),
              "reference_policy_logprobs": _pairs("logp_ref"), "token_mask": _pairs("trainable"),
              "global_valid_seqs": lambda case: torch.tensor(2.0 * len(case.whole.pairs))},
        options={"reference_policy_kl_penalty": 0.1, "preference_loss_weight": 1.0, "sft_loss_weight": 0.1,
                 "preference_average_log_probs": False},
        variants={"reference_policy_kl_penalty": (0.5,), "preference_loss_weight": (2.0,), "sft_loss_weight": (0.0,),
                  "preference_average_log_probs": (True,)},
        returns={"loss": at(0, "loss"), "accuracy": at((1, "accuracy"), "metric")},
    )  # fmt: skip


def _margins(rows: list[Row], o: Any) -> list[tuple[Row, float]]:
    def reward(r: Row) -> float:
        value = gap("logp_current", "logp_ref")
        return r.mean(value) if o["preference_average_log_probs"] else r.total(value)

    return [(rows[c], reward(rows[c]) - reward(rows[j])) for c, j in rows[0].case.pairs]


def _dpo_value(rows: list[Row], o: Any) -> float:
    def one(chosen: Row, margin: float) -> float:
        preference = math.log1p(math.exp(-o["reference_policy_kl_penalty"] * margin))
        nll = chosen.total(lambda r, t: -r.logp_current[t])
        return o["preference_loss_weight"] * preference + o["sft_loss_weight"] * nll

    return loops.mean([one(*pair) for pair in _margins(rows, o)])


def _distillation(cls: Any) -> Subject:
    def loss(logits, teacher_logits, token_mask, sample_mask, global_valid_toks, **cfg):
        data = {"teacher_logits": teacher_logits, "token_mask": token_mask, "sample_mask": sample_mask}
        return cls(cfg)(logits, data, global_valid_toks)

    return bind(
        loss, role="distillation", name="DistillationLossFn",
        args={"logits": lambda case: prompted(case).logits(),
              "teacher_logits": lambda case: case.padded("teacher_logits", shift=True), **WHOLE_ROWS,
              "global_valid_toks": _tokens},
        options={"kl_type": "mixed", "mixed_kl_weight": 0.3},
        variants={"kl_type": ("forward", "reverse"), "mixed_kl_weight": (0.8,)},
        returns={"loss": at(0, "loss")},
    )  # fmt: skip


def _divergence(r: Row, t: int, o: Any) -> float:
    student, teacher = loops.log_softmax(r.logits[t]), loops.log_softmax(r.teacher_logits[t])
    forward = sum(math.exp(b) * (b - a) for a, b in zip(student, teacher, strict=True))
    reverse = sum(math.exp(a) * (a - b) for a, b in zip(student, teacher, strict=True))
    weight = {"forward": 1.0, "reverse": 0.0, "mixed": o["mixed_kl_weight"]}[o["kl_type"]]
    return weight * forward + (1 - weight) * reverse


ENTRIES = [
    Entry("ClippedPGLossFn.__call__", "nemo_rl", "policy_loss",
          "The log-ratio of a sequence is averaged over the width of the batch, not over its tokens.", _clipped,
          together(scalar("loss", "loss", _clipped_value),
                   scalar("ratio", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: loops.exp(_log_ratio(r, t, o))))),
          several=True, pads_finite=True),
    Entry("fold_scores", "nemo_rl", "group_advantage",
          "The sum of the rewards that count is divided by the size of the group, with those that do not count.",
          lambda fn: bind(
              fn, role="group_advantage",
              args={"row_keys": "group", "task_return": "reward", "counts_flag": lambda case: case.sequence("votes")},
              options={"leave_one_out": True, "sharpen": True},
              variants={"leave_one_out": (False,), "sharpen": (False,)}),
          per_row("advantage", "advantage", _folded), neutral=True, unusual=True),
    Entry("penalty_terms", "nemo_rl", "kl_in_loss",
          "The importance weight is detached, so the gradient lacks the term of the sampling distribution.",
          lambda fn: bind(
              fn, role="kl_in_loss",
              args={"logprobs": "logp_current", "logprobs_reference": "logp_ref",
                    "logprobs_generation": "logp_rollout"},
              options={"kl_type": "k3", "input_clamp_value": 20.0, "output_clamp_value": 10.0},
              variants={"kl_type": ("k1", "k2"), "input_clamp_value": (0.3,), "output_clamp_value": (0.2,)}),
          per_token("loss", "term", _penalty), neutral=True),
    Entry("summarize", "nemo_rl", "metric",
          "The mixture of the two policies is the mean of their log-probs, not the log of their mean probability.",
          _summarize,
          together(_token_mean("error", lambda r, t: loops.exp(abs(r.logp_old[t] - r.logp_rollout[t]))),
                   _token_mean("generation", lambda r, t: k3(r.logp_rollout[t] - r.logp_old[t])),
                   _token_mean("policy", lambda r, t: k3(r.logp_old[t] - r.logp_rollout[t])),
                   _token_mean("js", _js)),
          neutral=True, several=True, pads_finite=True),
    Entry("DPOLossFn.__call__", "nemo_rl", "preference",
          "The first half of the rows is taken as chosen and the second as rejected, though they alternate.", _dpo,
          together(scalar("loss", "loss", _dpo_value),
                   scalar("accuracy", "metric", lambda rows, o: loops.mean(
                       [float(margin > 0) for _, margin in _margins(rows, o)]))),
          several=True, pads_finite=True),
    Entry("DistillationLossFn", "nemo_rl", "distillation",
          "The mask is cut at its end instead of its start, so a position is weighted by the flag of the token before.",
          _distillation,
          scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: _divergence(r, t, o))),
          several=True, single=True, pads_finite=True),
]  # fmt: skip
