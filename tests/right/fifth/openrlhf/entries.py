"""Entries in the dialect of OpenRLHF."""

from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, ppo, scalar, together, walked

from trimtab.sentinel import at, bind

UPDATE = gap("logp_current", "logp_old")
ENGINE = gap("logp_old", "logp_rollout")


def _averaged(rows: list[Row], o: Any, one: Any) -> float:
    return loops.token_mean(rows, one) if o["token_level_loss"] else loops.row_mean(rows, one, empty=True)


def _policy(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        loss = ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_eps_low"], 1 + o["clip_eps_high"])
        if o["enable_vllm_is_correction"]:
            loss *= min(loops.exp(ENGINE(r, t)), o["vllm_is_truncated_threshold"])
        return loss

    return _averaged(rows, o, one)


def _clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio = loops.exp(UPDATE(r, t))
        above, below = ratio > 1 + o["clip_eps_high"], ratio < 1 - o["clip_eps_low"]
        return float((above and r.advantage[t] > 0) or (below and r.advantage[t] < 0))

    return loops.token_mean(rows, one)


def _value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        plain = (r.value[t] - r.returns[t]) ** 2
        if o["clip_eps"] is None:
            return plain / 2
        near = r.value_old[t] + loops.clamp(r.value[t] - r.value_old[t], -o["clip_eps"], o["clip_eps"])
        return max(plain, (near - r.returns[t]) ** 2) / 2

    return _averaged(rows, o, one)


def _assembled(row: Row, o: Any) -> list[float]:
    found = [-max(o["kl_coef"], 0.0) * x for x in row.kl]
    if found:
        band = o["reward_clip_range"]
        found[-1] += row.reward if band is None else loops.clamp(row.reward, *band)
    return found


ENTRIES = [
    Entry("PolicyLoss", "openrlhf", "policy_loss",
          "The correction for the sampling engine compares it with the current policy instead of the old one.",
          lambda cls: bind(
              cls, role="policy_loss",
              args={"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage",
                    "action_mask": "trainable", "rollout_log_probs": "logp_rollout"},
              options={"clip_eps_low": 0.2, "clip_eps_high": 0.28, "token_level_loss": True,
                       "enable_vllm_is_correction": True, "vllm_is_truncated_threshold": 2.0},
              variants={"clip_eps_low": (0.05,), "clip_eps_high": (0.05,), "token_level_loss": (False,),
                        "enable_vllm_is_correction": (False,), "vllm_is_truncated_threshold": (1.0,)},
              returns={"loss": at(0, "loss"), "clip_ratio": at(1, "metric"), "ppo_kl": at(2, "metric")}),
          together(scalar("loss", "loss", _policy), scalar("clip_ratio", "metric", _clipped),
                   scalar("ppo_kl", "metric", lambda rows, o: -loops.token_mean(rows, UPDATE))),
          several=True, pads_finite=True),
    Entry("ValueLoss", "openrlhf", "value_loss",
          "The smaller of the plain and the clipped error is taken, so the clip protects nothing.",
          lambda cls: bind(
              cls, role="value_loss",
              args={"values": "value", "old_values": "value_old", "returns": "returns", "action_mask": "trainable"},
              options={"clip_eps": 0.2, "token_level_loss": True},
              variants={"clip_eps": (None, 0.5), "token_level_loss": (False,)}),
          scalar("loss", "loss", _value), pads_finite=True),
    Entry("assemble", "openrlhf", "kl_in_reward",
          "The last action is looked for at the number of actions, which is too early after tool output.",
          lambda fn: bind(
              fn, role="kl_in_reward", args={"r": "reward", "kl": "kl", "action_mask": "trainable"},
              options={"kl_coef": 0.1, "reward_clip_range": None},
              variants={"kl_coef": (0.0, 0.5), "reward_clip_range": ((-0.5, 0.5),)}),
          walked("reward", "reward", _assembled), neutral=True),
]  # fmt: skip
