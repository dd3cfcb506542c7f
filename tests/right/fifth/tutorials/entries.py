"""Entries in the dialect of tutorials."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, ppo, scalar, together
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Out, Result, Subject, at, bind
from trimtab.sentinel.targets.handed import ending_ids

UPDATE = gap("logp_current", "logp_old")


def _loss(cls: Any) -> Subject:
    def loss(log_probs, action_log_probs, log_probs_ref, advantages, action_mask, clip_eps, kl_weight):
        experience = SimpleNamespace(
            action_log_probs=action_log_probs,
            log_probs_ref=log_probs_ref,
            advantages=advantages,
            action_mask=action_mask,
        )
        return cls(clip_eps, kl_weight)(log_probs, experience)

    return bind(
        loss, role="policy_loss", name="GRPOLoss",
        args={"log_probs": "logp_current", "action_log_probs": "logp_old", "log_probs_ref": "logp_ref",
              "advantages": "advantage", "action_mask": "trainable"},
        options={"clip_eps": 0.2, "kl_weight": 0.01}, variants={"clip_eps": (0.05,), "kl_weight": (0.5,)},
        returns={"loss": at(0, "loss"), "kl": at(1, "metric", agreed=0.0)},
    )  # fmt: skip


def _kl(r: Row, t: int) -> float:
    return loops.k3(r.logp_current[t] - r.logp_ref[t])


def _loss_value(rows: list[Row], o: Any) -> float:
    low, high = 1 - o["clip_eps"], 1 + o["clip_eps"]
    return loops.row_mean(
        rows, lambda r, t: ppo(UPDATE(r, t), r.advantage[t], low, high) + o["kl_weight"] * _kl(r, t), empty=True
    )


def _mask(case: Case, o: Any) -> Out:
    answers = [[kind for kind in kinds if kind != "p"] for kinds in case.kinds]
    width = case.padded("attention", with_prompt=False).shape[1]
    cells = [[float(t < len(row) and row[t] == "a") for t in range(width)] for row in answers]
    return {"mask": Result.cell(case, torch.tensor(cells, dtype=torch.float64), with_prompt=False)}


def _jsd(r: Row, t: int, o: Any) -> float:
    student = loops.log_softmax(r.logits[t], o["temperature"])
    teacher = loops.log_softmax(r.teacher_logits[t], o["temperature"])
    total = 0.0
    for s, q in zip(student, teacher, strict=True):
        mixed = math.log((1 - o["beta"]) * math.exp(s) + o["beta"] * math.exp(q))
        total += o["beta"] * math.exp(q) * (q - mixed) + (1 - o["beta"]) * math.exp(s) * (s - mixed)
    return total


ENTRIES = [
    Entry("GRPOLoss", "tutorials", "policy_loss",
          "The sum of each row is divided by the tokens of the batch before the mean over rows, so twice.",
          _loss,
          together(scalar("loss", "loss", _loss_value),
                   scalar("kl", "metric", lambda rows, o: loops.token_mean(rows, _kl))),
          several=True, pads_finite=True),
    Entry("trim", "tutorials", "response_mask",
          "In a row without a stop the first position is taken for one, so only its first token trains.",
          lambda fn: bind(
              fn, role="response_mask",
              args={"seqs": lambda case: ending_ids(case, ended=True), "alive": "attention",
                    "stop_id": lambda case: case.eos_ids[0]}),
          _mask, neutral=True, unusual=True),
    Entry("DistillationLoss", "tutorials", "distillation",
          "The weights of the two divergences are swapped, which does not show at a beta of one half.",
          lambda cls: bind(
              cls, role="distillation", view={"with_prompt": True, "shift": True},
              args={"student_logits": lambda case: prompted(case).logits(), "teacher_logits": "teacher_logits",
                    "mask": "trainable"},
              options={"beta": 0.5, "temperature": 1.0}, variants={"beta": (0.1,), "temperature": (0.7,)}),
          scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: _jsd(r, t, o))),
          single=True, pads_finite=True),
]  # fmt: skip
