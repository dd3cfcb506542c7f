"""Entries on numpy arrays."""

from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, peers, per_row, per_token, scalar, together, walked
from tests.right.shapes import as_array

from trimtab.sentinel import Case, Result, Subject, at, bind


def _bound(fn: Any, role: str, args: dict[str, str], **facts: Any) -> Subject:
    """A binding that turns tensors into arrays on the way in, and arrays into tensors on the way out."""

    def taken(case: Case, field: str) -> Any:
        held = field in case.sequences and field not in case.tokens
        return as_array(case.sequence(field) if held else case.padded(field, with_prompt=False))

    def call(arrays, **settings):
        found = fn(**arrays, **settings)
        if isinstance(found, dict):
            return {name: torch.as_tensor(value) for name, value in found.items()}
        return tuple(map(torch.as_tensor, found)) if isinstance(found, tuple) else torch.as_tensor(found)

    def arrays(case: Case) -> dict[str, Any]:
        return {name: taken(case, field) for name, field in args.items()}

    return bind(call, role=role, name=fn.__name__, args={"arrays": arrays}, **facts)


def _whitened(case: Case, o: Any) -> Any:
    values = [v for row in loops.rows(case) for v in row.advantage]
    wide = (loops.spread(values, 0) ** 2 + 1e-8) ** 0.5
    return {"advantage": Result(loops.numbers([(v - loops.mean(values)) / wide for v in values]), "token", "advantage")}


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _left_out(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        others = [other.reward for other in peers(rows, row) if other is not row]
        found.append(row.reward - loops.mean(others) if others else 0.0)
    return found


def _to_go(row: Row, o: Any) -> list[float]:
    paid = [-o["beta"] * row.kl[t] + (row.reward if t == row.count - 1 else 0.0) for t in range(row.count)]
    return loops.to_go(paid, o["gamma"])


def _gap(r: Row, t: int) -> float:
    return r.logp_current[t] - r.logp_ref[t]


def _stat(name: str, pick: Any) -> Any:
    return scalar(name, "metric", lambda rows, o: pick([v for row in rows for v in row.advantage]))


def _keep(r: Row, t: int, o: Any) -> float:
    return float(o["low"] <= loops.exp(clamp(r.logp_old[t] - r.logp_rollout[t], -700, 700)) <= o["high"])


ENTRIES = [
    Entry("whiten", "numpy", "whitening", "The variance counts masked cells as zeros.",
          lambda fn: _bound(fn, "whitening", {"x": "advantage", "keep": "trainable"}), _whitened,
          single=True, unusual=True),
    Entry("gae", "numpy", "returns", "The next value is subtracted instead of the present one.",
          lambda fn: _bound(fn, "returns", {"rewards": "token_reward", "values": "value_old", "mask": "trainable"},
                            options={"gamma": 0.95, "lam": 0.9}, variants={"gamma": (1.0,), "lam": (0.5,)},
                            returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          together(walked("advantage", "advantage", _gae),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_gae(row, o), row.value_old, strict=True)])),
          several=True),
    Entry("f", "numpy", "reward_normalisation", "The baseline is the mean of the group, the sample itself included.",
          lambda fn: _bound(fn, "reward_normalisation", {"rewards": "reward", "groups": "group"}),
          per_row("advantage", "advantage", _left_out), neutral=True),
    Entry("process", "numpy", "kl_in_reward", "The KL is added to the reward instead of taken from it.",
          lambda fn: _bound(fn, "kl_in_reward", {"final_reward": "reward", "kl_tok": "kl", "m": "trainable"},
                            options={"beta": 0.1, "gamma": 0.9}, variants={"gamma": (0.5,)}),
          walked("reward", "reward", _to_go), neutral=True, unusual=True),
    Entry("compute", "numpy", "kl",
          "The log-ratio is reversed, so k1 has the other sign and k3 is that of the other KL.",
          lambda fn: _bound(fn, "kl", {"p_logp": "logp_current", "q_logp": "logp_ref", "m": "trainable"},
                            returns={f"k{i + 1}": at(i, "kl") for i in range(3)}),
          together(per_token("k1", "kl", lambda r, t, o: _gap(r, t), detached=True),
                   per_token("k2", "kl", lambda r, t, o: _gap(r, t) ** 2 / 2),
                   per_token("k3", "kl", lambda r, t, o: loops.k3(_gap(r, t)))),
          neutral=True, unusual=True, several=True),
    Entry("summarise", "numpy", "metric", "The extremes are taken over masked cells too (verl 99d2c19b0).",
          lambda fn: _bound(fn, "metric", {"adv": "advantage", "mask": "trainable"},
                            returns={n: at(f"adv/{n}", "metric", of="advantage", reduction=n)
                                     for n in ("mean", "min", "max")}),
          together(_stat("mean", loops.mean), _stat("min", min), _stat("max", max)), several=True, neutral=True),
    Entry("select", "numpy", "keep",
          "1 plus the log-ratio stands in for the ratio, so far tokens are kept or dropped wrongly.",
          lambda fn: _bound(fn, "keep", {"train_logp": "logp_old", "gen_logp": "logp_rollout", "mask": "trainable"},
                            options={"low": 0.5, "high": 2.0}, variants={"low": (0.9,), "high": (1.1,)}),
          per_token("keep", "keep", _keep), neutral=True),
]  # fmt: skip
