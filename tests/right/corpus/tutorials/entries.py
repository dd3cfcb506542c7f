"""Entries as they stand in blog posts and minimal repositories."""

from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, peers, per_row, ppo, scalar, together, walked
from tests.right.shapes import in_pairs

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _normed(rows: list[Row], o: Any) -> list[float]:
    own = [[other.reward for other in peers(rows, row)] for row in rows]
    return [(row.reward - loops.mean(g)) / (loops.spread(g, 0) + 1e-8) for row, g in zip(rows, own, strict=True)]


def _episodes(fn: Any, name: str, fields: dict[str, str], **facts: Any) -> Subject:
    """A function of one episode, called on the trained tokens of each sequence."""

    def call(case: Case, **settings: Any) -> torch.Tensor:
        found: list[float] = []
        for row in loops.rows(case):
            found += fn(**{argument: getattr(row, field) for argument, field in fields.items()}, **settings)
        return torch.tensor(found, dtype=torch.float64)

    def read(case: Case) -> Case:
        for field in fields.values():
            case.flat(field)
        return case

    return bind(call, role="returns", name=name, layout="flat", args={"case": read}, **facts)


def _whole(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss",
        args={"new_lp": "logp_current", "old_lp": "logp_old", "adv": "advantage", "v": "value", "ret": "returns",
              "ent": "entropy", "m": "trainable"},
        options={"clip": 0.2, "vf_coef": 0.5, "ent_coef": 0.01}, penalties={"ent_coef": "entropy"},
        returns={"loss": at(0, "loss"), "policy": at(1, "loss"), "value": at(2, "loss"),
                 "entropy": at(3, "metric", reduction="mean")},
    )  # fmt: skip


def _policy(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip"], 1 + o["clip"]))


def _value(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: (r.value[t] - r.returns[t]) ** 2 / 2)


def _entropy(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: r.entropy[t])


def _total(rows: list[Row], o: Any) -> float:
    return _policy(rows, o) + o["vf_coef"] * _value(rows, o) - o["ent_coef"] * _entropy(rows, o)


def _grpo(cls: Any) -> Subject:
    def loss(log_probs, old_log_probs, ref_log_probs, advantages, mask, **settings):
        return cls(**settings)(log_probs, old_log_probs, ref_log_probs, advantages, mask)

    return bind(
        loss, role="policy_loss", name="GRPOLoss", options={"clip_eps": 0.2, "kl_weight": 0.04},
        variants={"clip_eps": (0.5,)}, penalties={"kl_weight": "logp_ref"},
        returns={"loss": at(0, "loss"), "kl": at(1, "metric", agreed=0.0, reduction="mean")},
    )  # fmt: skip


def _k3(r: Row, t: int) -> float:
    return loops.k3(r.logp_current[t] - r.logp_ref[t])


def _grpo_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_eps"], 1 + o["clip_eps"]) + o["kl_weight"] * _k3(r, t)

    return loops.row_mean(rows, one, empty=True)


def _subsampled(cls: Any) -> Subject:
    def loss(logprobs, advantages, mask, rate):
        return cls(rate)(logprobs, advantages, mask)

    return bind(loss, role="policy_loss", name="Process", options={"rate": 0.5})


def _reinforce(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: -r.logp_current[t] * r.advantage[t])


ENTRIES = [
    Entry("ppo_loss", "tutorials", "policy_loss",
          "The mean is over all cells; the mask is forgotten in the denominator.",
          lambda fn: bind(fn, role="policy_loss", options={"clip_eps": 0.2}, variants={"clip_eps": (0.5,)}),
          scalar("loss", "loss", lambda rows, o: loops.token_mean(
              rows, lambda r, t: ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_eps"], 1 + o["clip_eps"]))),
          pads_finite=True),
    Entry("grpo_advantages", "tutorials", "reward_normalisation",
          "The statistics run over the prompts instead of the answers to one prompt.",
          lambda fn: bind(fn, role="reward_normalisation", args={"rewards": in_pairs("reward")},
                          options={"group_size": 2}),
          per_row("advantage", "advantage", _normed)),
    Entry("f", "tutorials", "policy_loss",
          "[B, 1] times [B] gives [B, B], so every reward meets every sequence (prime-rl 270b5f51c).",
          lambda fn: bind(fn, role="policy_loss", args={"lp": "logp_current", "R": "outcome", "m": "trainable"}),
          scalar("loss", "loss", lambda rows, o: loops.row_sum_mean(
              rows, lambda r, t: -r.logp_current[t] * r.outcome, empty=True)),
          neutral=True, unusual=True, pads_finite=True),
    Entry("discounted_returns", "tutorials", "returns", "The list is never turned around again.",
          lambda fn: _episodes(fn, "discounted_returns", {"rewards": "token_reward"}, options={"gamma": 0.9}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"]))),
    Entry("compute", "tutorials", "returns", "The next value is that of the present step.",
          lambda fn: _episodes(fn, "compute", {"rewards": "token_reward", "values": "value_old"},
                               options={"gamma": 0.9, "lam": 0.8}),
          walked("return", "return", _gae),
          neutral=True),
    Entry("step_fn", "tutorials", "policy_loss",
          "The entropy bonus is added to the loss, so entropy is punished.", _whole,
          together(scalar("loss", "loss", _total), scalar("policy", "loss", _policy), scalar("value", "loss", _value),
                   scalar("entropy", "metric", _entropy)),
          neutral=True, unusual=True, several=True, pads_finite=True),
    Entry("GRPOLoss", "tutorials", "policy_loss", "k3 is built from the reversed log-ratio.", _grpo,
          together(scalar("loss", "loss", _grpo_loss),
                   scalar("kl", "metric", lambda rows, o: loops.token_mean(rows, _k3))),
          several=True, pads_finite=True),
    Entry("minibatch_loss", "tutorials", "policy_loss", "The last minibatch is dropped if it is not full.",
          lambda fn: bind(fn, role="policy_loss", options={"minibatch_size": 3}),
          scalar("loss", "loss", _reinforce), random="inside", pads_finite=True),
    Entry("Process", "tutorials", "policy_loss",
          "The drawn tokens are not weighted up, so the expectation is half the loss.", _subsampled,
          scalar("loss", "loss", _reinforce), neutral=True, random="result", pads_finite=True),
]  # fmt: skip
