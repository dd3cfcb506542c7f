"""Entries in the dialect of OpenRLHF."""

from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, ppo, scalar, together, walked
from tests.right.shapes import response_width
from torch import Tensor

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _spread(case: Case) -> Tensor:
    """One advantage per sequence, at each of its tokens."""
    return case.sequence("outcome").unsqueeze(-1).expand(-1, response_width(case))


def _policy(cls: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, action_mask, clip_eps_low, clip_eps_high):
        module = cls(clip_eps_low=clip_eps_low, clip_eps_high=clip_eps_high, policy_loss_type="gspo")
        return module(log_probs, old_log_probs, advantages, action_mask)

    return bind(
        loss, role="policy_loss", name="PolicyLoss",
        args={"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": _spread,
              "action_mask": "trainable"},
        options={"clip_eps_low": 0.2, "clip_eps_high": 0.28},
        variants={"clip_eps_low": (0.05,), "clip_eps_high": (0.05,)},
        returns={"loss": at(0, "loss"), "ppo_kl": at(2, "metric")},
    )  # fmt: skip


def _policy_value(rows: list[Row], o: Any) -> float:
    return loops.row_mean(
        rows, lambda r, t: ppo(r.mean(UPDATE), r.outcome, 1 - o["clip_eps_low"], 1 + o["clip_eps_high"]), empty=True
    )


def _value(cls: Any) -> Subject:
    def loss(values, old_values, returns, action_mask, clip_eps, token_level_loss):
        return cls(clip_eps=clip_eps, token_level_loss=token_level_loss)(values, old_values, returns, action_mask)

    return bind(
        loss, role="value_loss", name="ValueLoss",
        args={"values": "value", "old_values": "value_old", "returns": "returns", "action_mask": "trainable"},
        options={"clip_eps": 0.2, "token_level_loss": True},
        variants={"clip_eps": (0.5, None), "token_level_loss": (False,)},
    )  # fmt: skip


def _value_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        plain = (r.value[t] - r.returns[t]) ** 2
        if o["clip_eps"] is None:
            return 0.5 * plain
        bounded = r.value_old[t] + loops.clamp(r.value[t] - r.value_old[t], -o["clip_eps"], o["clip_eps"])
        return 0.5 * max(plain, (bounded - r.returns[t]) ** 2)

    return loops.token_mean(rows, one) if o["token_level_loss"] else loops.row_mean(rows, one, empty=True)


def _settled(row: Row, o: Any) -> list[float]:
    found = [-o["kl_coef"] * row.kl[t] for t in range(row.count)]
    if found:
        found[-1] += loops.clamp(row.reward, *o["reward_clip_range"])
    return found


ENTRIES = [
    Entry("PolicyLoss", "openrlhf", "policy_loss",
          "The log-ratio of a sequence is its sum divided by the padded width.", _policy,
          together(scalar("loss", "loss", _policy_value),
                   scalar("ppo_kl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: -UPDATE(r, t)))),
          several=True, pads_finite=True),
    Entry("ValueLoss", "openrlhf", "value_loss",
          "The smaller of the two squared errors is taken.", _value, scalar("loss", "loss", _value_value),
          pads_finite=True),
    Entry("settle", "openrlhf", "kl_in_reward",
          "The last action is found by counting actions, which is too early after tool output.",
          lambda fn: bind(
              fn, role="kl_in_reward", args={"r": "reward", "kl": "kl", "action_mask": "trainable"},
              options={"kl_coef": 0.1, "reward_clip_range": (-10.0, 10.0)},
              variants={"kl_coef": (0.5,), "reward_clip_range": ((-0.3, 0.3),)}),
          walked("reward", "reward", _settled), neutral=True, unusual=True),
    Entry("cumulate", "openrlhf", "returns",
          "Tool output takes steps of discount.",
          lambda fn: bind(
              fn, role="returns", args={"rewards": "token_reward", "action_mask": "trainable"},
              options={"gamma": 0.9}, variants={"gamma": (1.0, 0.5)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"])), neutral=True),
]  # fmt: skip
