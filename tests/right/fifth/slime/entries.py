"""Entries in the dialect of slime."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind

ENGINE = gap("logp_old", "logp_rollout")


def _joined(name: str) -> Callable[[Case], torch.Tensor]:
    return lambda case: torch.cat(case.list(name, with_prompt=False))


def _folded(rows: list[Row], o: Any) -> float:
    total = Row.total if o["by_token"] else Row.mean
    return sum((total(row, lambda r, t: r.token_loss[t]) for row in rows), 0.0)


def _walked(row: Row, o: Any) -> list[float]:
    rewards = [-o["kl_coef"] * x for x in row.kl]
    if rewards:
        rewards[-1] += row.reward
    return loops.to_go(rewards, o["gamma"])


def _tis(fn: Any) -> Subject:
    def corrected(pg_loss, train_log_probs, rollout_log_probs, tis_clip_low, tis_clip):
        args = SimpleNamespace(tis_clip_low=tis_clip_low, tis_clip=tis_clip)
        return fn(args, pg_loss=pg_loss, train_log_probs=train_log_probs, rollout_log_probs=rollout_log_probs)

    return bind(
        corrected, name="tis_correction", layout="list",
        args={"pg_loss": _joined("token_loss"), "train_log_probs": "logp_old", "rollout_log_probs": "logp_rollout"},
        options={"tis_clip_low": 0.5, "tis_clip": 1.5}, variants={"tis_clip_low": (0.9,), "tis_clip": (1.1,)},
        returns={"loss": at(0, "term", level="token"), "tis": at((1, "tis"), "metric", level="token"),
                 "clipfrac": at((1, "tis_clipfrac"), "metric", level="token")},
    )  # fmt: skip


def _weight(r: Row, t: int, o: Any) -> float:
    return loops.clamp(loops.exp(ENGINE(r, t)), o["tis_clip_low"], o["tis_clip"])


ENTRIES = [
    Entry("fold", "slime", "aggregation",
          "A sample is divided by the length of its response, also where tool output in it does not train.",
          lambda fn: bind(
              fn, role="aggregation", layout="list", combine="sum",
              args={"x": _joined("token_loss"), "spans": lambda case: list(case.response_lengths),
                    "keeps": "trainable"},
              options={"by_token": False}, variants={"by_token": (True,)}),
          scalar("loss", "loss", _folded), neutral=True, unusual=True, pads_finite=True),
    Entry("walk_back", "slime", "returns",
          "The reward is put on the last token of the response, and is lost where that token is tool output.",
          lambda fn: bind(
              fn, role="returns", layout="list",
              args={"rewards": lambda case: case.sequence("reward").tolist(), "kl": "kl", "loss_masks": "trainable"},
              options={"kl_coef": 0.1, "gamma": 0.9}, variants={"kl_coef": (0.0,), "gamma": (1.0,)}),
          walked("return", "return", _walked), neutral=True),
    Entry("tis_correction", "slime", None,
          "The ratio is clamped in place, so the logged ratio is the truncated one and the clip fraction always 0.",
          _tis,
          together(per_token("loss", "term", lambda r, t, o: r.token_loss[t] * _weight(r, t, o)),
                   per_token("tis", "metric", lambda r, t, o: loops.exp(ENGINE(r, t))),
                   per_token("clipfrac", "metric",
                             lambda r, t, o: float(_weight(r, t, o) != loops.exp(ENGINE(r, t))))),
          several=True),
]  # fmt: skip
