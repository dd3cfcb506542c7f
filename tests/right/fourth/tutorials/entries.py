"""Entries in the dialect of tutorials."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Options, Row, gap, per_row, ppo, scalar, together, walked
from tests.right.shapes import cells, in_pairs

from trimtab.sentinel import Case, Result, Subject, at, bind
from trimtab.sentinel.targets.handed import ending_ids

UPDATE = gap("logp_current", "logp_old")
AWAY = gap("logp_old", "logp_ref")


def _rloo(rows: list[Row], o: Any) -> list[float]:
    return [row.reward - loops.mean([p.reward for p in loops.peers(rows, row) if p is not row]) for row in rows]


def _grpo(cls: Any) -> Subject:
    def grpo(log_probs, action_log_probs, log_probs_ref, advantages, action_mask, clip_eps, kl_weight):
        experience = SimpleNamespace(
            action_log_probs=action_log_probs,
            log_probs_ref=log_probs_ref,
            advantages=advantages,
            action_mask=action_mask,
        )
        return cls(clip_eps, kl_weight)(log_probs, experience)

    return bind(
        grpo, role="policy_loss", name="GRPOLoss", view={"with_prompt": False},
        args={"log_probs": "logp_current", "action_log_probs": "logp_old", "log_probs_ref": "logp_ref",
              "advantages": lambda case: case.sequence("outcome").unsqueeze(1), "action_mask": "trainable"},
        options={"clip_eps": 0.2, "kl_weight": 0.01}, variants={"clip_eps": (0.1,), "kl_weight": (0.5,)},
        returns={"loss": at(0, "loss"), "kl": at(1, "metric")},
    )  # fmt: skip


def _grpo_kl(r: Row, t: int) -> float:
    return loops.k3(r.logp_current[t] - r.logp_ref[t])


def _grpo_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.outcome, 1 - o["clip_eps"], 1 + o["clip_eps"]) + o["kl_weight"] * _grpo_kl(r, t)

    return loops.row_mean(rows, one, empty=True)


def _tail(fn: Any) -> Subject:
    return bind(
        fn, role="response_mask", view={"with_prompt": False},
        args={"ids": lambda case: ending_ids(case, with_prompt=False), "end": lambda case: case.eos_ids[0]},
        returns={"mask": at((), "mask", level="cell")},
    )  # fmt: skip


def _tail_value(case: Case, options: Options) -> Any:
    """Every row up to its first end."""
    grid = ending_ids(case, with_prompt=False).tolist()
    mask = [[float(case.eos_ids[0] not in row[:t]) for t in range(len(row))] for row in grid]
    return {"mask": Result.cell(case, torch.tensor(mask, dtype=torch.float64), with_prompt=False)}


def _soft(cls: Any) -> Subject:
    def soft(student_logits, teacher_logits, answer_mask, T):
        return cls(T)(student_logits, teacher_logits, answer_mask)

    return bind(
        soft, role="distillation", name="SoftTargetLoss", view={"with_prompt": False},
        args={"student_logits": "logits", "teacher_logits": "teacher_logits", "answer_mask": "trainable"},
        options={"T": 2.0}, variants={"T": (1.0,)}, returns={"loss": at((), "loss")},
    )  # fmt: skip


def _soft_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        p, q = (loops.log_softmax(x[t], o["T"]) for x in (r.teacher_logits, r.logits))
        return sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))

    return loops.token_mean(rows, one) * o["T"] ** 2


def _second(method: Any) -> Subject:
    def second(v, v0, goal, live, span, scale):
        return method(SimpleNamespace(cfg=SimpleNamespace(span=span, scale=scale)), v, v0, goal, live)

    return bind(
        second, role="value_loss", name="Trainer.second_step", view={"with_prompt": False},
        args={"v": "value", "v0": "value_old", "goal": "returns", "live": "trainable"},
        options={"span": 0.2, "scale": 0.5}, variants={"span": (0.05,), "scale": (1.0,)},
    )  # fmt: skip


def _second_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        near = loops.clamp(r.value[t], r.value_old[t] - o["span"], r.value_old[t] + o["span"])
        return o["scale"] * 0.5 * max((r.value[t] - r.returns[t]) ** 2, (near - r.returns[t]) ** 2)

    return loops.token_mean(rows, one)


def _shape_value(row: Row, o: Any) -> list[float]:
    last = row.count - 1
    return [-o["beta"] * AWAY(row, t) + (row.reward if t == last else 0.0) for t in range(row.count)]


ENTRIES = [
    Entry("rloo_advantages", "tutorials", "group_advantage",
          "The sum over the other answers is divided by k instead of k - 1.",
          lambda fn: bind(fn, role="group_advantage", args={"rewards": in_pairs("reward")}, options={"k": 2}),
          per_row("advantage", "advantage", _rloo)),
    Entry("GRPOLoss", "tutorials", "policy_loss",
          "The ratio is against the current policy, not the one that sampled, so it is always 1 and never clipped.",
          _grpo,
          together(scalar("loss", "loss", _grpo_loss),
                   scalar("kl", "metric", lambda rows, o: loops.row_mean(rows, _grpo_kl, empty=True))),
          several=True, pads_finite=True),
    Entry("tail", "tutorials", "response_mask",
          "The end token itself is not in the mask, so the policy never learns to stop.", _tail, _tail_value,
          neutral=True),
    Entry("SoftTargetLoss", "tutorials", "distillation",
          "Only the student is softened by the temperature, the teacher is not.", _soft,
          scalar("loss", "loss", _soft_value), single=True),
    Entry("Trainer.second_step", "tutorials", "value_loss",
          "The smaller of the plain and the clipped error is taken instead of the larger.", _second,
          scalar("loss", "loss", _second_value), neutral=True, unusual=True, pads_finite=True),
    Entry("shape", "tutorials", "kl_in_reward",
          "The score goes to the last column, which is padding in all but the longest row.",
          lambda fn: bind(
              fn, role="kl_in_reward",
              args={"marks": "reward", "lp": cells("logp_old"), "lp0": cells("logp_ref"), "live": cells("trainable")},
              view={"with_prompt": False}, options={"beta": 0.1}, variants={"beta": (0.5,)}),
          walked("reward", "reward", _shape_value), neutral=True, unusual=True),
]  # fmt: skip
