"""Entries in the dialect of SkyRL."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, per_row, ppo, scalar, together, walked

from trimtab.sentinel import Case, Result, Subject, at, bind

LONGEST = 16


def _apart(r: Row, t: int) -> float:
    return loops.clamp(r.logp_current[t] - r.logp_old[t], -20.0, 20.0)


def _policy(cls: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_mask, **settings):
        return cls(**settings)(log_probs, old_log_probs, advantages, loss_mask)

    return bind(
        loss, role="policy_loss", name="PolicyLoss",
        args={"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage",
              "loss_mask": "trainable"},
        options={"clip_eps_low": 0.2, "clip_eps_high": 0.28, "clip_ratio_c": 3.0, "loss_type": "dual_clip",
                 "loss_reduction": "token_mean"},
        variants={"clip_eps_low": (0.05,), "clip_eps_high": (0.05,), "clip_ratio_c": (1.2,),
                  "loss_type": ("regular",), "loss_reduction": ("sequence_mean",)},
        returns={"loss": at(0, "loss"), "clipped": at(1, "metric")},
    )  # fmt: skip


def _policy_value(rows: list[Row], o: Any) -> float:
    cap = o["clip_ratio_c"] if o["loss_type"] == "dual_clip" else None

    def one(r: Row, t: int) -> float:
        return ppo(_apart(r, t), r.advantage[t], 1 - o["clip_eps_low"], 1 + o["clip_eps_high"], cap)

    if o["loss_reduction"] == "token_mean":
        return loops.token_mean(rows, one)
    return loops.row_mean(rows, one, empty=True)


def _is_clipped(r: Row, t: int, o: Any) -> float:
    ratio, advantage = loops.exp(_apart(r, t)), r.advantage[t]
    clipped = loops.clamp(ratio, 1 - o["clip_eps_low"], 1 + o["clip_eps_high"])
    return float(-clipped * advantage > -ratio * advantage)


def _value(cls: Any) -> Subject:
    def loss(values, old_values, returns, loss_mask, clip_eps):
        return cls(clip_eps)(values, old_values, returns, loss_mask)

    return bind(
        loss, role="value_loss", name="ValueLoss",
        args={"values": "value", "old_values": "value_old", "returns": "returns", "loss_mask": "trainable"},
        options={"clip_eps": 0.2}, variants={"clip_eps": (0.05, 1.0)},
        returns={"loss": at(0, "loss"), "clipped": at(1, "metric")},
    )  # fmt: skip


def _errors(r: Row, t: int, o: Any) -> tuple[float, float]:
    moved = loops.clamp(r.value[t] - r.value_old[t], -o["clip_eps"], o["clip_eps"])
    return (r.value_old[t] + moved - r.returns[t]) ** 2, (r.value[t] - r.returns[t]) ** 2


def _value_clipped(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: float(_errors(r, t, o)[0] > _errors(r, t, o)[1]))


def _sapo(fn: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_mask, rollout_logprobs, tau_pos, tau_neg, tis_imp_ratio_cap):
        sapo = SimpleNamespace(tau_pos=tau_pos, tau_neg=tau_neg)
        config = SimpleNamespace(sapo=sapo, tis_imp_ratio_cap=tis_imp_ratio_cap)
        return fn(log_probs, old_log_probs, advantages, config, loss_mask, rollout_logprobs)

    return bind(
        loss, role="policy_loss", name="sapo_policy_loss",
        args={"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage",
              "loss_mask": "trainable", "rollout_logprobs": "logp_rollout"},
        options={"tau_pos": 1.0, "tau_neg": 1.05, "tis_imp_ratio_cap": 2.0},
        variants={"tau_pos": (2.0,), "tau_neg": (3.0,), "tis_imp_ratio_cap": (1.1, -1.0)},
        returns={"loss": at(0, "loss")},
    )  # fmt: skip


def _sapo_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        tau = o["tau_pos"] if r.advantage[t] > 0 else o["tau_neg"]
        x = tau * (loops.exp(_apart(r, t)) - 1)
        gate = 4 / tau / (1 + math.exp(-x))
        correction = loops.exp(loops.clamp(r.logp_old[t] - r.logp_rollout[t], -20.0, 20.0))
        weight = min(correction, o["tis_imp_ratio_cap"]) if o["tis_imp_ratio_cap"] > 0 else 1.0
        return -gate * r.advantage[t] * weight

    return sum((row.total(one) for row in rows), 0.0)


def _rescale(method: Any) -> Subject:
    def reduced(token_loss, loss_mask, uids, loss_reduction):
        trainer = SimpleNamespace(loss_reduction=loss_reduction, max_seq_len=LONGEST)
        return (method(trainer, token_loss, loss_mask, uids) * loss_mask).sum()

    return bind(
        reduced, role="aggregation", name="RayPPOTrainer.rescale",
        args={"token_loss": "token_loss", "loss_mask": "trainable",
              "uids": lambda case: [str(one) for one in case.sequence("group").tolist()]},
        options={"loss_reduction": "token_mean"},
        variants={"loss_reduction": ("sequence_mean", "seq_mean_token_sum_norm", "prompt_mean")},
    )  # fmt: skip


def _reduced(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return r.token_loss[t]

    if o["loss_reduction"] == "token_mean":
        return loops.token_mean(rows, one)
    if o["loss_reduction"] == "sequence_mean":
        return loops.row_mean(rows, one, empty=True)
    if o["loss_reduction"] == "seq_mean_token_sum_norm":
        return loops.row_sum_mean(rows, one, empty=True) / LONGEST
    groups = sorted({row.group for row in rows})
    return loops.mean([loops.token_mean([row for row in rows if row.group == g], one) for g in groups])


def _prune(fn: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        tickets = [str(one) for one in case.sequence("group").tolist()]
        left = set(fn(case.sequence("reward").detach().tolist(), tickets))
        keep = torch.tensor([float(i in left) for i in range(len(tickets))], dtype=torch.float64)
        return {"keep": Result.sequence(keep, "keep")}

    return Subject("prune", call, role="keep", couples="group")


def _pruned(rows: list[Row], o: Any) -> list[float]:
    groups = [[p.reward for p in loops.peers(rows, row)] for row in rows]
    return [float(len(group) == 1 or any(x != group[0] for x in group)) for group in groups]


def _swept(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


def _whitened(row: Row, o: Any) -> list[float]:
    every = [x for other in loops.rows(row.case) for x in _swept(other, o)]
    centre, size = loops.mean(every), math.sqrt(loops.spread(every, 1) ** 2 + 1e-8)
    return [(x - centre) / size for x in _swept(row, o)]


ENTRIES = [
    Entry("PolicyLoss", "skyrl", "policy_loss",
          "The dual clip takes the larger loss, not the smaller one, so most negative advantages have no gradient.",
          _policy,
          together(scalar("loss", "loss", _policy_value),
                   scalar("clipped", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: _is_clipped(r, t, o)))),
          several=True, pads_finite=True),
    Entry("ValueLoss", "skyrl", "value_loss",
          "The old value is clipped around the new one instead of the new value around the old one.", _value,
          together(scalar("loss", "loss", lambda rows, o: 0.5 * loops.row_mean(
                       rows, lambda r, t: max(_errors(r, t, o)), empty=True)),
                   scalar("clipped", "metric", _value_clipped)),
          several=True, pads_finite=True),
    Entry("sapo_policy_loss", "skyrl", "policy_loss",
          "The gate is divided by the temperature of positive advantages also where the advantage is negative.",
          _sapo, scalar("loss", "loss", _sapo_value), several=True, pads_finite=True),
    Entry("RayPPOTrainer.rescale", "skyrl", "aggregation",
          "The mean over tokens divides by all cells of the batch, with padding and tool output.", _rescale,
          scalar("loss", "loss", _reduced), neutral=True, pads_finite=True),
    Entry("prune", "skyrl", "keep",
          "A group is dropped unless its mean is between 0 and 1, which is right for rewards of 0 and 1 only.", _prune,
          per_row("keep", "keep", _pruned), neutral=True, unusual=True),
    Entry("sweep", "skyrl", "returns",
          "The returns are made from the advantages after these were whitened.",
          lambda fn: bind(
              fn, role="returns", couples="batch",
              args={"token_level_rewards": "token_reward", "values": "value", "response_mask": "trainable"},
              options={"gamma": 0.9, "lambd": 0.8}, variants={"gamma": (1.0,), "lambd": (1.0, 0.3)},
              returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          together(walked("advantage", "advantage", _whitened),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_swept(row, o), row.value, strict=True)])),
          neutral=True, several=True),
]  # fmt: skip
