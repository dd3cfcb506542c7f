"""Entries in the dialect of OpenRLHF."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE = gap("logp_current", "logp_old")


def _policy(cls: Any) -> Subject:
    def forward(
        log_probs, old_log_probs, advantages, action_mask, clip_eps_low, clip_eps_high, dual_clip, token_level_loss
    ):
        loss_fn = cls(clip_eps_low, clip_eps_high, dual_clip, token_level_loss)
        return loss_fn(log_probs, old_log_probs, advantages, action_mask)

    return bind(
        forward, role="policy_loss", name="PolicyLoss",
        options={"clip_eps_low": 0.2, "clip_eps_high": 0.3, "dual_clip": 3.0, "token_level_loss": True},
        variants={"clip_eps_low": (0.05,), "clip_eps_high": (0.05,), "dual_clip": (1.5,), "token_level_loss": (False,)},
        returns={"loss": at(0, "loss"), "clip_ratio": at(1, "metric", range=(0, 1), agreed=0.0),
                 "ppo_kl": at(2, "metric", agreed=0.0)},
    )  # fmt: skip


def _policy_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        low, high = 1 - o["clip_eps_low"], 1 + o["clip_eps_high"]
        return ppo(UPDATE(r, t), r.advantage[t], low, high, cap=o["dual_clip"])

    return loops.token_mean(rows, one) if o["token_level_loss"] else loops.row_mean(rows, one, empty=True)


def _policy_clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio = loops.exp(UPDATE(r, t))
        return float(ratio > 1 + o["clip_eps_high"] if r.advantage[t] > 0
                     else r.advantage[t] < 0 and ratio < 1 - o["clip_eps_low"])  # fmt: skip

    return loops.token_mean(rows, one)


def _values(cls: Any) -> Subject:
    def forward(values, old_values, returns, action_mask, clip_eps):
        return cls(clip_eps)(values, old_values, returns, action_mask)

    return bind(forward, role="value_loss", name="ValueLoss", options={"clip_eps": 0.2}, variants={"clip_eps": (0.05,)})


def _value_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        near = r.value_old[t] + loops.clamp(r.value[t] - r.value_old[t], -o["clip_eps"], o["clip_eps"])
        return max((r.value[t] - r.returns[t]) ** 2, (near - r.returns[t]) ** 2)

    return 0.5 * loops.token_mean(rows, one)


def _reward(row: Row, t: int, o: Any) -> float:
    low, high = o["reward_clip_range"]
    last = loops.clamp(row.reward, low, high) if t == row.count - 1 else 0.0
    return last - o["kl_coef"] * row.kl[t]


def _labels(case: Case) -> Any:
    ids, trained = (case.padded(name, shift=True) for name in ("token_id", "trainable"))
    return torch.where(trained.bool(), ids, -100)


def _distilled(cls: Any) -> Subject:
    def forward(logits, teacher_logits, label, temperature):
        return cls(temperature)(logits, teacher_logits, label)

    return bind(
        forward, role="distillation", name="TokenObjective",
        args={"logits": lambda case: prompted(case).logits(), "label": _labels,
              "teacher_logits": lambda case: case.logits("teacher_logits")},
        options={"temperature": 0.8}, variants={"temperature": (1.5,)}, temperature="temperature",
    )  # fmt: skip


def _divergence(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        student = loops.log_softmax(r.logits[t], o["temperature"])
        teacher = loops.log_softmax(r.teacher_logits[t], o["temperature"])
        return sum(math.exp(q) * (q - p) for p, q in zip(student, teacher, strict=True))

    return loops.token_mean(rows, one)


def _prepared(fn: Any) -> Subject:
    def prepared(advantages, action_mask):
        rows = zip(advantages, action_mask, strict=True)
        found = fn([SimpleNamespace(advantages=a.unsqueeze(0), action_mask=m.unsqueeze(0)) for a, m in rows])
        return [one.squeeze(0) for one in found]

    return bind(prepared, role="whitening", name="prepare", layout="list")


def _whitened(case: Case, o: Any) -> Any:
    pooled = [a for row in loops.rows(case) for a in row.advantage]
    centre = loops.mean(pooled)
    size = math.sqrt(max(loops.spread(pooled, 0) ** 2, 1e-8))
    return {"advantage": Result(loops.numbers([(a - centre) / size for a in pooled]), "token", "advantage")}


def _corrected(cls: Any) -> Subject:
    def forward(log_probs, old_log_probs, rollout_log_probs, action_mask, low, high, level):
        return cls(low, high, level)(log_probs, old_log_probs, rollout_log_probs, action_mask)

    return bind(
        forward, role="importance", name="Correction", options={"low": 0.5, "high": 2.0, "level": "token"},
        variants={"low": (0.9,), "high": (1.1,), "level": ("seq",)},
    )  # fmt: skip


def _weight(row: Row, t: int, o: Any) -> float:
    apart = gap("logp_old", "logp_rollout")
    return loops.clamp(loops.exp(row.mean(apart) if o["level"] == "seq" else apart(row, t)), o["low"], o["high"])


ENTRIES = [
    Entry("PolicyLoss", "openrlhf", "policy_loss",
          "The second bound is put on positive advantages (as once in slime).", _policy,
          together(scalar("loss", "loss", _policy_loss), scalar("clip_ratio", "metric", _policy_clipped),
                   scalar("ppo_kl", "metric", lambda rows, o: -loops.token_mean(rows, UPDATE))),
          several=True, single=True),
    Entry("ValueLoss", "openrlhf", "value_loss",
          "The smaller of the two squared errors is taken.", _values, scalar("loss", "loss", _value_loss)),
    Entry("compute_reward", "openrlhf", "kl_in_reward",
          "The score goes to the position that the number of actions names, which is earlier where tools answered.",
          lambda fn: bind(
              fn, role="kl_in_reward", args={"r": "reward"}, options={"kl_coef": 0.1, "reward_clip_range": (-10, 10)},
              variants={"kl_coef": (0.5,), "reward_clip_range": ((-0.3, 0.3),)}),
          per_token("reward", "reward", _reward), unusual=True),
    Entry("TokenObjective", "openrlhf", "distillation",
          "The teacher is read at temperature 1, the student at the temperature.", _distilled,
          scalar("loss", "loss", _divergence), neutral=True),
    Entry("prepare", "openrlhf", "whitening",
          "The variance sums over masked positions too.", _prepared, _whitened, neutral=True, pads_finite=True),
    Entry("Correction", "openrlhf", "importance",
          "The weight compares the current policy with the engine, not the policy at the start of the step.",
          _corrected,
          per_token("importance", "importance", _weight), neutral=True, single=True),
]  # fmt: skip
