"""Entries in the dialect of OpenRLHF."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, gap, per_token, ppo, scalar, together, walked

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _policy(cls: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, action_mask, **settings):
        return cls(**settings)(log_probs, old_log_probs, advantages, action_mask)

    return bind(
        loss, role="policy_loss", name="PolicyLoss",
        options={"clip_eps_low": 0.2, "clip_eps_high": 0.28, "token_level_loss": True},
        variants={"clip_eps_low": (0.5,), "clip_eps_high": (0.9,), "token_level_loss": (False,)},
        returns={"loss": at(0, "loss"), "clip_ratio": at(1, "metric", range=(0, 1), agreed=0.0, reduction="mean"),
                 "ppo_kl": at(2, "metric", agreed=0.0, reduction="mean")},
    )  # fmt: skip


def _policy_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_eps_low"], 1 + o["clip_eps_high"])

    return loops.token_mean(rows, one) if o["token_level_loss"] else loops.row_mean(rows, one, empty=True)


def _clip_ratio(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio, credit = loops.exp(UPDATE(r, t)), r.advantage[t]
        return float(clamp(ratio, 1 - o["clip_eps_low"], 1 + o["clip_eps_high"]) * credit < ratio * credit)

    return loops.token_mean(rows, one)


def _value(cls: Any) -> Subject:
    def loss(values, old_values, returns, action_mask, clip_eps):
        return cls(clip_eps)(values, old_values, returns, action_mask)

    return bind(loss, role="value_loss", name="ValueLoss", options={"clip_eps": 0.5}, variants={"clip_eps": (0.1,)})


def _value_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        held = r.value_old[t] + clamp(r.value[t] - r.value_old[t], -o["clip_eps"], o["clip_eps"])
        return max((held - r.returns[t]) ** 2, (r.value[t] - r.returns[t]) ** 2) / 2

    return loops.token_mean(rows, one)


def _drift(cls: Any) -> Subject:
    def loss(lp, base, keep, weight):
        return cls(weight)(lp, base, keep)

    return bind(loss, role="kl_in_loss", name="F", options={"weight": 0.05}, penalties={"weight": "logp_ref"},
                args={"lp": "logp_current", "base": "logp_ref", "keep": "trainable"})  # fmt: skip


def _kl(r: Row, t: int, o: Any) -> float:
    x = r.logp_current[t] - r.logp_ref[t]
    return clamp({"k1": x, "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_estimator"]], -10, 10)


def _paid(row: Row, o: Any) -> list[float]:
    return [-o["kl_coef"] * row.kl[t] + (row.reward if t == row.count - 1 else 0.0) for t in range(row.count)]


def _gae(fn: Any) -> Subject:
    def advantages(values, rewards, action_mask, **settings):
        return fn(SimpleNamespace(**settings), values, rewards, action_mask)

    return bind(
        advantages, role="returns", name="compute", args={"values": "value_old", "rewards": "token_reward"},
        options={"gamma": 0.95, "lambd": 0.9}, variants={"gamma": (1.0,), "lambd": (0.5,)},
        returns={"advantage": at(0, "advantage"), "returns": at(1, "return")},
    )  # fmt: skip


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lambd"])


ENTRIES = [
    Entry("masked_mean", "openrlhf", "statistic", "The mean counts masked cells (SkyRL 6f20d29b8).",
          lambda fn: bind(fn, role="statistic", args={"tensor": "advantage"}),
          scalar("statistic", "statistic", lambda rows, o: loops.token_mean(rows, lambda r, t: r.advantage[t])),
          unusual=True),
    Entry("PolicyLoss", "openrlhf", "policy_loss",
          "The logged KL is minus the ratio, not minus its logarithm (OpenRLHF 30a02e9c8).", _policy,
          together(scalar("loss", "loss", _policy_loss), scalar("clip_ratio", "metric", _clip_ratio),
                   scalar("ppo_kl", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: -UPDATE(r, t)))),
          several=True, pads_finite=True),
    Entry("ValueLoss", "openrlhf", "value_loss", "Value clipping takes the smaller of the two errors.", _value,
          scalar("loss", "loss", _value_loss), pads_finite=True),
    Entry("F", "openrlhf", "kl_in_loss", "Each sequence is averaged over the padded width (SkyRL 6f20d29b8).", _drift,
          scalar("loss", "loss", lambda rows, o: o["weight"] * loops.row_mean(
              rows, lambda r, t: (r.logp_current[t] - r.logp_ref[t]) ** 2 / 2, empty=True)),
          neutral=True, unusual=True),
    Entry("compute_approx_kl", "openrlhf", "kl", "k3 forgets to turn the log-ratio around.",
          lambda fn: bind(fn, role="kl", options={"kl_estimator": "k1"}, variants={"kl_estimator": ("k2", "k3")}),
          per_token("kl", "kl", _kl), single=True),
    Entry("compute_reward", "openrlhf", "kl_in_reward",
          "The reward is put into the last column, which is padding for shorter answers.",
          lambda fn: bind(fn, role="kl_in_reward", args={"r": "reward"}, options={"kl_coef": 0.1}),
          walked("reward", "reward", _paid), unusual=True),
    Entry("ExperienceMaker.compute", "openrlhf", "returns",
          "The value after the last token is read from padding, and values of tool output are used.", _gae,
          together(walked("advantage", "advantage", _advantages),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_advantages(row, o), row.value_old, strict=True)])),
          neutral=True, several=True),
    Entry("process", "openrlhf", "returns", "The reward of a token is discounted at that very token.",
          lambda fn: bind(fn, role="returns", args={"rewards": "token_reward"}, options={"gamma": 0.9},
                          variants={"gamma": (0.5,)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"])), neutral=True),
]  # fmt: skip
