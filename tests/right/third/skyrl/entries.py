"""Entries in the dialect of SkyRL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.telling import slopes_differ
from tests.right.loops import Row, gap, per_row, ppo, scalar, together
from tests.right.shapes import response_width
from torch import Tensor

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _ppo(fn: Any) -> Subject:
    def loss(
        log_probs, old_log_probs, advantages, loss_mask,
        eps_clip_low, eps_clip_high, clip_ratio_c, policy_loss_type, loss_reduction,
    ):  # fmt: skip
        config = SimpleNamespace(
            eps_clip_low=eps_clip_low, eps_clip_high=eps_clip_high, clip_ratio_c=clip_ratio_c,
            policy_loss_type=policy_loss_type, loss_reduction=loss_reduction,
        )  # fmt: skip
        return fn(log_probs, old_log_probs, advantages, config, loss_mask)

    return bind(
        loss, role="policy_loss", name="ppo_policy_loss",
        options={"eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 3.0, "policy_loss_type": "regular",
                 "loss_reduction": "token_mean"},
        variants={"eps_clip_low": (0.1,), "eps_clip_high": (0.5,), "policy_loss_type": ("dual_clip",),
                  "loss_reduction": ("sequence_mean",)},
        returns={"loss": at(0, "loss"), "clip_ratio": at(1, "metric")},
    )  # fmt: skip


def _ppo_value(rows: list[Row], o: Any) -> float:
    cap = o["clip_ratio_c"] if o["policy_loss_type"] == "dual_clip" else None

    def one(r: Row, t: int) -> float:
        log_ratio = loops.clamp(UPDATE(r, t), -20, 20)
        return ppo(log_ratio, r.advantage[t], 1 - o["eps_clip_low"], 1 + o["eps_clip_high"], cap)

    return loops.token_mean(rows, one) if o["loss_reduction"] == "token_mean" else loops.row_mean(rows, one, empty=True)


def _clip_ratio(rows: list[Row], o: Any) -> float:
    def clipped(r: Row, t: int) -> float:
        ratio = loops.exp(UPDATE(r, t))
        above = r.advantage[t] > 0 and ratio > 1 + o["eps_clip_high"]
        return float(above or (r.advantage[t] < 0 and ratio < 1 - o["eps_clip_low"]))

    return loops.token_mean(rows, clipped)


def _spread(case: Case) -> Tensor:
    """One advantage per sequence, at each of its tokens."""
    return case.sequence("outcome").unsqueeze(-1).expand(-1, response_width(case))


def _gspo(fn: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_mask, eps_clip_low, eps_clip_high):
        config = SimpleNamespace(eps_clip_low=eps_clip_low, eps_clip_high=eps_clip_high)
        return fn(log_probs, old_log_probs, advantages, config, loss_mask)

    return bind(
        loss, role="policy_loss", name="gspo_policy_loss", args={"advantages": _spread},
        options={"eps_clip_low": 0.3, "eps_clip_high": 0.4},
        variants={"eps_clip_low": (0.05,), "eps_clip_high": (0.05,)},
    )  # fmt: skip


def _gspo_value(rows: list[Row], o: Any) -> float:
    return loops.row_mean(
        rows, lambda r, t: ppo(r.mean(UPDATE), r.outcome, 1 - o["eps_clip_low"], 1 + o["eps_clip_high"]), empty=True
    )


def _correction(cls: Any) -> Subject:
    def weights(old_log_probs, rollout_logprobs, loss_mask, cap):
        return cls(cap=cap)(old_log_probs, rollout_logprobs, loss_mask)

    return bind(
        weights, role="importance", name="Correction",
        args={"old_log_probs": "logp_old", "rollout_logprobs": "logp_rollout", "loss_mask": "trainable"},
        options={"cap": 2.0}, variants={"cap": (1.1,)},
    )  # fmt: skip


def _corrected(rows: list[Row], o: Any) -> list[float]:
    sums = [r.total(gap("logp_old", "logp_rollout")) for r in rows]
    return [min(loops.exp(loops.clamp(x, -20, 20)), o["cap"]) for x in sums]


def _reduced(rows: list[Row], o: Any) -> float:
    def own(r: Row, t: int) -> float:
        return r.token_loss[t]

    if o["loss_reduction"] == "token_mean":
        return loops.token_mean(rows, own)
    if o["loss_reduction"] == "sequence_mean":
        return loops.row_mean(rows, own, empty=True)
    return loops.row_sum_mean(rows, own, empty=True) / o["max_seq_len"]


ENTRIES = [
    Entry("ppo_policy_loss", "skyrl", "policy_loss",
          "The lower and the upper width of the clip are exchanged.", _ppo,
          together(scalar("loss", "loss", _ppo_value), scalar("clip_ratio", "metric", _clip_ratio)),
          several=True, pads_finite=True),
    Entry("gspo_policy_loss", "skyrl", "policy_loss",
          "The ratio of the sequence is not detached, so its gradient is added to that of the token.", _gspo,
          scalar("loss", "loss", _gspo_value, detached=True), several=True, pads_finite=True,
          differs=slopes_differ(_gspo)),
    Entry("Correction", "skyrl", "importance",
          "The ratio is that of the engine to the trainer.", _correction,
          per_row("importance", "importance", _corrected, level="token"), neutral=True, single=True),
    Entry("reduce_loss", "skyrl", "aggregation",
          "The sum of a sequence is divided by the width of the batch instead of the constant that was asked for.",
          lambda fn: bind(
              fn, role="aggregation", args={"loss": "token_loss", "loss_mask": "trainable"},
              options={"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 16},
              variants={"loss_reduction": ("token_mean", "sequence_mean"), "max_seq_len": (8,)}),
          scalar("loss", "loss", _reduced), pads_finite=True),
]  # fmt: skip
