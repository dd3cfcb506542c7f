"""Entries in the dialect of slime."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, exp, gap, per_token, ppo, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
LISTS = {"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage", "loss_masks": "trainable"}


def _policy(fn: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_masks, **settings):
        return fn(Namespace(**settings), log_probs, old_log_probs, advantages, loss_masks)

    return bind(
        loss, role="policy_loss", name="policy_loss_function", layout="list", args=LISTS,
        options={"eps_clip": 0.2, "eps_clip_high": 0.28, "calculate_per_token_loss": False},
        variants={"eps_clip": (0.4,), "eps_clip_high": (0.6,), "calculate_per_token_loss": (True,)},
        returns={"loss": at(0, "loss"), "clipfrac": at((1, "pg_clipfrac"), "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip_high"])

    return sum((r.total(one) if o["calculate_per_token_loss"] else r.mean(one)) for r in rows)


def _clipfrac(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio, credit = exp(UPDATE(r, t)), r.advantage[t]
        return float(-clamp(ratio, 1 - o["eps_clip"], 1 + o["eps_clip_high"]) * credit > -ratio * credit)

    return loops.row_mean(rows, one, empty=True)


def _weights(fn: Any) -> Subject:
    def weights(train_log_probs, rollout_log_probs, **settings):
        return fn(Namespace(**settings), train_log_probs, rollout_log_probs)

    return bind(
        weights, role="importance", name="f", layout="list",
        args={"train_log_probs": "logp_old", "rollout_log_probs": "logp_rollout"},
        options={"tis_clip": 2.0, "tis_clip_low": 0.5}, variants={"tis_clip": (1.2,), "tis_clip_low": (0.9,)},
        returns={"weight": at("weights", "importance", pair=("logp_old", "logp_rollout"))},
    )  # fmt: skip


def _opsm(fn: Any) -> Subject:
    def keep(log_probs, old_log_probs, advantages, loss_masks, opsm_delta):
        return fn(Namespace(opsm_delta=opsm_delta), log_probs, old_log_probs, advantages, loss_masks)

    return bind(
        keep, role="keep", name="select", layout="list",
        args={**LISTS, "advantages": lambda case: list(case.sequence("outcome"))},
        options={"opsm_delta": 0.05}, variants={"opsm_delta": (0.3,)},
        returns={"keep": at((), "keep", scope="sequence")},
    )  # fmt: skip


def _kept(r: Row, t: int, o: Any) -> float:
    return float(not (r.outcome < 0 and r.mean(gap("logp_old", "logp_current")) > o["opsm_delta"]))


def _paid(row: Row, o: Any) -> list[float]:
    paid = [-o["kl_coef"] * row.kl[t] + (row.reward if t == row.count - 1 else 0.0) for t in range(row.count)]
    return loops.to_go(paid, o["gamma"])


def _samples(case: Case) -> list[Any]:
    return [SimpleNamespace(reward=float(r), group_index=int(g))
            for r, g in zip(case.sequence("reward"), case.sequence("group"), strict=True)]  # fmt: skip


def _post(fn: Any) -> Subject:
    def processed(samples, **settings):
        return fn(Namespace(**settings), samples)

    return bind(
        processed, role="reward_normalisation", name="post_process_rewards", args={"samples": _samples},
        options={"advantage_estimator": "grpo", "grpo_std_normalization": True},
        variants={"grpo_std_normalization": (False,)},
    )  # fmt: skip


def _normalised(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = loops.spread(group, 0) + 1e-6 if o["grpo_std_normalization"] else 1.0
        found.append((row.reward - loops.mean(group)) / size)
    return found


ENTRIES = [
    Entry("policy_loss_function", "slime", "policy_loss",
          "The mean of a sample divides by its response length, so tool output counts.", _policy,
          together(scalar("loss", "loss", _loss), scalar("clipfrac", "metric", _clipfrac)), several=True),
    Entry("reduce_it", "slime", "aggregation",
          "The next sample starts after the trained tokens of the last one, not after all its tokens.",
          lambda fn: bind(
              fn, role="aggregation", layout="list",
              args={"x": lambda case: torch.cat([*case.list("token_loss", with_prompt=False), torch.zeros(0).double()]),
                    "loss_masks": "trainable"}),
          scalar("loss", "loss", lambda rows, o: sum(r.mean(lambda r, t: r.token_loss[t]) for r in rows)),
          neutral=True),
    Entry("f", "slime", "importance", "The ratio is that of the engine over the trainer.", _weights,
          per_token("weight", "importance", lambda r, t, o: clamp(
              exp(r.logp_old[t] - r.logp_rollout[t]), o["tis_clip_low"], o["tis_clip"])), neutral=True),
    Entry("select", "slime", "keep", "The drift has the wrong sign: samples that became likelier are dropped.",
          _opsm, per_token("keep", "keep", _kept), neutral=True),
    Entry("get_returns", "slime", "returns",
          "The reward is put on the last token of the response, which may be tool output.",
          lambda fn: bind(fn, role="returns", layout="list",
                          args={"rewards": "reward", "kl": "kl", "loss_masks": "trainable"},
                          options={"kl_coef": 0.1, "gamma": 0.9}, variants={"kl_coef": (0.5,), "gamma": (1.0,)}),
          walked("return", "return", _paid)),
    Entry("post_process_rewards", "slime", "reward_normalisation",
          "Rewards are divided by the deviation of the whole batch.", _post,
          loops.per_row("advantage", "advantage", _normalised), single=True),
]  # fmt: skip
