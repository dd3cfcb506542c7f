"""Entries in the dialect of TRL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, peers, per_row, per_token, ppo, scalar, together
from tests.right.shapes import cells, in_pairs, prompted, response_width

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
NAMES = {"per_token_logps": "logp_current", "old_per_token_logps": "logp_old", "ref_per_token_logps": "logp_ref",
         "completion_mask": "trainable"}  # fmt: skip


def _grpo(fn: Any) -> Subject:
    def loss(inputs, **settings):
        return fn(SimpleNamespace(**settings), inputs)

    def inputs(case: Case) -> dict[str, torch.Tensor]:
        fields = {name: case.padded(field, with_prompt=False) for name, field in NAMES.items()}
        return {**fields, "advantages": case.sequence("outcome")}

    return bind(loss, role="policy_loss", name="_compute_loss", args={"inputs": inputs},
                options={"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.04},
                variants={"epsilon_low": (0.5,), "epsilon_high": (0.9,)}, penalties={"beta": "logp_ref"})  # fmt: skip


def _grpo_loss(rows: list[Row], o: Any) -> float:
    low, high = 1 - o["epsilon_low"], 1 + o["epsilon_high"]

    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.outcome, low, high) + o["beta"] * loops.k3(r.logp_current[t] - r.logp_ref[t])

    return loops.row_mean(rows, one, empty=True)


def _scaled(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        own = [other.reward for other in peers(rows, row)]
        wide = {"group": own, "batch": [other.reward for other in rows]}.get(o["scale_rewards"])
        centred = row.reward - loops.mean(own)
        found.append(centred / (loops.spread(wide, 1) + 1e-4) if wide else centred)
    return found


def _leave_one_out(rows: list[Row], o: Any) -> list[float]:
    return [row.reward - loops.mean([other.reward for other in peers(rows, row) if other is not row]) for row in rows]


def _weight(r: Row, t: int, cap: float) -> float:
    return min(loops.exp(r.logp_current[t] - r.logp_rollout[t]), cap)


def _undetached(right: Any, wrong: Any) -> bool:
    """Whether the gradient into the current policy differs."""
    found = []
    for fn in (right, wrong):
        logps = torch.tensor([[-1.0, -0.5], [-0.7, -0.3]], dtype=torch.float64, requires_grad=True)
        ones = torch.ones(2, 2, dtype=torch.float64)
        fn(logps, -ones, torch.tensor([1.0, -1.0], dtype=torch.float64), ones).backward()
        found.append(logps.grad)
    return not torch.allclose(*found)


def _clips(side: str) -> Any:
    def value(rows: list[Row], o: Any) -> float:
        def one(r: Row, t: int) -> float:
            ratio = loops.exp(UPDATE(r, t))
            low = ratio < 1 - o["epsilon_low"] and r.outcome < 0
            high = ratio > 1 + o["epsilon_high"] and r.outcome > 0
            return float({"low": low, "high": high, "region": low or high}[side])

        return loops.token_mean(rows, one)

    return scalar(side, "metric", value)


def _metrics(fn: Any) -> Subject:
    sides = ("low", "high", "region")
    return bind(
        fn, role="metric", options={"epsilon_low": 0.2, "epsilon_high": 0.28},
        args={"coef_1": lambda c: torch.exp(cells("logp_current")(c) - cells("logp_old")(c)), "advantages": "outcome"},
        returns={s: at(f"clip_ratio/{s}_mean", "metric", range=(0, 1), agreed=0.0, reduction="mean") for s in sides},
    )  # fmt: skip


def _logps(fn: Any) -> Subject:
    return bind(
        fn, role="logp",
        args={"logits": lambda c: prompted(c).logits(side="both"), "logits_to_keep": response_width,
              "input_ids": lambda c: c.padded("token_id", side="both")},
    )  # fmt: skip


def _means(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return r.token_loss[t]

    kind = o["loss_type"]
    if kind == "dr_grpo":
        return sum(row.total(one) for row in rows) / len(rows) / o["max_completion_length"]
    return loops.row_mean(rows, one, empty=True) if kind == "grpo" else loops.token_mean(rows, one)


ENTRIES = [
    Entry("GRPOTrainer._compute_loss", "trl", "policy_loss",
          "The KL penalty is subtracted from the loss (verl 38ac52554).", _grpo, scalar("loss", "loss", _grpo_loss),
          pads_finite=True),
    Entry("RLOOTrainer.process", "trl", "reward_normalisation",
          "The leave-one-out sum is divided by n instead of n - 1.",
          lambda fn: bind(fn, role="reward_normalisation",
                          args={"self": lambda c: SimpleNamespace(num_generations=2), "rewards": in_pairs("reward")}),
          per_row("advantage", "advantage", _leave_one_out), neutral=True),
    Entry("get_per_token_logps", "trl", "logp",
          "The last logits are not dropped, so each token is scored one position late (verl 02e06fa2e was off by one).",
          _logps, per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t])[r.token_id[t]])),
    Entry("entropy_from_logits", "trl", "entropy", "The sign is lost: it returns the sum of p log p.",
          lambda fn: bind(fn, role="entropy", args={"logits": lambda c: c.padded("logits", with_prompt=False)}),
          per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t])), single=True),
    Entry("compute", "trl", "reward_normalisation",
          "scale_rewards='group' divides by the spread of the batch (TRL 705306d78).",
          lambda fn: bind(fn, role="reward_normalisation", args={"rewards": in_pairs("reward")},
                          options={"num_generations": 2, "scale_rewards": "group"},
                          variants={"scale_rewards": ("batch", "none")}),
          per_row("advantage", "advantage", _scaled), neutral=True),
    Entry("step_fn", "trl", "policy_loss",
          "The importance weight is not detached, so its own gradient is added.",
          lambda fn: bind(fn, role="policy_loss", args={"advantages": "outcome"}, stops_gradient=True,
                          options={"vllm_importance_sampling_cap": 2.0},
                          variants={"vllm_importance_sampling_cap": (1.1,)}),
          scalar("loss", "loss", lambda rows, o: loops.token_mean(
              rows, lambda r, t: -_weight(r, t, o["vllm_importance_sampling_cap"]) * r.outcome * r.logp_current[t]),
              detached=True),
          neutral=True, pads_finite=True, differs=_undetached),
    Entry("clip_metrics", "trl", "metric",
          "Ratios outside the band count even where the minimum does not clip (TRL 488025cd8).", _metrics,
          together(_clips("low"), _clips("high"), _clips("region")), several=True, unusual=True, pads_finite=True),
    Entry("reduce_it", "trl", "aggregation",
          "In the mode dr_grpo the loss is divided by the number of tokens as well as by the constant length.",
          lambda fn: bind(fn, role="aggregation", options={"loss_type": "grpo", "max_completion_length": 8},
                          variants={"loss_type": ("bnpo", "dr_grpo")}),
          scalar("loss", "loss", _means), neutral=True),
]  # fmt: skip
