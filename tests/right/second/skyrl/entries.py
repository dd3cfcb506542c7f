"""Entries in the dialect of SkyRL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import written

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE, ROLLOUT = gap("logp_current", "logp_old"), gap("logp_old", "logp_rollout")


def _maxrl(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        centre = loops.mean([sum(p.token_reward) for p in loops.peers(rows, row)])
        found.append((sum(row.token_reward) - centre) / (centre + 1e-6) if centre > 0 else 0.0)
    return found


def _folded(rows: list[Row], o: Any) -> float:
    if o["loss_reduction"] == "token_mean":
        return loops.token_mean(rows, lambda r, t: r.token_loss[t])
    if o["loss_reduction"] == "sequence_mean":
        return loops.row_mean(rows, lambda r, t: r.token_loss[t], empty=True)
    return loops.row_sum_mean(rows, lambda r, t: r.token_loss[t], empty=True) / o["max_seq_len"]


def _sapo(fn: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_mask, tau_pos, tau_neg):
        config = SimpleNamespace(sapo=SimpleNamespace(tau_pos=tau_pos, tau_neg=tau_neg))
        return fn(log_probs, old_log_probs, advantages, config, loss_mask)

    return bind(
        loss, role="policy_loss", name="sapo_policy_loss", options={"tau_pos": 1.0, "tau_neg": 1.05},
        variants={"tau_pos": (2.0,), "tau_neg": (3.0,)},
        returns={"loss": at(0, "loss"), "ratio": at((1, "ratio_mean"), "metric", agreed=1.0)},
    )  # fmt: skip


def _sapo_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        tau = o["tau_pos"] if r.advantage[t] > 0 else o["tau_neg"]
        away = tau * (loops.exp(loops.clamp(UPDATE(r, t), -20, 20)) - 1)
        return -r.advantage[t] * 4 / tau / (1 + loops.exp(-away))

    return loops.row_mean(rows, one)


def _sequence_is(fn: Any) -> Subject:
    def weights(old_log_probs, rollout_log_probs, loss_mask, tis_ratio_clip_high):
        cfg = SimpleNamespace(tis_ratio_clip_high=tis_ratio_clip_high)
        return fn(old_log_probs, rollout_log_probs, loss_mask, cfg)

    return bind(
        weights, role="importance", name="compute_seq_rollout_is", options={"tis_ratio_clip_high": 2.0},
        variants={"tis_ratio_clip_high": (1.05,)},
        returns={"importance": at(0, "importance"),
                 "capped": at((1, "is_ratio_capped_fraction"), "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _product(row: Row) -> float:
    return loops.exp(loops.clamp(row.total(ROLLOUT), -20, 20))


def _capped(rows: list[Row], o: Any) -> float:
    return loops.mean([float(_product(r) > o["tis_ratio_clip_high"]) for r in rows if r.count])


def _whitened(case: Case, o: Any) -> Any:
    pooled = [a for row in loops.rows(case) for a in row.advantage]
    centre, size = loops.mean(pooled), loops.spread(pooled, 0) + 1e-8
    return {"advantage": Result(loops.numbers([(a - centre) / size for a in pooled]), "token", "advantage")}


def _updated(fn: Any) -> Subject:
    def updated(
        token_level_rewards, action_log_probs, base_action_log_probs, response_mask, kl_loss_coef, kl_estimator_type
    ):
        data = {"rewards": token_level_rewards, "action_log_probs": action_log_probs,
                "base_action_log_probs": base_action_log_probs, "response_mask": response_mask}  # fmt: skip
        return fn(data, SimpleNamespace(kl_loss_coef=kl_loss_coef, kl_estimator_type=kl_estimator_type))

    return bind(
        updated, role="kl_in_reward", name="update_batch", args={"action_log_probs": "logp_old"},
        options={"kl_loss_coef": 0.1, "kl_estimator_type": "k1"},
        variants={"kl_loss_coef": (0.5,), "kl_estimator_type": ("k3",)}, penalties={"kl_loss_coef": "logp_ref"},
        returns={"reward": at("rewards", "reward")},
    )  # fmt: skip


def _reward(row: Row, t: int, o: Any) -> float:
    apart = row.logp_old[t] - row.logp_ref[t]
    return row.token_reward[t] - o["kl_loss_coef"] * (loops.k3(apart) if o["kl_estimator_type"] == "k3" else apart)


def _writes(right: Any, wrong: Any) -> bool:
    def changed(fn: Any) -> bool:
        def call(rewards, new, base, mask):
            data = {"rewards": rewards, "action_log_probs": new, "base_action_log_probs": base, "response_mask": mask}
            fn(data, SimpleNamespace(kl_loss_coef=0.1, kl_estimator_type="k1"))

        return written(call, torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2, 3), torch.ones(2, 3))

    return changed(right) != changed(wrong)


ENTRIES = [
    Entry("compute_maxrl_advantage", "skyrl", "group_advantage",
          "The unit is the mean of the batch instead of the mean of the group.",
          lambda fn: bind(fn, role="group_advantage", options={"epsilon": 1e-6}),
          per_row("advantage", "advantage", _maxrl, level="token")),
    Entry("fold", "skyrl", "aggregation",
          "The token mean is divided by the length of the sequence too (as once in ROLL).",
          lambda fn: bind(
              fn, role="aggregation", args={"loss": "token_loss"},
              options={"loss_reduction": "token_mean", "max_seq_len": 16},
              variants={"loss_reduction": ("sequence_mean", "seq_mean_token_sum_norm")}),
          scalar("loss", "loss", _folded), neutral=True),
    Entry("sapo_policy_loss", "skyrl", "policy_loss",
          "The temperatures of positive and negative advantages are exchanged.", _sapo,
          together(scalar("loss", "loss", _sapo_value),
                   scalar("ratio", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: loops.exp(loops.clamp(UPDATE(r, t), -20, 20))))), several=True),
    Entry("compute_seq_rollout_is", "skyrl", "importance",
          "The product runs over tool output and padding too.", _sequence_is,
          together(per_token("importance", "importance", lambda r, t, o: min(_product(r), o["tis_ratio_clip_high"])),
                   scalar("capped", "metric", _capped)), several=True),
    Entry("postprocess", "skyrl", "whitening",
          "The mean is taken over padding too (SkyRL#1305).",
          lambda fn: bind(fn, role="whitening"), _whitened, neutral=True),
    Entry("update_batch", "skyrl", "kl_in_reward",
          "The rewards of the caller are changed in place, so a second use pays the penalty twice.", _updated,
          per_token("reward", "reward", _reward), neutral=True, differs=_writes),
]  # fmt: skip
