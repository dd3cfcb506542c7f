"""Entries in the dialect of OpenRLHF."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together, walked
from tests.right.shapes import cells

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")

# --- modules ------------------------------------------------------------------------------------------------------


def _policy(cls: Any) -> Subject:
    def loss(
        log_probs, old_log_probs, advantages, action_mask, clip_eps_low, clip_eps_high, dual_clip, token_level_loss
    ):
        module = cls(clip_eps_low, clip_eps_high, dual_clip, token_level_loss)
        return module(log_probs, old_log_probs, advantages, action_mask)

    return bind(
        loss, role="policy_loss", name="PolicyLoss",
        args={"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage",
              "action_mask": "trainable"},
        options={"clip_eps_low": 0.2, "clip_eps_high": 0.2, "dual_clip": None, "token_level_loss": True},
        variants={"clip_eps_low": (0.1,), "clip_eps_high": (0.4,), "dual_clip": (1.5,), "token_level_loss": (False,)},
        returns={"loss": at(0, "loss"), "clip_ratio": at(1, "metric"), "ppo_kl": at(2, "metric")},
    )  # fmt: skip


def _averaged(rows: list[Row], value: Any, o: Any) -> float:
    return loops.token_mean(rows, value) if o["token_level_loss"] else loops.row_mean(rows, value, empty=True)


def _policy_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_eps_low"], 1 + o["clip_eps_high"], o["dual_clip"])

    return _averaged(rows, one, o)


def _clip_ratio(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio, advantage = loops.exp(UPDATE(r, t)), r.advantage[t]
        return float(loops.clamp(ratio, 1 - o["clip_eps_low"], 1 + o["clip_eps_high"]) * advantage < ratio * advantage)

    return loops.token_mean(rows, one)


def _value(cls: Any) -> Subject:
    def loss(values, old_values, returns, action_mask, clip_eps, token_level_loss):
        return cls(clip_eps, token_level_loss)(values, old_values, returns, action_mask)

    return bind(
        loss, role="value_loss", name="ValueLoss",
        args={"values": "value", "old_values": "value_old", "returns": "returns", "action_mask": "trainable"},
        options={"clip_eps": 0.2, "token_level_loss": True},
        variants={"clip_eps": (None, 0.05), "token_level_loss": (False,)},
    )  # fmt: skip


def _value_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        plain = (r.value[t] - r.returns[t]) ** 2
        if o["clip_eps"] is None:
            return plain / 2
        near = loops.clamp(r.value[t], r.value_old[t] - o["clip_eps"], r.value_old[t] + o["clip_eps"])
        return max(plain, (near - r.returns[t]) ** 2) / 2

    return _averaged(rows, one, o)


# --- rewards, KL --------------------------------------------------------------------------------------------------


def _reward(r: Row, t: int, o: Any) -> float:
    low, high = o["reward_clip_range"] or (-float("inf"), float("inf"))
    last = loops.clamp(r.reward, low, high) if t == r.count - 1 else 0.0
    return last - o["kl_coef"] * r.kl[t]


def _estimated(r: Row, t: int, o: Any) -> float:
    apart = r.logp_current[t] - r.logp_ref[t]
    found = {"k1": apart, "k2": apart * apart / 2, "k3": loops.k3(apart)}[o["how"]]
    return loops.clamp(found, -o["bound"], o["bound"])


# --- the experience maker -----------------------------------------------------------------------------------------


def _processed(method: Any) -> Subject:
    def processed(values, rewards, action_mask, gamma, lambd):
        return method(SimpleNamespace(), values, rewards, action_mask, gamma, lambd)

    return bind(
        processed, role="returns", name="RemoteExperienceMaker.process",
        args={"values": "value", "rewards": "token_reward", "action_mask": "trainable"},
        options={"gamma": 0.9, "lambd": 0.95}, variants={"gamma": (1.0,), "lambd": (0.5, 1.0)},
        returns={"advantage": at(0, "advantage"), "return": at(1, "return")},
    )  # fmt: skip


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


def _returns(row: Row, o: Any) -> list[float]:
    return [a + v for a, v in zip(_advantages(row, o), row.value, strict=True)]


def _finalized(fn: Any) -> Subject:
    def finalized(advantages, action_mask, advantage_estimator, no_advantage_std_norm):
        experiences = [
            SimpleNamespace(advantages=a, action_mask=m)
            for a, m in zip(advantages.split(2), action_mask.split(2), strict=True)
        ]
        args = SimpleNamespace(advantage_estimator=advantage_estimator, no_advantage_std_norm=no_advantage_std_norm)
        return torch.cat(fn(experiences, args))

    return bind(
        finalized, role="whitening", name="finalize",
        args={"advantages": "advantage", "action_mask": "trainable"},
        options={"advantage_estimator": "reinforce", "no_advantage_std_norm": False},
        variants={"no_advantage_std_norm": (True,)},
    )  # fmt: skip


def _whitened(case: Any, o: Any) -> Any:
    every = [x for row in loops.rows(case) for x in row.advantage]
    size = 1.0 if o["no_advantage_std_norm"] else max(loops.spread(every, 0) ** 2, 1e-8) ** 0.5
    centre = loops.mean(every)
    return per_token("advantage", "advantage", lambda r, t, o: (r.advantage[t] - centre) / size)(case, o)


ENTRIES = [
    Entry("PolicyLoss", "openrlhf", "policy_loss",
          "The upper bound of the clip is made from the lower one, so clip_eps_high does nothing.", _policy,
          together(scalar("loss", "loss", _policy_value), scalar("clip_ratio", "metric", _clip_ratio),
                   scalar("ppo_kl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: -UPDATE(r, t)))),
          several=True, single=True),
    Entry("ValueLoss", "openrlhf", "value_loss",
          "The step of the value is taken with the wrong sign, so the clipped value moves away from the new one.",
          _value, scalar("loss", "loss", _value_value), pads_finite=True),
    Entry("compute_reward", "openrlhf", "kl_in_reward",
          "The last action is looked for at the number of actions, which is too early where a tool answered before it.",
          lambda fn: bind(
              fn, role="kl_in_reward",
              args={"r": lambda case: case.sequence("reward"), "kl": "kl", "action_mask": "trainable"},
              options={"kl_coef": 0.1, "reward_clip_range": None},
              variants={"kl_coef": (0.5,), "reward_clip_range": ((0.0, 1.0),)}),
          per_token("reward", "reward", _reward)),
    Entry("estimate", "openrlhf", "kl",
          "The third estimate takes the log-ratio the other way round, and so has another mean than the first two.",
          lambda fn: bind(
              fn, role="kl", args={"first": cells("logp_current"), "second": cells("logp_ref")},
              options={"how": "k1", "bound": 10.0}, variants={"how": ("k2", "k3"), "bound": (0.1,)}),
          per_token("kl", "kl", _estimated), neutral=True, unusual=True, single=True),
    Entry("RemoteExperienceMaker.process", "openrlhf", "returns",
          "Tool output between two actions counts as steps with a value of 0.", _processed,
          together(walked("advantage", "advantage", _advantages), walked("return", "return", _returns)),
          neutral=True, several=True),
    Entry("finalize", "openrlhf", "whitening",
          "The mean is that of the means of the experiences, whatever their number of actions.", _finalized, _whitened,
          neutral=True),
]  # fmt: skip
