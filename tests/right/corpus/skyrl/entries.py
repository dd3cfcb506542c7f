"""Entries in the dialect of SkyRL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, gap, per_token, ppo, scalar, together, walked
from tests.right.shapes import written

from trimtab.sentinel import Case, Result, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _reduced(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return r.token_loss[t]

    if o["loss_reduction"] == "token_mean":
        return loops.token_mean(rows, one)
    if o["loss_reduction"] == "sequence_mean":
        return loops.row_mean(rows, one, empty=True)
    return loops.row_sum_mean(rows, one, empty=True) / o["max_seq_len"]


def _policy(fn: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, loss_mask, **settings):
        return fn(log_probs, old_log_probs, advantages, SimpleNamespace(**settings), loss_mask)

    return bind(
        loss, role="policy_loss", name="ppo_policy_loss", options={"eps_clip_low": 0.2, "eps_clip_high": 0.28},
        variants={"eps_clip_low": (0.5,), "eps_clip_high": (0.9,)},
        returns={"loss": at(0, "loss"),
                 "clip_ratio": at((1, "clip_ratio"), "metric", range=(0, 1), agreed=0.0, reduction="mean")},
    )  # fmt: skip


def _policy_loss(rows: list[Row], o: Any) -> float:
    low, high = 1 - o["eps_clip_low"], 1 + o["eps_clip_high"]
    return loops.token_mean(rows, lambda r, t: ppo(clamp(UPDATE(r, t), -20, 20), r.advantage[t], low, high))


def _clip_ratio(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio, credit = loops.exp(clamp(UPDATE(r, t), -20, 20)), r.advantage[t]
        return float(clamp(ratio, 1 - o["eps_clip_low"], 1 + o["eps_clip_high"]) * credit < ratio * credit)

    return loops.token_mean(rows, one)


def _kl(r: Row, t: int, o: Any) -> float:
    x = r.logp_current[t] - r.logp_ref[t]
    return {"k1": x, "abs": abs(x), "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_estimator_type"]]


def _whitened(case: Case, name: str, values: list[list[float]], inside: float, outside: float) -> Any:
    flat = [v for row in values for v in row]
    wide = (loops.spread(flat, 0) ** 2 + inside) ** 0.5 + outside
    return {name: Result(loops.numbers([(v - loops.mean(flat)) / wide for v in flat]), "token", "advantage")}


def _reinforce(case: Case, o: Any) -> Any:
    values = [loops.to_go(row.token_reward, o["gamma"]) for row in loops.rows(case)]
    returns = walked("returns", "return", lambda row, _: values[row.index])(case, o)
    return {**_whitened(case, "advantage", values, 1e-8, 0.0), **returns}


def _leaks(right: Any, wrong: Any) -> bool:
    """Whether NaN at a masked cell reaches the result."""
    held = torch.tensor([[-1.0, float("nan")]]).double()
    return bool(wrong(held, torch.zeros(1, 2).double(), torch.tensor([[1.0, 0.0]])).isnan().any())


def _writes(right: Any, wrong: Any) -> bool:
    """Whether the call changes its input."""
    return written(wrong, torch.tensor([[1.0, 2.0], [0.5, 3.0]]).double(), torch.ones(2, 2).double())


def _kl_loss(cls: Any) -> Subject:
    def loss(log_probs, ref_log_probs, loss_mask, kl_loss_coef):
        return cls(kl_loss_coef)(log_probs, ref_log_probs, loss_mask)

    return bind(loss, role="kl_in_loss", name="KLLoss", options={"kl_loss_coef": 0.1},
                penalties={"kl_loss_coef": "logp_ref"})  # fmt: skip


def _difference(r: Row, t: int) -> float:
    return abs(loops.exp(r.logp_rollout[t]) - loops.exp(r.logp_current[t]))


ENTRIES = [
    Entry("reduce_loss", "skyrl", "aggregation",
          "sequence_mean divides each row by the padded width (SkyRL 6f20d29b8).",
          lambda fn: bind(fn, role="aggregation", args={"loss": "token_loss"},
                          options={"loss_reduction": "sequence_mean", "max_seq_len": 8},
                          variants={"loss_reduction": ("token_mean", "seq_mean_token_sum_norm")}),
          scalar("loss", "loss", _reduced)),
    Entry("ppo_policy_loss", "skyrl", "policy_loss",
          "The clip fraction is a mean over all cells, padding included (SkyRL a0e0b333d had this for the entropy).",
          _policy, together(scalar("loss", "loss", _policy_loss), scalar("clip_ratio", "metric", _clip_ratio)),
          several=True),
    Entry("compute_approx_kl", "skyrl", "kl",
          "NaN at a masked cell survives the product with the mask (SkyRL 811f8ee9d).",
          lambda fn: bind(fn, role="kl", options={"kl_estimator_type": "k3"},
                          variants={"kl_estimator_type": ("k1", "k2", "abs")}),
          per_token("kl", "kl", _kl), differs=_leaks),
    Entry("compute_reinforce_plus_plus_outcome_advantage", "skyrl", "returns",
          "A tool-output token resets the return (SkyRL a9564572e, verl f773c96a7).",
          lambda fn: bind(fn, role="returns", options={"gamma": 0.9}, variants={"gamma": (0.5,)}, couples="batch",
                          returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          _reinforce, several=True),
    Entry("process", "skyrl", "whitening", "The advantages of the caller are overwritten in place (slime a0d6d26a2).",
          lambda fn: bind(fn, role="whitening"),
          lambda case, o: _whitened(case, "advantage", [row.advantage for row in loops.rows(case)], 0.0, 1e-6),
          neutral=True, differs=_writes),
    Entry("KLLoss", "skyrl", "kl_in_loss", "The token mean is divided by the number of rows once more.", _kl_loss,
          scalar("loss", "loss", lambda rows, o: o["kl_loss_coef"] * loops.token_mean(
              rows, lambda r, t: loops.k3(r.logp_current[t] - r.logp_ref[t]))),
          single=True),
    Entry("compute", "skyrl", "metric", "The entropy of padding enters the mean (SkyRL a0e0b333d).",
          lambda fn: bind(fn, role="metric", args={"logits": lambda c: c.padded("logits", with_prompt=False)}),
          scalar("metric", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: loops.entropy(r.logits[t]))),
          neutral=True),
    Entry("step_fn", "skyrl", "metric",
          "The difference is the exponential of the log-ratio: 1 where both agree (SkyRL dd6c18f50).",
          lambda fn: bind(fn, role="metric",
                          returns={"mean": at("prob_diff_mean", "metric", agreed=0.0, reduction="mean"),
                                   "max": at("prob_diff_max", "metric", agreed=0.0, reduction="max")}),
          together(scalar("mean", "metric", lambda rows, o: loops.token_mean(rows, _difference)),
                   scalar("max", "metric", lambda rows, o: max(
                       _difference(r, t) for r in rows for t in range(r.count)))),
          neutral=True, several=True),
]  # fmt: skip
