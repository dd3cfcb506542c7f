"""Entries in the dialect of TRL."""

import math
from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together
from tests.right.shapes import in_pairs, prompted, response_width, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE = gap("logp_current", "logp_old")


def _trainer(**settings: Any) -> Any:
    return SimpleNamespace(args=SimpleNamespace(**settings), epsilon_low=settings["epsilon"],
                           epsilon_high=settings["epsilon_high"],
                           max_completion_length=settings.get("max_completion_length"))  # fmt: skip


def _loss(method: Any) -> Subject:
    def loss(per_token_logps, old_per_token_logps, advantages, completion_mask, **settings):
        inputs = {"completion_mask": completion_mask, "advantages": advantages,
                  "old_per_token_logps": old_per_token_logps}  # fmt: skip
        return method(_trainer(**settings), per_token_logps, inputs)

    return bind(
        loss, role="policy_loss", name="GRPOTrainer._compute_loss",
        args={"per_token_logps": "logp_current", "old_per_token_logps": "logp_old", "advantages": "outcome",
              "completion_mask": "trainable"},
        options={"epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": 16, "loss_type": "dr_grpo"},
        variants={"epsilon": (0.5,), "epsilon_high": (0.7,), "loss_type": ("grpo", "bnpo")},
    )  # fmt: skip


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.outcome, 1 - o["epsilon"], 1 + o["epsilon_high"])

    if o["loss_type"] == "dr_grpo":
        return sum(r.total(one) for r in rows) / (len(rows) * o["max_completion_length"])
    return loops.token_mean(rows, one) if o["loss_type"] == "bnpo" else loops.row_mean(rows, one, empty=True)


def _stuff(method: Any) -> Subject:
    def logged(per_token_logps, old_per_token_logps, advantages, completion_mask, epsilon, epsilon_high):
        trainer = _trainer(epsilon=epsilon, epsilon_high=epsilon_high)
        return method(trainer, per_token_logps, old_per_token_logps, advantages, completion_mask)

    def part(name: str) -> Any:
        return at(f"clip_ratio/{name}_mean", "metric", range=(0, 1), agreed=0.0, reduction="mean")

    return bind(
        logged, role="metric", name="GRPOTrainer._log_stuff",
        args={"per_token_logps": "logp_current", "old_per_token_logps": "logp_old", "advantages": "outcome",
              "completion_mask": "trainable"},
        options={"epsilon": 0.1, "epsilon_high": 0.2}, variants={"epsilon": (0.3,), "epsilon_high": (0.05,)},
        returns={"low": part("low"), "high": part("high"), "region": part("region")},
    )  # fmt: skip


def _clipped(which: str) -> Any:
    def value(rows: list[Row], o: Any) -> float:
        def one(r: Row, t: int) -> float:
            ratio = loops.exp(UPDATE(r, t))
            low, high = ratio < 1 - o["epsilon"] and r.outcome < 0, ratio > 1 + o["epsilon_high"] and r.outcome > 0
            return float({"low": low, "high": high, "region": low or high}[which])

        return loops.token_mean(rows, one)

    return scalar(which, "metric", value)


def _advantage(rows: list[Row], o: Any) -> list[float]:
    paid = [r.reward for r in rows]
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = {"none": 1.0, "batch": loops.spread(paid, 1) + 1e-4, "group": loops.spread(group, 1) + 1e-4}
        found.append((row.reward - loops.mean(group)) / size[o["scale_rewards"]])
    return found


def _kl_term(rows: list[Row], o: Any) -> float:
    total = sum(r.total(lambda r, t: loops.k3(r.logp_current[t] - r.logp_ref[t])) for r in rows)
    return o["beta"] * total / max(whole_tokens(rows[0].case), 1) if rows else 0.0


def _quantile(case: Case, o: Any) -> Any:
    pooled = sorted(h for row in loops.rows(case) for h in row.entropy)
    if not pooled:
        return {"keep": Result(loops.numbers([]), "token", "keep")}
    place = o["threshold"] * (len(pooled) - 1)
    low, high = pooled[math.floor(place)], pooled[math.ceil(place)]
    cut = low + (place - math.floor(place)) * (high - low)
    kept = [float(h > cut) for row in loops.rows(case) for h in row.entropy]
    return {"keep": Result(loops.numbers(kept), "token", "keep")}


ENTRIES = [
    Entry("GRPOTrainer._compute_loss", "trl", "policy_loss",
          "dr_grpo divides by the width of this batch instead of the constant length.", _loss,
          scalar("loss", "loss", _loss_value)),
    Entry("GRPOTrainer._log_stuff", "trl", "metric",
          "The upper clip fraction counts negative advantages, where that side never binds.", _stuff,
          together(_clipped("low"), _clipped("high"), _clipped("region")), neutral=True, several=True, single=True),
    Entry("get_per_token_logps", "trl", "logp",
          "The last logits are kept: each token gets the distribution of the next one.",
          lambda fn: bind(
              fn, role="logp", args={"logits": lambda case: prompted(case).logits(side="both"),
                                     "input_ids": lambda case: case.padded("token_id", side="both"),
                                     "logits_to_keep": response_width},
              options={"temperature": 0.8}, variants={"temperature": (1.0,)}, temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]])),
    Entry("process", "trl", "group_advantage",
          "Deviations are tiled instead of repeated, so groups get one another's.",
          lambda fn: bind(
              fn, role="group_advantage", couples="batch", args={"rewards": in_pairs("reward")},
              options={"num_generations": 2, "scale_rewards": "group"},
              variants={"scale_rewards": ("batch", "none")}),
          loops.per_row("advantage", "advantage", _advantage), neutral=True),
    Entry("term", "trl", "kl_in_loss", "The penalty is computed from detached log-probs and trains nothing.",
          lambda fn: bind(
              fn, role="kl_in_loss", args={"per_token_logps": "logp_current", "ref_per_token_logps": "logp_ref",
                                           "completion_mask": "trainable", "num_items_in_batch": whole_tokens},
              options={"beta": 0.04}, variants={"beta": (0.2,)}, penalties={"beta": "logp_ref"}),
          scalar("loss", "loss", _kl_term), neutral=True),
    Entry("get_high_entropy_mask", "trl", "keep", "The quantile is taken over padding too.",
          lambda fn: bind(
              fn, role="keep", couples="batch", args={"entropies": "entropy", "mask": "trainable"},
              options={"threshold": 0.5}, variants={"threshold": (0.8,)}),
          _quantile),
]  # fmt: skip
