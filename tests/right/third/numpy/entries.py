"""Entries in the dialect of NumPy."""

from collections.abc import Callable
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, scalar, walked
from tests.right.shapes import as_array, cells

from trimtab.sentinel import Case, bind


def _array(name: str) -> Callable[[Case], Any]:
    return lambda case: as_array(cells(name)(case))


def _per_sequence(name: str) -> Callable[[Case], Any]:
    return lambda case: case.sequence(name).detach().numpy()


def _explained(rows: list[Row], o: Any) -> float:
    y = [x for row in rows for x in row.returns]
    missed = [a - b for row in rows for a, b in zip(row.returns, row.value, strict=True)]
    variance = loops.spread(y, 0) ** 2
    return 1 - loops.spread(missed, 0) ** 2 / variance if variance else 0.0


def _compared(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        others = [p.reward for p in loops.peers(rows, row) if p is not row]
        found.append(row.reward - loops.mean(others) if others else 0.0)
    return found


def _admitted(rows: list[Row], o: Any) -> list[float]:
    ratios = [loops.exp(r.mean(gap("logp_old", "logp_rollout"))) for r in rows]
    return [float(o["low"] <= x <= o["high"]) for x in ratios]


ENTRIES = [
    Entry("discounted_returns", "numpy", "returns",
          "The sum runs from the first token to the last, so a token is paid for what came before it.",
          lambda fn: bind(
              fn, role="returns", args={"rewards": _array("token_reward"), "mask": _array("trainable")},
              options={"gamma": 0.9}, variants={"gamma": (1.0, 0.5)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"]))),
    Entry("explained_variance", "numpy", "metric",
          "The variance of the errors is divided by that of the values instead of the returns.",
          lambda fn: bind(
              fn, role="metric",
              args={"values": _array("value"), "returns": _array("returns"), "mask": _array("trainable")}),
          scalar("metric", "metric", _explained)),
    Entry("compare", "numpy", "group_advantage",
          "The others are all other answers of the batch, whatever their prompt.",
          lambda fn: bind(
              fn, role="group_advantage",
              args={"scores": _per_sequence("reward"), "prompts": _per_sequence("group")}),
          per_row("advantage", "advantage", _compared), neutral=True, unusual=True),
    Entry("admit", "numpy", "keep",
          "The mean is over the whole batch, so all rows share one decision.",
          lambda fn: bind(
              fn, role="keep",
              args={"lp_train": _array("logp_old"), "lp_sampler": _array("logp_rollout"),
                    "mask": _array("trainable")},
              options={"low": 0.8, "high": 1.25}, variants={"low": (0.95,), "high": (1.05,)}),
          per_row("keep", "keep", _admitted), neutral=True, unusual=True),
]  # fmt: skip
