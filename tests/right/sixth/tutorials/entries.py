"""Entries in the dialect of tutorials."""

from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together, walked
from tests.right.shapes import prompted

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _objective(cls: Any) -> Subject:
    return bind(
        cls, role="policy_loss", couples="batch",
        args={"logps": "logp_current", "old_logps": "logp_old", "advantages": "advantage", "values": "value",
              "returns": "returns", "entropy": "entropy", "mask": "trainable"},
        options={"clip_eps": 0.2, "vf_coef": 0.5, "ent_coef": 0.01},
        variants={"clip_eps": (0.05,), "vf_coef": (0.0, 1.0), "ent_coef": (0.0, 0.5)},
        returns={"loss": at(0, "loss"), "policy": at((1, "policy_loss"), "metric"),
                 "value": at((1, "value_loss"), "metric")},
    )  # fmt: skip


def _policy(rows: list[Row], o: Any) -> float:
    found = [x for row in rows for x in row.advantage]
    centre, scale = loops.mean(found), loops.spread(found, 0) + 1e-8
    low, high = 1 - o["clip_eps"], 1 + o["clip_eps"]
    return loops.token_mean(rows, lambda r, t: ppo(UPDATE(r, t), (r.advantage[t] - centre) / scale, low, high))


def _value(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: (r.value[t] - r.returns[t]) ** 2)


def _total(rows: list[Row], o: Any) -> float:
    entropy = loops.token_mean(rows, lambda r, t: r.entropy[t])
    return _policy(rows, o) + o["vf_coef"] * _value(rows, o) - o["ent_coef"] * entropy


ENTRIES = [
    Entry("Objective", "tutorials", "policy_loss",
          "The advantages are normalised over all cells, so padding and tool output move their mean and spread.",
          _objective,
          together(scalar("loss", "loss", _total), scalar("policy", "metric", _policy),
                   scalar("value", "metric", _value)),
          neutral=True, several=True, pads_finite=True),
    Entry("Scorer", "tutorials", "logp",
          "The logits are cut but the tokens are not shifted, so each position scores the token that it has read.",
          lambda cls: bind(
              cls, role="logp", view={"with_prompt": True, "drop_first": True},
              args={"scores": lambda case: prompted(case).logits(), "toks": lambda case: case.padded("token_id")},
              options={"temperature": 0.7}, variants={"temperature": (1.0, 1.5)}, temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          neutral=True, unusual=True, single=True),
    Entry("discounted_returns", "tutorials", "returns",
          "The weight of the step is not taken off again, so the returns of late tokens vanish.",
          lambda fn: bind(
              fn, role="returns", args={"rewards": "token_reward", "mask": "trainable"},
              options={"gamma": 0.9}, variants={"gamma": (1.0, 0.5)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"]))),
    Entry("TokenEntropy", "tutorials", "entropy",
          "The softmax runs over the positions instead of the vocabulary.",
          lambda cls: bind(
              cls, role="entropy", view={"with_prompt": True, "shift": True},
              args={"logits": lambda case: prompted(case).logits(), "mask": "trainable"},
              options={"temperature": 0.7}, variants={"temperature": (1.0,)}, temperature="temperature"),
          per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"])), single=True),
]  # fmt: skip
