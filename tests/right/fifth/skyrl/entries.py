"""Entries in the dialect of SkyRL."""

import math
from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, scalar, together, walked

from trimtab.sentinel import Case, Out, Result, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
DISTANCE = gap("logp_old", "logp_ref")


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


def _whitened(case: Case, o: Any) -> Out:
    found = [x for row in loops.rows(case) for x in _advantages(row, o)]
    scale = math.sqrt(loops.spread(found, 0) ** 2 + 1e-8)
    numbers = loops.numbers([(x - loops.mean(found)) / scale for x in found])
    return {"advantage": Result(numbers, "token", "advantage")}


def _postprocessed(method: Any) -> Subject:
    def postprocess(rewards, action_log_probs, base_action_log_probs, loss_mask, kl_estimator_type, kl_coef):
        algorithm = SimpleNamespace(kl_estimator_type=kl_estimator_type)
        trainer = SimpleNamespace(cfg=SimpleNamespace(algorithm=algorithm), kl_coef=kl_coef)
        data = {"rewards": rewards, "action_log_probs": action_log_probs,
                "base_action_log_probs": base_action_log_probs, "loss_mask": loss_mask}  # fmt: skip
        return method(trainer, data)

    return bind(
        postprocess, role="kl_in_reward", name="RayPPOTrainer.postprocess",
        args={"rewards": "token_reward", "action_log_probs": "logp_old", "base_action_log_probs": "logp_ref",
              "loss_mask": "trainable"},
        options={"kl_estimator_type": "k3", "kl_coef": 0.1},
        variants={"kl_estimator_type": ("k1", "k2"), "kl_coef": (0.0, 0.5)}, penalties={"kl_coef": "logp_ref"},
        returns={"reward": at((0, "rewards"), "reward"), "kl": at((0, "kl"), "kl"),
                 "avg_kl": at((1, "avg_kl"), "metric")},
    )  # fmt: skip


def _kl(row: Row, t: int, o: Any) -> float:
    x = DISTANCE(row, t)
    return {"k1": x, "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_estimator_type"]]


def _sapo(fn: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_mask, tau_pos, tau_neg, loss_reduction):
        config = SimpleNamespace(sapo=SimpleNamespace(tau_pos=tau_pos, tau_neg=tau_neg), loss_reduction=loss_reduction)
        return fn(log_probs, old_log_probs, advantages, config, loss_mask)

    return bind(
        loss, role="policy_loss", name="sapo_policy_loss",
        args={"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage",
              "loss_mask": "trainable"},
        options={"tau_pos": 1.0, "tau_neg": 1.05, "loss_reduction": "token_mean"},
        variants={"tau_pos": (0.5,), "tau_neg": (2.0,), "loss_reduction": ("sequence_mean",)},
    )  # fmt: skip


def _sapo_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        tau = o["tau_pos"] if r.advantage[t] > 0 else o["tau_neg"]
        ratio = loops.exp(loops.clamp(UPDATE(r, t), -20.0, 20.0))
        return -r.advantage[t] * 4 / tau / (1 + loops.exp(-tau * (ratio - 1)))

    return loops.token_mean(rows, one) if o["loss_reduction"] == "token_mean" else loops.row_mean(rows, one, empty=True)


ENTRIES = [
    Entry("compute_gae_advantage_return", "skyrl", "returns",
          "The targets of the critic are made from advantages that were already whitened.",
          lambda fn: bind(
              fn, role="returns", couples="batch",
              args={"token_level_rewards": "token_reward", "values": "value", "response_mask": "trainable"},
              options={"gamma": 0.9, "lambd": 0.8}, variants={"gamma": (1.0,), "lambd": (1.0,)},
              returns={"advantage": at(0, "advantage"), "return": at(1, "return")}),
          together(_whitened, walked("return", "return", lambda row, o: [
              a + v for a, v in zip(_advantages(row, o), row.value, strict=True)])), several=True),
    Entry("RayPPOTrainer.postprocess", "skyrl", "kl_in_reward",
          "The k3 estimate takes the log-ratio the wrong way round, which is the other direction of the KL.",
          _postprocessed,
          together(
              per_token("reward", "reward", lambda r, t, o: r.token_reward[t] - o["kl_coef"] * _kl(r, t, o)),
              per_token("kl", "kl", _kl, detached=True),
              scalar("avg_kl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: _kl(r, t, o)))),
          neutral=True, several=True),
    Entry("sapo_policy_loss", "skyrl", "policy_loss",
          "The temperatures of positive and negative advantages are swapped.",
          _sapo, scalar("loss", "loss", _sapo_value), several=True, single=True, pads_finite=True),
]  # fmt: skip
