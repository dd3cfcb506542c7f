"""Entries in the dialect of prime-rl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import in_pairs, prompted, whole_tokens
from torch import Tensor

from trimtab.sentinel import Case, Subject, at, bind

TOTAL = gap("logp_current", "logp_rollout")
TWO = {"trainer_logprobs": "logp_current", "inference_logprobs": "logp_rollout", "loss_mask": "trainable"}


def _loss(fn: Any) -> Subject:
    def loss(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale, dppo_mask_low, dppo_mask_high, kl_tau
    ):
        config = SimpleNamespace(dppo_mask_low=dppo_mask_low, dppo_mask_high=dppo_mask_high, kl_tau=kl_tau)
        return fn(trainer_logprobs, inference_logprobs, advantages, loss_mask, config, loss_scale)

    return bind(
        loss, role="policy_loss", name="compute_loss", layout="list",
        args={**TWO, "advantages": "advantage", "loss_scale": whole_tokens},
        options={"dppo_mask_low": 0.1, "dppo_mask_high": 0.1, "kl_tau": 1e-3},
        variants={"dppo_mask_low": (0.02,), "dppo_mask_high": (0.02,), "kl_tau": (0.1,)},
        returns={"loss": at(0, "loss"), "is_masked": at((1, "is_masked"), "metric")},
    )  # fmt: skip


def _dropped(r: Row, t: int, o: Any) -> bool:
    moved = loops.exp(r.logp_current[t]) - loops.exp(r.logp_rollout[t])
    return moved > o["dppo_mask_high"] if r.advantage[t] > 0 else moved < -o["dppo_mask_low"]


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        gained = 0.0 if _dropped(r, t, o) else r.advantage[t] * loops.exp(TOTAL(r, t))
        return o["kl_tau"] * TOTAL(r, t) ** 2 - gained

    return sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1)


def _lengths(case: Case) -> Tensor:
    in_pairs("reward")(case)
    return torch.tensor(case.response_lengths)


def _shaped(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        lengths = [row.case.response_lengths[p.index] for p in group]
        weighted = sum(p.reward * n for p, n in zip(group, lengths, strict=True))
        found.append(row.reward - weighted / sum(lengths))
    return found


def _ratios(rows: list[Row]) -> list[float]:
    return [loops.exp(TOTAL(r, t)) for r in rows for t in range(r.count)]


ENTRIES = [
    Entry("compute_loss", "prime_rl", "policy_loss",
          "Tokens are dropped on the wrong side: the sign of the advantage is taken the other way round.", _loss,
          together(scalar("loss", "loss", _loss_value),
                   scalar("is_masked", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: float(_dropped(r, t, o))))),
          several=True),
    Entry("shape", "prime_rl", "group_advantage",
          "The weighted rewards are averaged, although the weights already sum to one.",
          lambda fn: bind(
              fn, role="group_advantage", args={"rewards": in_pairs("reward"), "completion_lengths": _lengths},
              options={"samples_per_problem": 2}),
          per_row("advantage", "advantage", _shaped), neutral=True),
    Entry("score", "prime_rl", "logp",
          "The logits are not shifted, so an id is scored at its own position.",
          lambda fn: bind(
              fn, role="logp",
              args={"logits": lambda case: prompted(case).logits(), "input_ids": lambda case: case.padded("token_id")},
              view={"with_prompt": True}, options={"temperature": 0.8}, variants={"temperature": (1.0,)},
              temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          neutral=True, single=True),
    Entry("summary", "prime_rl", "metric",
          "The smallest ratio is taken after masked ratios were set to zero.",
          lambda fn: bind(
              fn, role="metric", layout="list", args=TWO,
              returns={"kl": at("mismatch_kl/mean", "metric"), "max": at("importance_ratio/max", "metric"),
                       "min": at("importance_ratio/min", "metric")}),
          together(scalar("kl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: loops.k3(-TOTAL(r, t)))),
                   scalar("max", "metric", lambda rows, o: max(_ratios(rows), default=0.0)),
                   scalar("min", "metric", lambda rows, o: min(_ratios(rows), default=0.0))),
          neutral=True, several=True),
]  # fmt: skip
