"""Entries in the dialect of slime."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, ppo, scalar, together, walked

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
BEHIND = gap("logp_old", "logp_rollout")


def _reducer(fn: Any) -> Subject:
    def reduce(x, loss_masks, calculate_per_token_loss):
        return fn([len(one) for one in x], loss_masks, calculate_per_token_loss)(torch.cat(x))

    return bind(
        reduce, role="aggregation", name="make_reducer", layout="list",
        args={"x": "token_loss", "loss_masks": "trainable"},
        options={"calculate_per_token_loss": False}, variants={"calculate_per_token_loss": (True,)},
    )  # fmt: skip


def _reduced(rows: list[Row], o: Any) -> float:
    whole = o["calculate_per_token_loss"]
    return sum(r.total(_own) if whole else r.mean(_own) for r in rows)


def _own(row: Row, t: int) -> float:
    return row.token_loss[t]


def _policy(fn: Any) -> Subject:
    def loss(
        log_probs, old_log_probs, rollout_log_probs, advantages, loss_masks, eps_clip, eps_clip_high, tis_clip, use_tis
    ):
        args = SimpleNamespace(
            eps_clip=eps_clip, eps_clip_high=eps_clip_high, tis_clip=tis_clip, tis_clip_low=0.0, use_tis=use_tis
        )
        batch = {"advantages": advantages, "log_probs": old_log_probs, "rollout_log_probs": rollout_log_probs}
        mask = torch.cat(loss_masks)
        return fn(args, batch, log_probs, lambda x: torch.where(mask.bool(), x, 0.0).sum() / mask.sum().clamp(min=1))

    return bind(
        loss, role="policy_loss", name="policy_loss_function", layout="list",
        args={"log_probs": "logp_current", "old_log_probs": "logp_old", "rollout_log_probs": "logp_rollout",
              "advantages": "advantage", "loss_masks": "trainable"},
        options={"eps_clip": 0.2, "eps_clip_high": 0.28, "tis_clip": 2.0, "use_tis": True},
        variants={"eps_clip": (0.1,), "eps_clip_high": (0.5,), "tis_clip": (1.1,), "use_tis": (False,)},
        returns={"loss": at(0, "loss"), "ppo_kl": at((1, "ppo_kl"), "metric")},
    )  # fmt: skip


def _policy_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        weight = min(loops.exp(BEHIND(r, t)), o["tis_clip"]) if o["use_tis"] else 1.0
        return weight * ppo(UPDATE(r, t), r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip_high"])

    return loops.token_mean(rows, one)


def _gated(rows: list[Row], o: Any) -> list[float]:
    low = math.log(o["veto_threshold"])
    return [float(all(BEHIND(r, t) >= low for t in range(r.count))) for r in rows]


def _walk(fn: Any) -> Subject:
    def walk(values, rewards, loss_mask, gamma, lambd):
        found = [fn(v, r, m, gamma, lambd) for v, r, m in zip(values, rewards, loss_mask, strict=True)]
        return [one[0] for one in found], [one[1] for one in found]

    return bind(
        walk, role="returns", name="walk", layout="list",
        args={"values": "value", "rewards": "token_reward", "loss_mask": "trainable"},
        options={"gamma": 0.95, "lambd": 0.9}, variants={"gamma": (1.0,), "lambd": (1.0, 0.5)},
        returns={"advantages": at(0, "advantage"), "returns": at(1, "return")},
    )  # fmt: skip


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


ENTRIES = [
    Entry("make_reducer", "slime", "aggregation",
          "The sum over trained tokens is divided by the length of the response, with its tool output.", _reducer,
          scalar("loss", "loss", _reduced), neutral=True, unusual=True, pads_finite=True),
    Entry("policy_loss_function", "slime", "policy_loss",
          "The truncated importance weight is of the current policy instead of the one that scored the batch.",
          _policy,
          together(scalar("loss", "loss", _policy_value),
                   scalar("ppo_kl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: -UPDATE(r, t)))),
          several=True, pads_finite=True),
    Entry("gate", "slime", "keep",
          "Only the unlikely tokens are dropped, not their samples.",
          lambda fn: bind(
              fn, role="keep", layout="list",
              args={"train_log_probs": "logp_old", "rollout_log_probs": "logp_rollout", "loss_masks": "trainable"},
              options={"veto_threshold": 0.6}, variants={"veto_threshold": (0.9,)}),
          per_row("keep", "keep", _gated, level="token"), neutral=True),
    Entry("walk", "slime", "returns",
          "The last token bootstraps from its own value, although nothing follows.", _walk,
          together(walked("advantages", "advantage", _advantages),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_advantages(row, o), row.value, strict=True)])),
          neutral=True, several=True),
]  # fmt: skip
