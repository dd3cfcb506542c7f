"""Entries in the dialect of tutorials."""

from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.telling import slopes_differ
from tests.right.loops import Row, gap, ppo, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result
from trimtab.sentinel.targets.handed import ending_ids

UPDATE = gap("logp_current", "logp_old")


def _grpo(cls: Any) -> Subject:
    def forward(lp, lp_old, lp_ref, adv, m, clip_eps, kl_weight):
        return cls(clip_eps, kl_weight)(lp, lp_old, lp_ref, adv, m)

    return bind(
        forward, role="policy_loss", name="GRPOLoss",
        args={"lp": "logp_current", "lp_old": "logp_old", "lp_ref": "logp_ref", "adv": "advantage", "m": "trainable"},
        options={"clip_eps": 0.2, "kl_weight": 0.01}, variants={"clip_eps": (0.02,), "kl_weight": (0.3,)},
        penalties={"kl_weight": "logp_ref"},
        returns={"loss": at(0, "loss"), "kl": at(1, "metric")},
    )  # fmt: skip


def _k3(row: Row, t: int) -> float:
    return loops.k3(row.logp_current[t] - row.logp_ref[t])


def _grpo_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_eps"], 1 + o["clip_eps"]) + o["kl_weight"] * _k3(r, t)

    return loops.row_mean(rows, one, empty=True)


def _step_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["eps"], 1 + o["eps"]) - o["ent_coef"] * r.entropy[t]

    return loops.token_mean(rows, one)


def _critic_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        near = r.value_old[t] + loops.clamp(r.value[t] - r.value_old[t], -o["clip_coef"], o["clip_coef"])
        return max((r.value[t] - r.returns[t]) ** 2, (near - r.returns[t]) ** 2)

    return 0.5 * loops.token_mean(rows, one)


def _ids(case: Case) -> Any:
    """Padding and end are one id."""
    ids = ending_ids(case, with_prompt=False)
    return torch.where(ids == case.pad_id, case.eos_ids[0], ids)


def _all_cells(case: Case, o: Any) -> Any:
    width = max(case.response_lengths)
    cells = [[float(t < n) for t in range(width)] for n in case.response_lengths]
    return {"mask": Result(loops.numbers([x for row in cells for x in row]).view(len(cells), width), "cell", "mask")}


def _reinforce(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss", args={"lp": "logp_current", "V": "value", "R": "reward", "m": "trainable"},
        options={"vf": 0.5}, variants={"vf": (0.1,)},
    )  # fmt: skip


def _reinforce_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        over = r.reward - r.value[t]
        return -r.logp_current[t] * over + o["vf"] * over**2

    return loops.token_mean(rows, one)


ENTRIES = [
    Entry("GRPOLoss", "tutorials", "policy_loss",
          "The better of the two surrogates is taken, so nothing holds the policy back.", _grpo,
          together(scalar("loss", "loss", _grpo_value),
                   scalar("kl", "metric", lambda rows, o: loops.token_mean(rows, _k3))),
          several=True, unusual=True, pads_finite=True),
    Entry("fill", "tutorials", "returns",
          "The loop runs forward, so each token is paid for the past.",
          lambda fn: bind(
              fn, role="returns", args={"rews": "token_reward", "m": "trainable"}, options={"gamma": 0.9},
              variants={"gamma": (1.0,)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"])),
          neutral=True, unusual=True),
    Entry("step_fn", "tutorials", "policy_loss",
          "The entropy is added to the loss: it is made small.",
          lambda fn: bind(
              fn, role="policy_loss",
              args={"lp": "logp_current", "lp_old": "logp_old", "adv": "advantage", "ent": "entropy", "m": "trainable"},
              options={"eps": 0.2, "ent_coef": 0.01}, variants={"eps": (0.02,), "ent_coef": (0.3,)},
              penalties={"ent_coef": "entropy"}),
          scalar("loss", "loss", _step_value), neutral=True, unusual=True, pads_finite=True),
    Entry("critic_loss", "tutorials", "value_loss",
          "The clipped value is compared with the old value instead of the return.",
          lambda fn: bind(
              fn, role="value_loss",
              args={"newvalue": "value", "b_values": "value_old", "b_returns": "returns", "m": "trainable"},
              options={"clip_coef": 0.2}, variants={"clip_coef": (0.02,)}),
          scalar("loss", "loss", _critic_value), unusual=True, pads_finite=True),
    Entry("mask_it", "tutorials", "response_mask",
          "Padding and end are one id, and every one of them is left out, the first too.",
          lambda fn: bind(fn, role="response_mask", args={"ids": _ids}, options={"eos": 1}),
          _all_cells, neutral=True, unusual=True),
    Entry("reinforce_loss", "tutorials", "policy_loss",
          "The baseline is not detached, so the policy gradient trains the values.", _reinforce,
          scalar("loss", "loss", _reinforce_value, detached=True), unusual=True, differs=slopes_differ(_reinforce)),
]  # fmt: skip
