"""Entries in the dialect of verl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, ppo, scalar, together, walked
from tests.right.shapes import cells

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.targets.handed import reward_on_last

UPDATE = gap("logp_current", "logp_old")


def _gae(fn: Any) -> Subject:
    return bind(
        fn, role="returns", couples="batch",
        args={"token_level_rewards": "token_reward", "values": "value", "response_mask": "trainable"},
        options={"gamma": 0.9, "lam": 0.8}, variants={"gamma": (1.0,), "lam": (1.0, 0.5)},
        returns={"advantage": at(0, "advantage"), "returns": at(1, "return")},
    )  # fmt: skip


def _raw(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lam"])


def _returns(row: Row, o: Any) -> list[float]:
    return [a + v for a, v in zip(_raw(row, o), row.value, strict=True)]


def _whitened(case: Case, o: Any) -> Any:
    found = [a for row in loops.rows(case) for a in _raw(row, o)]
    centre, count = loops.mean(found), len(found)
    variance = sum((a - centre) ** 2 for a in found) / max(count - 1, 1)
    flat = iter([(a - centre) / (variance + 1e-8) ** 0.5 for a in found])
    return walked("advantage", "advantage", lambda row, _: [next(flat) for _ in range(row.count)])(case, o)


def _per_token(case: Case) -> torch.Tensor:
    """One advantage per sequence, repeated over its tokens."""
    return case.sequence("outcome")[:, None].expand_as(cells("trainable")(case))


def _gspo(fn: Any) -> Subject:
    def loss(old_log_prob, log_prob, advantages, response_mask, clip_ratio, clip_ratio_low, clip_ratio_high):
        config = SimpleNamespace(clip_ratio=clip_ratio, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
        return fn(old_log_prob, log_prob, advantages, response_mask, config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_gspo",
        args={"old_log_prob": "logp_old", "log_prob": "logp_current", "advantages": _per_token,
              "response_mask": "trainable"},
        options={"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": 0.28},
        variants={"clip_ratio": (0.05,), "clip_ratio_low": (0.1,), "clip_ratio_high": (None, 0.5)},
        returns={"loss": at(0, "loss"), "clipfrac": at((1, "actor/pg_clipfrac"), "metric"),
                 "ppo_kl": at((1, "actor/ppo_kl"), "metric")},
    )  # fmt: skip


def _band(o: Any) -> tuple[float, float]:
    low, high = (o["clip_ratio"] if o[name] is None else o[name] for name in ("clip_ratio_low", "clip_ratio_high"))
    return 1 - low, 1 + high


def _gspo_loss(rows: list[Row], o: Any) -> float:
    return loops.row_mean(rows, lambda r, t: ppo(min(r.mean(UPDATE), 10.0), r.outcome, *_band(o)))


def _gspo_clipped(rows: list[Row], o: Any) -> float:
    low, high = _band(o)

    def clipped(r: Row, t: int) -> float:
        ratio = loops.exp(min(r.mean(UPDATE), 10.0))
        return float((ratio > high and r.outcome > 0) or (ratio < low and r.outcome < 0))

    return loops.token_mean(rows, clipped)


def _data(case: Case) -> dict[str, torch.Tensor]:
    found = {name: cells(field)(case) for name, field in (("advantages", "advantage"), ("returns", "returns"))}
    return {**found, "response_mask": cells("trainable")(case), "token_level_scores": reward_on_last(case)}


LOGGED = {
    "score": "critic/score/mean", "adv_max": "critic/advantages/max", "adv_mean": "critic/advantages/mean",
    "ret_mean": "critic/returns/mean", "ret_max": "critic/returns/max", "ret_min": "critic/returns/min",
    "length": "response_length/mean",
}  # fmt: skip


def _all(rows: list[Row], name: str) -> list[float]:
    return [x for row in rows for x in getattr(row, name)]


ENTRIES = [
    Entry("compute_gae_advantage_return", "verl", "returns",
          "The returns are made from advantages that are already whitened, so the critic learns another scale.",
          _gae, together(_whitened, walked("returns", "return", _returns)), several=True, pads_finite=True),
    Entry("compute_policy_loss_gspo", "verl", "policy_loss",
          "The sequence ratio is not detached, so its gradient is counted twice.",
          _gspo, together(scalar("loss", "loss", _gspo_loss), scalar("clipfrac", "metric", _gspo_clipped),
                          scalar("ppo_kl", "metric", lambda rows, o: -loops.token_mean(rows, UPDATE))),
          several=True, pads_finite=True),
    Entry("reduce_batch", "verl", "metric",
          "Extremes of the returns are taken over masked rows, so the zeros of padding take part.",
          lambda fn: bind(
              fn, role="metric", args={"batch": _data}, options={"use_critic": True},
              returns={name: at(key, "metric") for name, key in LOGGED.items()}),
          together(scalar("score", "metric", lambda rows, o: loops.mean([r.reward if r.count else 0.0 for r in rows])),
                   scalar("adv_max", "metric", lambda rows, o: max(_all(rows, "advantage"), default=0.0)),
                   scalar("adv_mean", "metric", lambda rows, o: loops.mean(_all(rows, "advantage"))),
                   scalar("ret_mean", "metric", lambda rows, o: loops.mean(_all(rows, "returns"))),
                   scalar("ret_max", "metric", lambda rows, o: max(_all(rows, "returns"), default=0.0)),
                   scalar("ret_min", "metric", lambda rows, o: min(_all(rows, "returns"), default=0.0)),
                   scalar("length", "metric", lambda rows, o: loops.mean([float(r.count) for r in rows]))),
          neutral=True, several=True),
]  # fmt: skip
