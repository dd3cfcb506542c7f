"""Entries in the dialect of TRL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together
from tests.right.shapes import in_pairs, prompted, written

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
LONGEST = 16


def _loss(method: Any) -> Subject:
    def loss(
        per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask,
        beta, epsilon, epsilon_high, loss_type,
    ):  # fmt: skip
        trainer = SimpleNamespace(
            beta=beta,
            epsilon_low=epsilon,
            epsilon_high=epsilon_high,
            loss_type=loss_type,
            max_completion_length=LONGEST,
        )
        inputs = {"completion_mask": completion_mask, "advantages": advantages,
                  "old_per_token_logps": old_per_token_logps, "ref_per_token_logps": ref_per_token_logps}  # fmt: skip
        return method(trainer, per_token_logps, inputs)

    return bind(
        loss, role="policy_loss", name="GRPOTrainer._compute_loss",
        args={"per_token_logps": "logp_current", "old_per_token_logps": "logp_old", "ref_per_token_logps": "logp_ref",
              "advantages": "outcome", "completion_mask": "trainable"},
        options={"beta": 0.04, "epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "grpo"},
        variants={"beta": (0.5,), "epsilon": (0.1,), "epsilon_high": (0.4,), "loss_type": ("bnpo", "dr_grpo")},
    )  # fmt: skip


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        kl = loops.k3(r.logp_current[t] - r.logp_ref[t])
        return ppo(UPDATE(r, t), r.outcome, 1 - o["epsilon"], 1 + o["epsilon_high"]) + o["beta"] * kl

    if o["loss_type"] == "bnpo":
        return loops.token_mean(rows, one)
    if o["loss_type"] == "dr_grpo":
        return loops.row_sum_mean(rows, one, empty=True) / LONGEST
    return loops.row_mean(rows, one, empty=True)


def _rescaled(method: Any) -> Subject:
    def rescaled(rewards, scale_rewards):
        return method(SimpleNamespace(num_generations=2, scale_rewards=scale_rewards), rewards)

    return bind(
        rescaled, role="group_advantage", name="GRPOTrainer._rescale", args={"rewards": in_pairs("reward")},
        options={"scale_rewards": "group"}, variants={"scale_rewards": ("none",)},
    )  # fmt: skip


def _rescaled_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = loops.spread(group, 1) + 1e-4 if o["scale_rewards"] == "group" else 1.0
        found.append((row.reward - loops.mean(group)) / size)
    return found


def _clip_metrics(fn: Any) -> Subject:
    return bind(
        fn, role="metric",
        args={"per_token_logps": "logp_current", "old_per_token_logps": "logp_old", "advantages": "outcome",
              "completion_mask": "trainable"},
        options={"epsilon_low": 0.2, "epsilon_high": 0.28}, variants={"epsilon_low": (0.05,), "epsilon_high": (0.05,)},
        returns={"low": at("clip_ratio/low_mean", "metric"), "high": at("clip_ratio/high_mean", "metric"),
                 "region": at("clip_ratio/region_mean", "metric")},
    )  # fmt: skip


def _low(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: float(loops.exp(UPDATE(r, t)) < 1 - o["epsilon_low"] and r.outcome < 0))


def _high(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: float(loops.exp(UPDATE(r, t)) > 1 + o["epsilon_high"] and r.outcome > 0))


def _writes(fn: Any) -> bool:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return written(lambda x: fn(x, torch.ones(3, 4, dtype=torch.long), 0.7), logits)


ENTRIES = [
    Entry("GRPOTrainer._compute_loss", "trl", "policy_loss",
          "The KL term is computed without gradients.", _loss, scalar("loss", "loss", _loss_value), pads_finite=True),
    Entry("GRPOTrainer._rescale", "trl", "group_advantage",
          "The spread of a group is repeated in the wrong order, so most completions get that of another prompt.",
          _rescaled, per_row("advantage", "advantage", _rescaled_value), neutral=True),
    Entry("clip_metrics", "trl", "metric",
          "Ratios outside the band count as clipped also where the clip is not in force.", _clip_metrics,
          together(scalar("low", "metric", _low), scalar("high", "metric", _high),
                   scalar("region", "metric", lambda rows, o: _low(rows, o) + _high(rows, o))), several=True),
    Entry("collect", "trl", "logp",
          "The logits of the caller are divided by the temperature in place.",
          lambda fn: bind(
              fn, role="logp",
              args={"logits": lambda case: prompted(case).logits(), "input_ids": lambda case: case.padded("token_id")},
              view={"with_prompt": True, "drop_first": True}, options={"temperature": 0.7},
              variants={"temperature": (1.0,)}, temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          neutral=True, single=True, differs=lambda right, wrong: _writes(right) != _writes(wrong)),
]  # fmt: skip
