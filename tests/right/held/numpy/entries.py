"""Entries over numpy arrays."""

import functools
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, exp, per_token, scalar, together, walked
from tests.right.shapes import as_array

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result


def _grid(name: str) -> Any:
    return lambda case: as_array(case.padded(name, with_prompt=False))


def _ids(case: Case) -> Any:
    return case.padded("token_id", with_prompt=False).numpy()


def _tensors(fn: Any, **how: Any) -> Subject:
    """A binding of a function that returns an array."""

    @functools.wraps(fn)
    def wrapped(**inputs: Any) -> Any:
        return torch.from_numpy(fn(**inputs))

    return bind(wrapped, name=fn.__name__, **how)


def _loo(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        others = [p.reward for p in loops.peers(rows, row) if p.index != row.index]
        found.append(row.reward - loops.mean(others) if others else 0.0)
    return found


def _white(case: Case, o: Any) -> Any:
    flat = [a for row in loops.rows(case) for a in row.advantage]
    centre, size = loops.mean(flat), loops.spread(flat, 0) + o["eps"]
    return {"advantage": Result(loops.numbers([(a - centre) / size for a in flat]), "token", "advantage")}


def _d(r: Row, t: int) -> float:
    return r.logp_old[t] - r.logp_rollout[t]


ENTRIES = [
    Entry("discount", "numpy", "returns", "Only the next reward is added, not what came after it.",
          lambda fn: _tensors(fn, role="returns", args={"rewards": _grid("token_reward"), "mask": _grid("trainable")},
                              options={"gamma": 0.9}, variants={"gamma": (0.5,)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"]))),
    Entry("score", "numpy", "logp", "The normaliser sums over the whole batch: the axis is missing.",
          lambda fn: _tensors(fn, role="logp", args={"logits": _grid("logits"), "ids": _ids}, options={"T": 0.7},
                              variants={"T": (1.0,)}, temperature="T"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["T"])[r.token_id[t]]),
          neutral=True, unusual=True),
    Entry("leave_one_out", "numpy", "group_advantage", "The others are averaged with the sample counted too.",
          lambda fn: _tensors(fn, role="group_advantage",
                              args={"rewards": lambda case: as_array(case.sequence("reward")),
                                    "prompt": lambda case: case.sequence("group").numpy()}),
          loops.per_row("advantage", "advantage", _loo)),
    Entry("prep", "numpy", "whitening", "Masked entries enter the deviation as zeros.",
          lambda fn: _tensors(fn, role="whitening", args={"a": _grid("advantage"), "m": _grid("trainable")},
                              options={"eps": 1e-8}),
          _white, neutral=True, unusual=True),
    Entry("reweight", "numpy", "importance", "The cap is a floor.",
          lambda fn: _tensors(fn, role="importance", args={"lp_train": _grid("logp_old"),
                                                           "lp_infer": _grid("logp_rollout")},
                              options={"cap": 2.0}, variants={"cap": (1.1,)}),
          per_token("importance", "importance", lambda r, t, o: min(exp(_d(r, t)), o["cap"])), unusual=True),
    Entry("gap", "numpy", "metric", "The difference is taken in half precision (OpenRLHF f96a48ba8).",
          lambda fn: bind(
              fn, role="metric", args={"p_logp": _grid("logp_old"), "q_logp": _grid("logp_rollout"),
                                       "m": _grid("trainable")},
              returns={"k1": at("k1", "metric", agreed=0.0, reduction="mean"),
                       "k3": at("k3", "metric", agreed=0.0, reduction="mean"),
                       "far": at("far", "metric", range=(0, 1), agreed=0.0, reduction="mean")}),
          together(scalar("k1", "metric", lambda rows, o: loops.token_mean(rows, _d)),
                   scalar("k3", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: loops.k3(_d(r, t)))),
                   scalar("far", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(abs(_d(r, t)) > 0.5)))),
          neutral=True, several=True, unusual=True),
]  # fmt: skip
