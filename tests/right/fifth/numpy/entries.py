"""Entries in the dialect of NumPy."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, scalar, together

from trimtab.sentinel import Subject, at, bind
from trimtab.sentinel.of import kl, ratio

UPDATE = gap("logp_current", "logp_old")


def _shaped(method: Any) -> Subject:
    def apply(rewards, lengths, max_length, buffer, factor):
        return method(SimpleNamespace(max_length=max_length, buffer=buffer, factor=factor), rewards, lengths)

    return bind(
        apply, name="RewardShaper.apply", arrays=True,
        args={"rewards": "reward", "lengths": lambda case: np.array(case.response_lengths)},
        options={"max_length": 5, "buffer": 3, "factor": 1.0},
        variants={"max_length": (4,), "buffer": (2,), "factor": (0.5,)},
        returns={"reward": at((), "reward", level="sequence")},
    )  # fmt: skip


def _shaped_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        over = row.case.response_lengths[row.index] - (o["max_length"] - o["buffer"])
        found.append(row.reward - o["factor"] * loops.clamp(over / o["buffer"], 0.0, 1.0))
    return found


def _tallied(rows: list[Row], o: Any) -> float:
    found: list[float] = []
    for group in sorted({row.group for row in rows}):
        tries = [row.reward > 1 for row in rows if row.group == group]
        n, misses, k = len(tries), tries.count(False), min(o["k"], len(tries))
        found.append(1 - math.comb(misses, k) / math.comb(n, k))
    return loops.mean(found)


def _stats(fn: Any) -> Subject:
    return bind(
        fn, role="metric", arrays=True,
        args={"logprobs": "logp_current", "old_logprobs": "logp_old", "mask": "trainable"},
        options={"cliprange": 0.2}, variants={"cliprange": (0.05,)},
        returns={"approxkl": at("approxkl", "metric", of=kl("k2", "logp_current", "logp_old"), reduction="mean"),
                 "policykl": at("policykl", "metric", of=kl("k1", "logp_old", "logp_current"), reduction="mean"),
                 "clipfrac": at("clipfrac", "metric", range=(0, 1), agreed=0.0),
                 "ratio": at("ratio", "metric", of=ratio("logp_current", "logp_old"), reduction="mean", agreed=1.0)},
    )  # fmt: skip


def _is_outside(row: Row, t: int, o: Any) -> float:
    return float(abs(loops.exp(UPDATE(row, t)) - 1) > o["cliprange"])


ENTRIES = [
    Entry("RewardShaper.apply", "numpy", None,
          "The penalty begins at the limit instead of a buffer before it, so hardly any answer gets it.",
          _shaped, per_row("reward", "reward", _shaped_value), neutral=True),
    Entry("tally", "numpy", "metric",
          "Tries are drawn with replacement, which is too low for more than one try.",
          lambda fn: bind(
              fn, role="metric",
              args={"hits": lambda case: case.sequence("reward").detach().numpy() > 1,
                    "tasks": lambda case: case.sequence("group").numpy()},
              options={"k": 2}, variants={"k": (1,)}, returns={"metric": at((), "metric", range=(0, 1))}),
          scalar("metric", "metric", _tallied), neutral=True, unusual=True),
    Entry("update_stats", "numpy", "metric",
          "The mean log-ratio is squared, instead of the mean of the squares, so steps up and down cancel.",
          _stats,
          together(
              scalar("approxkl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: UPDATE(r, t) ** 2 / 2)),
              scalar("policykl", "metric", lambda rows, o: -loops.token_mean(rows, UPDATE)),
              scalar("clipfrac", "metric",
                     lambda rows, o: loops.token_mean(rows, lambda r, t: _is_outside(r, t, o))),
              scalar("ratio", "metric",
                     lambda rows, o: loops.token_mean(rows, lambda r, t: loops.exp(UPDATE(r, t))))),
          several=True, single=True),
]  # fmt: skip
