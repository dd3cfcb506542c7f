"""Entries in the dialect of NumPy."""

import math
from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, scalar, together, walked

from trimtab.sentinel import Case, Out, Result, Subject, at, bind


def _settled(case: Case, o: Any) -> Out:
    found = [x for row in loops.rows(case) for x in row.advantage]
    centre, scale = loops.mean(found), math.sqrt(loops.spread(found, 0) ** 2 + 1e-8)
    back = 0.0 if o["shift"] else centre
    return {"advantage": Result(loops.numbers([(x - centre) / scale + back for x in found]), "token", "advantage")}


def _explained(rows: list[Row], o: Any) -> float:
    target = [x for row in rows for x in row.returns]
    rest = [x - v for row in rows for x, v in zip(row.returns, row.value, strict=True)]
    whole = loops.spread(target, 0) ** 2
    return 1 - loops.spread(rest, 0) ** 2 / whole if whole else 0.0


def _filled(row: Row, o: Any) -> list[float]:
    found = [-o["weight"] * x for x in row.kl]
    if found:
        found[-1] += row.reward
    return found


def _updated(method: Any) -> Subject:
    def update(xs, mean, var, count):
        return method(SimpleNamespace(mean=mean, var=var, count=count), xs)

    return bind(
        update, role="statistic", name="RunningMoments.update", arrays=True, args={"xs": "reward"},
        options={"mean": -0.5, "var": 1.5, "count": 4.0},
        variants={"mean": (0.0,), "var": (0.5,), "count": (8.0,)},
        returns={"mean": at(0, "statistic", level="scalar"), "std": at(1, "statistic", level="scalar")},
    )  # fmt: skip


def _moments(rows: list[Row], o: Any) -> tuple[float, float]:
    """From the sums of all numbers and of their squares, before and after."""
    total = o["count"] + len(rows)
    first = o["count"] * o["mean"] + sum(row.reward for row in rows)
    second = o["count"] * (o["var"] + o["mean"] ** 2) + sum(row.reward**2 for row in rows)
    mean = first / total
    return mean, math.sqrt((second / total - mean**2) * total / (total - 1))


ENTRIES = [
    Entry("settle", "numpy", "whitening",
          "The spread is taken over all cells after the others were set to 0, so padding makes it smaller.",
          lambda fn: bind(
              fn, role="whitening", arrays=True, args={"x": "advantage", "keep": "trainable"},
              options={"shift": True}, variants={"shift": (False,)}),
          _settled, neutral=True, unusual=True),
    Entry("explained_variance", "numpy", "metric",
          "The rest is compared with the variance of the values instead of the returns.",
          lambda fn: bind(
              fn, role="metric", arrays=True, args={"values": "value", "returns": "returns", "mask": "trainable"}),
          scalar("metric", "metric", _explained)),
    Entry("fill", "numpy", "kl_in_reward",
          "The prize is put into the last column, which is padding for all but the longest row.",
          lambda fn: bind(
              fn, role="kl_in_reward", arrays=True, args={"cost": "kl", "prize": "reward", "live": "trainable"},
              options={"weight": 0.1}, variants={"weight": (0.0, 0.5)}),
          walked("reward", "reward", _filled), neutral=True, unusual=True, single=True),
    Entry("RunningMoments.update", "numpy", "statistic",
          "The term for the distance of the two means is missing, so the spread is too small when rewards drift.",
          _updated,
          together(scalar("mean", "statistic", lambda rows, o: _moments(rows, o)[0]),
                   scalar("std", "statistic", lambda rows, o: _moments(rows, o)[1])),
          several=True),
]  # fmt: skip
