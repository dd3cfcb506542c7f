"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together

from trimtab.sentinel import Subject, at, bind

PROXIMAL = gap("logp_current", "logp_old")
BEHAVIOUR = gap("logp_old", "logp_rollout")


def _kl(r: Row, t: int, o: Any) -> float:
    x = r.logp_current[t] - r.logp_ref[t]
    found = {"k1": x, "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_estimator"]]
    return loops.clamp(found, -10.0, 10.0) if o["apply_clamp"] else found


def _update(method: Any) -> Subject:
    def update(logprobs, prox_logp, old_logp, advantages, loss_mask, eps_clip, c_clip, behav_imp_weight_cap):
        config = SimpleNamespace(eps_clip=eps_clip, c_clip=c_clip, behav_imp_weight_cap=behav_imp_weight_cap)
        input_data = {"logprobs": old_logp, "prox_logp": prox_logp, "advantages": advantages, "loss_mask": loss_mask}
        return method(SimpleNamespace(config=config), logprobs, input_data)

    return bind(
        update, role="policy_loss", name="PPOActor.update_fn", layout="packed",
        args={"logprobs": "logp_current", "prox_logp": "logp_old", "old_logp": "logp_rollout",
              "advantages": "advantage", "loss_mask": "trainable"},
        options={"eps_clip": 0.2, "c_clip": None, "behav_imp_weight_cap": None},
        variants={"eps_clip": (0.4,), "c_clip": (1.5,), "behav_imp_weight_cap": (1.2,)},
        returns={"loss": at(0, "loss"), "clip_ratio": at((1, "clip_ratio"), "metric")},
    )  # fmt: skip


def _update_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        weight = loops.exp(BEHAVIOUR(r, t))
        if o["behav_imp_weight_cap"] is not None and weight > o["behav_imp_weight_cap"]:
            return 0.0
        return weight * ppo(PROXIMAL(r, t), r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip"], o["c_clip"])

    return loops.token_mean(rows, one)


def _update_clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio = loops.exp(PROXIMAL(r, t))
        above, below = ratio > 1 + o["eps_clip"], ratio < 1 - o["eps_clip"]
        return float((above and r.advantage[t] > 0) or (below and r.advantage[t] < 0))

    return loops.token_mean(rows, one)


def _level(r: Row, t: int, o: Any) -> float:
    found = loops.exp(r.mean(BEHAVIOUR))
    return found if o["ceiling"] is None else min(found, o["ceiling"])


ENTRIES = [
    Entry("KLEstimator", "areal", "kl",
          "The log-ratio of k3 keeps its sign, so the estimate is that of the opposite ratio and not unbiased.",
          lambda cls: bind(
              cls, role="kl", args={"log_probs": "logp_current", "log_probs_base": "logp_ref"},
              options={"kl_estimator": "k3", "apply_clamp": True},
              variants={"kl_estimator": ("k1", "k2"), "apply_clamp": (False,)}),
          per_token("kl", "kl", _kl), single=True),
    Entry("PPOActor.update_fn", "areal", "policy_loss",
          "The clipped ratio is taken to the policy that sampled, whose share the weight then counts a second time.",
          _update, together(scalar("loss", "loss", _update_loss), scalar("clip_ratio", "metric", _update_clipped)),
          neutral=True, several=True, pads_finite=True),
    Entry("level_up", "areal", "importance",
          "The log-ratios of a segment are divided by its whole length, with the prompt and tool output.",
          lambda fn: bind(
              fn, role="importance", layout="packed",
              args={"fresh": "logp_old", "stale": "logp_rollout", "live": "trainable",
                    "cu": lambda case: case.cu_seqlens},
              options={"ceiling": 2.0}, variants={"ceiling": (None, 1.0)}),
          per_token("importance", "importance", _level), neutral=True, unusual=True),
]  # fmt: skip
