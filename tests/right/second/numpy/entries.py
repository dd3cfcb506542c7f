"""Entries on numpy arrays."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together, walked
from tests.right.shapes import as_array, cells

from trimtab.sentinel import Case, at, bind

UPDATE = gap("logp_current", "logp_old")


def table(name: str) -> Callable[[Case], Any]:
    return lambda case: as_array(cells(name)(case))


def as_tensor(fn: Any) -> Any:
    """The function with its array as a tensor."""
    return wraps(fn)(lambda *args, **kwargs: torch.from_numpy(fn(*args, **kwargs)))


def column(name: str) -> Callable[[Case], Any]:
    return lambda case: case.sequence(name).numpy()


def _normalised(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        found.append((row.reward - loops.mean(group)) / (loops.spread(group, 0) + o["eps"]))
    return found


def _metric(which: str, value: Any) -> Any:
    return scalar(which, "metric", value)


def _outside(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return float(not 1 - o["eps_low"] <= loops.exp(UPDATE(r, t)) <= 1 + o["eps_high"])

    return loops.token_mean(rows, one)


def _drift(row: Row, t: int) -> float:
    return loops.exp(UPDATE(row, t)) - 1 - UPDATE(row, t)


def _weight(row: Row, t: int, o: Any) -> float:
    return min(loops.exp(row.mean(gap("logp_old", "logp_rollout"))), o["cap"])


def _explained(rows: list[Row], o: Any) -> float:
    paid = [y for r in rows for y in r.returns]
    missed = [y - x for r in rows for y, x in zip(r.returns, r.value, strict=True)]
    whole = loops.spread(paid, 0) ** 2
    return 1 - loops.spread(missed, 0) ** 2 / whole if whole > 0 else 0.0


ENTRIES = [
    Entry("normalize_rewards", "numpy", "reward_normalisation",
          "The spread is that of the whole batch, although the mean is that of the group.",
          lambda fn: bind(
              fn, role="reward_normalisation", args={"rewards": column("reward"), "group_ids": column("group")},
              options={"eps": 1e-4}),
          per_row("advantage", "advantage", _normalised), single=True),
    Entry("gae_np", "numpy", "returns",
          "lambda discounts the next value too, not only the running sum.",
          lambda fn: bind(
              as_tensor(fn), role="returns",
              args={"rewards": table("token_reward"), "values": table("value"), "mask": table("trainable")},
              options={"gamma": 0.9, "lam": 0.8}, variants={"gamma": (1.0,), "lam": (0.5,)},
              returns={"advantage": at((), "advantage")}),
          walked("advantage", "advantage",
                 lambda row, o: loops.gae(row, row.token_reward, row.value, o["gamma"], o["lam"]))),
    Entry("clip_report", "numpy", "metric",
          "Ratios below the band are not counted.",
          lambda fn: bind(
              fn, role="metric",
              args={"new_lp": table("logp_current"), "old_lp": table("logp_old"), "mask": table("trainable")},
              options={"eps_low": 0.1, "eps_high": 0.2}, variants={"eps_low": (0.02,), "eps_high": (0.03,)},
              returns={"clipped": at("clip_frac", "metric", range=(0, 1), agreed=0.0),
                       "kl": at("approx_kl", "metric", agreed=0.0),
                       "max": at("ratio_max", "metric", agreed=1.0, reduction="max")}),
          together(_metric("clipped", _outside), _metric("kl", lambda rows, o: loops.token_mean(rows, _drift)),
                   _metric("max", lambda rows, o: max(loops.exp(UPDATE(r, t)) for r in rows for t in range(r.count)))),
          several=True, unusual=True),
    Entry("weigh", "numpy", "importance",
          "The larger of weight and bound is taken.",
          lambda fn: bind(
              as_tensor(fn), role="importance",
              args={"lp_train": table("logp_old"), "lp_infer": table("logp_rollout"), "m": table("trainable")},
              options={"cap": 2.0}, variants={"cap": (1.02,)},
              returns={"importance": at((), "importance")}),
          per_token("importance", "importance", _weight), neutral=True, unusual=True, single=True),
    Entry("f1", "numpy", "metric",
          "The variance that was missed is divided by that of the values.",
          lambda fn: bind(
              fn, role="metric", args={"ret": table("returns"), "val": table("value"), "m": table("trainable")}),
          scalar("metric", "metric", _explained), neutral=True, unusual=True),
    Entry("term", "numpy", None,
          "The score goes to the first token that counts.",
          lambda fn: bind(
              as_tensor(fn), couples="sequence", args={"score": column("reward"), "m": table("trainable")},
              options={"scale": 1.0}, variants={"scale": (0.5,)}, returns={"reward": at((), "reward")}),
          per_token("reward", "reward",
                    lambda r, t, o: o["scale"] * r.reward if t == r.count - 1 else 0.0), neutral=True, unusual=True),
]  # fmt: skip
