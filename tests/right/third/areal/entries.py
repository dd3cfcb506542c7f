"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, ppo, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Out, Result

BEHIND = gap("logp_old", "logp_rollout")


def _actor(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss", layout="packed",
        args={"logprobs": "logp_current", "proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout",
              "advantages": "advantage", "loss_mask": "trainable"},
        options={"eps_clip": 0.2, "eps_clip_higher": 0.28, "c_clip": 3.0, "behav_imp_weight_cap": 1.5},
        variants={"eps_clip": (0.1,), "eps_clip_higher": (0.5,), "c_clip": (1.4,), "behav_imp_weight_cap": (1.1, 5.0)},
    )  # fmt: skip


def _actor_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        weight = loops.exp(BEHIND(r, t))
        if weight > o["behav_imp_weight_cap"]:
            return 0.0
        log_ratio = r.logp_current[t] - r.logp_old[t]
        band = (1 - o["eps_clip"], 1 + o["eps_clip_higher"])
        return weight * ppo(log_ratio, r.advantage[t], *band, o["c_clip"])

    return loops.token_mean(rows, one)


def _rescaled(case: Case, o: Any) -> Out:
    found = [a for row in loops.rows(case) for a in row.advantage]
    centre = loops.mean(found)
    size = loops.spread(found, 1 if o["unbiased"] and len(found) > 1 else 0) + 1e-5
    return {"advantage": Result(loops.numbers([(a - centre) / size for a in found]), "token", "advantage")}


def _weights(rows: list[Row], o: Any) -> list[float]:
    return [min(loops.exp(r.mean(BEHIND)), o["cap"]) for r in rows]


def _estimated(method: Any) -> Subject:
    def estimated(rewards, values, logprobs, ref_logp, loss_mask, kl_ctl, discount, gae_lambda):
        actor = SimpleNamespace(kl_ctl=kl_ctl, discount=discount, gae_lambda=gae_lambda)
        data = {"rewards": rewards, "values": values, "logprobs": logprobs, "ref_logp": ref_logp,
                "loss_mask": loss_mask}  # fmt: skip
        return method(actor, data)

    return bind(
        estimated, role="returns", name="PPOActor.compute_advantages",
        args={"rewards": "reward", "values": "value", "logprobs": "logp_old", "ref_logp": "logp_ref",
              "loss_mask": "trainable"},
        options={"kl_ctl": 0.1, "discount": 0.95, "gae_lambda": 0.9},
        variants={"kl_ctl": (0.5,), "discount": (1.0,), "gae_lambda": (1.0,)},
        returns={"advantages": at("advantages", "advantage"), "returns": at("returns", "return")},
    )  # fmt: skip


def _advantages(row: Row, o: Any) -> list[float]:
    rewards = [-o["kl_ctl"] * (row.logp_old[t] - row.logp_ref[t]) for t in range(row.count)]
    if rewards:
        rewards[-1] += row.reward
    return loops.gae(row, rewards, row.value, o["discount"], o["gae_lambda"])


ENTRIES = [
    Entry("ppo_actor_loss_fn", "areal", "policy_loss",
          "The cap of the behaviour weight is compared with its logarithm.", _actor,
          scalar("loss", "loss", _actor_value), several=True),
    Entry("rescale", "areal", "whitening",
          "The variance is the mean square, without the mean subtracted.",
          lambda fn: bind(
              fn, role="whitening", layout="packed", args={"x": "advantage", "mask": "trainable"},
              options={"unbiased": False}, variants={"unbiased": (True,)}),
          _rescaled, neutral=True, unusual=True, single=True),
    Entry("segmentwise", "areal", "importance",
          "The mean log-ratio is over all tokens of a sequence, with its prompt and tool output.",
          lambda fn: bind(
              fn, role="importance", layout="packed",
              args={"proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout", "loss_mask": "trainable",
                    "cu_seqlens": lambda case: case.cu_seqlens},
              options={"cap": 2.0}, variants={"cap": (1.05,)}),
          per_row("importance", "importance", _weights, level="token"), neutral=True),
    Entry("PPOActor.compute_advantages", "areal", "returns",
          "The KL to the reference is paid as a bonus.", _estimated,
          together(walked("advantages", "advantage", _advantages),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_advantages(row, o), row.value, strict=True)])),
          several=True),
]  # fmt: skip
