"""Entries in the dialect of NumPy."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import as_array, cells

from trimtab.sentinel import Case, Subject, at, bind

INNER = {"with_prompt": False}
MISMATCH = gap("logp_old", "logp_rollout")
AWAY = gap("logp_old", "logp_ref")


def _array(name: str) -> Callable[[Case], Any]:
    return lambda case: as_array(cells(name)(case))


def _per_sequence(name: str) -> Callable[[Case], Any]:
    return lambda case: case.sequence(name).detach().numpy()


def _pass_at_k(rows: list[Row], o: Any) -> float:
    """Over all ways to draw k answers: how often one of them is correct."""
    found: list[float] = []
    for group in sorted({row.group for row in rows}):
        correct = [row.reward >= o["threshold"] for row in rows if row.group == group]
        if len(correct) >= o["k"]:
            wrong = correct.count(False)
            found.append(1 - math.comb(wrong, o["k"]) / math.comb(len(correct), o["k"]))
    return loops.mean(found)


def _overlong(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        inside = row.case.response_lengths[row.index] - (o["max_length"] - o["buffer_length"])
        share = loops.clamp(inside / o["buffer_length"], 0.0, 1.0)
        found.append(row.reward - o["penalty_factor"] * share)
    return found


def _rescaled(rows: list[Row], o: Any) -> list[float]:
    values = [x for row in rows for x in row.advantage]
    centre, size = loops.mean(values), math.sqrt(loops.spread(values, 0) ** 2 + o["eps"])
    return [(x - centre) / size + (0.0 if o["center"] else centre) for x in values]


def _rescaled_at(r: Row, t: int, o: Any) -> float:
    all_rows = loops.rows(r.case)
    before = sum(row.count for row in all_rows[: r.index])
    return _rescaled(all_rows, o)[before + t]


def _digest(method: Any) -> Subject:
    def digest(sizes, marks, room):
        return method(SimpleNamespace(config=SimpleNamespace(room=room)), sizes, marks)

    return bind(
        digest, role="metric", name="RolloutBoard.digest",
        args={"sizes": lambda case: list(case.response_lengths),
              "marks": lambda case: case.sequence("reward").detach().tolist()},
        options={"room": 4}, variants={"room": (2, 3)},
        returns={"mean": at("size/mean", "metric"), "max": at("size/max", "metric"), "cut": at("size/cut", "metric"),
                 "cut_mark": at("mark/cut", "metric")},
    )  # fmt: skip


def _sizes(rows: list[Row]) -> list[int]:
    return [rows[0].case.response_lengths[row.index] for row in rows]


def _kl(r: Row, t: int, o: Any) -> float:
    d = AWAY(r, t)
    return {"k1": d, "k2": d * d / 2, "k3": loops.k3(d)}[o["estimator"]]


ENTRIES = [
    Entry("pass_at_k", "numpy", "metric",
          "The estimate is 1 - (1 - c / n)^k, as if answers were drawn with replacement, which is too low.",
          lambda fn: bind(
              fn, role="metric", args={"scores": _per_sequence("reward"), "prompt_ids": _per_sequence("group")},
              options={"k": 2, "threshold": 0.5}, variants={"k": (1,), "threshold": (0.0,)}),
          scalar("metric", "metric", _pass_at_k)),
    Entry("soft_overlong_reward", "numpy", None,
          "The penalty has no upper bound of 0, so short answers get a bonus for being short.",
          lambda fn: bind(
              fn,
              args={"rewards": _per_sequence("reward"),
                    "response_lengths": lambda case: np.array(case.response_lengths)},
              options={"max_length": 4, "buffer_length": 2, "penalty_factor": 1.0},
              variants={"max_length": (6,), "buffer_length": (1,), "penalty_factor": (0.5,)},
              returns={"reward": at((), "reward", level="sequence")}),
          per_row("reward", "reward", _overlong)),
    Entry("weigh", "numpy", "importance",
          "The logarithm of the factor is held below the ceiling instead of the factor, so it goes up to exp(ceiling).",
          lambda fn: bind(
              fn, role="importance", view=INNER,
              args={"here": _array("logp_old"), "there": _array("logp_rollout"), "sel": _array("trainable")},
              options={"ceiling": 2.0}, variants={"ceiling": (1.1,)}),
          per_token("importance", "importance", lambda r, t, o: min(loops.exp(r.total(MISMATCH)), o["ceiling"])),
          neutral=True, unusual=True, single=True),
    Entry("rescale", "numpy", "whitening",
          "The variance is divided by all cells of the array, padding included.",
          lambda fn: bind(
              fn, role="whitening", view=INNER, args={"x": _array("advantage"), "mask": _array("trainable")},
              options={"eps": 1e-8, "center": True}, variants={"eps": (0.1,), "center": (False,)}),
          per_token("advantage", "advantage", _rescaled_at), neutral=True),
    Entry("RolloutBoard.digest", "numpy", "metric",
          "Answers of exactly the largest size do not count as cut, although none can be longer.", _digest,
          together(scalar("mean", "metric", lambda rows, o: loops.mean(_sizes(rows))),
                   scalar("max", "metric", lambda rows, o: float(max(_sizes(rows)))),
                   scalar("cut", "metric", lambda rows, o: loops.mean([float(s >= o["room"]) for s in _sizes(rows)])),
                   scalar("cut_mark", "metric", lambda rows, o: loops.mean(
                       [row.reward for row, s in zip(rows, _sizes(rows), strict=True) if s >= o["room"]]))),
          neutral=True, unusual=True, several=True),
    Entry("kl_estimate", "numpy", "kl",
          "The third estimator has the log-ratio the wrong way round, so it estimates another divergence.",
          lambda fn: bind(
              fn, role="kl", view=INNER,
              args={"logp": _array("logp_old"), "ref_logp": _array("logp_ref"), "mask": _array("trainable")},
              options={"estimator": "k3"}, variants={"estimator": ("k1", "k2")}),
          per_token("kl", "kl", _kl)),
]  # fmt: skip
