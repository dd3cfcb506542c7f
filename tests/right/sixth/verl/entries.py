"""Entries in the dialect of verl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, ppo, scalar, together
from tests.right.shapes import cells

from trimtab.sentinel import Case, Out, Result, Subject, at, bind
from trimtab.sentinel.of import ratio
from trimtab.sentinel.targets.handed import reward_on_last

UPDATE = gap("logp_current", "logp_old")
ENGINE = gap("logp_old", "logp_rollout")


def _baseline(fn: Any) -> Subject:
    return bind(
        fn, role="group_advantage", couples="batch",
        args={"token_level_rewards": reward_on_last, "response_mask": "trainable",
              "index": lambda case: case.sequence("group").tolist()},
    )  # fmt: skip


def _whitened(case: Case, o: Any) -> Out:
    rows = loops.rows(case)
    centred: list[float] = []
    for row in rows:
        held = [p.reward for p in loops.peers(rows, row) if p.count]
        centred += [row.reward - (loops.mean(held) if len(held) > 1 else 0.0)] * row.count
    centre, scale = loops.mean(centred), (loops.spread(centred, 1) ** 2 + 1e-8) ** 0.5
    return {"advantage": Result(loops.numbers([(x - centre) / scale for x in centred]), "token", "advantage")}


def _step(method: Any) -> Subject:
    def step(
        log_prob, old_log_probs, ref_log_prob, advantages, entropy, response_mask,
        clip_ratio, entropy_coeff, use_kl_loss, kl_loss_coef,
    ):  # fmt: skip
        config = SimpleNamespace(
            clip_ratio=clip_ratio, entropy_coeff=entropy_coeff, use_kl_loss=use_kl_loss, kl_loss_coef=kl_loss_coef
        )
        data = {"response_mask": response_mask, "advantages": advantages, "old_log_probs": old_log_probs,
                "ref_log_prob": ref_log_prob}  # fmt: skip
        return method(SimpleNamespace(config=config), data, log_prob, entropy)

    return bind(
        step, role="policy_loss", name="DataParallelPPOActor._step",
        args={"log_prob": "logp_current", "old_log_probs": "logp_old", "ref_log_prob": "logp_ref",
              "advantages": "advantage", "entropy": "entropy", "response_mask": "trainable"},
        options={"clip_ratio": 0.2, "entropy_coeff": 0.001, "use_kl_loss": True, "kl_loss_coef": 0.1},
        variants={"clip_ratio": (0.05,), "entropy_coeff": (0.0, 0.1), "use_kl_loss": (False,),
                  "kl_loss_coef": (0.5,)},
        returns={"loss": at(0, "loss"), "pg_loss": at((1, "actor/pg_loss"), "metric"),
                 "entropy": at((1, "actor/entropy"), "metric", of="entropy", reduction="mean")},
    )  # fmt: skip


def _surrogate(rows: list[Row], o: Any) -> float:
    low, high = 1 - o["clip_ratio"], 1 + o["clip_ratio"]
    return loops.token_mean(rows, lambda r, t: ppo(UPDATE(r, t), r.advantage[t], low, high))


def _entropy(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: r.entropy[t])


def _step_value(rows: list[Row], o: Any) -> float:
    kl = loops.token_mean(rows, lambda r, t: min(loops.k3(r.logp_current[t] - r.logp_ref[t]), 10.0))
    penalty = o["kl_loss_coef"] * kl if o["use_kl_loss"] else 0.0
    return _surrogate(rows, o) - o["entropy_coeff"] * _entropy(rows, o) + penalty


def _weights(case: Case) -> torch.Tensor:
    return torch.exp(cells("logp_old")(case) - cells("logp_rollout")(case)).detach()


def _diagnosed(fn: Any) -> Subject:
    return bind(
        fn, role="metric", args={"w": _weights, "live": "trainable"},
        options={"upper": 1.2}, variants={"upper": (1.05,)},
        returns={"mean": at("rollout_is_mean", "metric", of=ratio("logp_old", "logp_rollout"), reduction="mean",
                            agreed=1.0),
                 "std": at("rollout_is_std", "metric", agreed=0.0),
                 "ess": at("rollout_is_eff_sample_size", "metric", agreed=1.0),
                 "high": at("rollout_is_fraction_high", "metric", agreed=0.0)},
    )  # fmt: skip


def _all(rows: list[Row]) -> list[float]:
    return [loops.exp(ENGINE(row, t)) for row in rows for t in range(row.count)]


def _ess(rows: list[Row], o: Any) -> float:
    found = _all(rows)
    return loops.mean(found) ** 2 / loops.mean([x * x for x in found])


def _geo(fn: Any) -> Subject:
    def loss(old_log_prob, log_prob, advantages, response_mask, clip_ratio, clip_ratio_low, clip_ratio_high):
        config = SimpleNamespace(clip_ratio=clip_ratio, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
        return fn(old_log_prob, log_prob, advantages, response_mask, config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_geo_mean",
        args={"old_log_prob": "logp_old", "log_prob": "logp_current", "response_mask": "trainable",
              "advantages": lambda case: case.sequence("outcome")[:, None].expand_as(cells("trainable")(case))},
        options={"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": 0.4},
        variants={"clip_ratio": (0.05,), "clip_ratio_low": (0.1,), "clip_ratio_high": (None, 0.05)},
        returns={"loss": at(0, "loss"), "clipfrac": at((1, "actor/pg_clipfrac"), "metric"),
                 "ppo_kl": at((1, "actor/ppo_kl"), "metric")},
    )  # fmt: skip


def _kept(r: Row, t: int, o: Any) -> float:
    low, high = (o["clip_ratio"] if o[name] is None else o[name] for name in ("clip_ratio_low", "clip_ratio_high"))
    return min(UPDATE(r, t), high) if r.outcome > 0 else max(UPDATE(r, t), -low)


def _geo_value(rows: list[Row], o: Any) -> float:
    used = [row for row in rows if row.count]
    return loops.mean([-row.outcome * loops.exp(row.mean(lambda r, t: _kept(r, t, o))) for row in used])


ENTRIES = [
    Entry("compute_reinforce_plus_plus_baseline_outcome_advantage", "verl", "group_advantage",
          "The whitening gets no mask, so the padding of a short row counts as often as the tokens of a long one.",
          _baseline, _whitened, several=True, pads_finite=True),
    Entry("DataParallelPPOActor._step", "verl", "policy_loss",
          "The distance to the reference policy is taken off the loss, so it is maximised.",
          _step, together(scalar("loss", "loss", _step_value), scalar("pg_loss", "metric", _surrogate),
                          scalar("entropy", "metric", _entropy)),
          neutral=True, several=True, pads_finite=True),
    Entry("diagnose", "verl", "metric",
          "The second moment of the weights is a mean over all cells, so padding raises the effective sample size.",
          _diagnosed,
          together(scalar("mean", "metric", lambda rows, o: loops.mean(_all(rows))),
                   scalar("std", "metric", lambda rows, o: loops.spread(_all(rows), 0)),
                   scalar("ess", "metric", _ess),
                   scalar("high", "metric", lambda rows, o: loops.mean([float(x > o["upper"]) for x in _all(rows)]))),
          neutral=True, unusual=True, several=True, single=True),
    Entry("compute_policy_loss_geo_mean", "verl", "policy_loss",
          "Token ratios are clipped on both sides whatever the sign of the advantage, so bad steps are not undone.",
          _geo,
          together(scalar("loss", "loss", _geo_value),
                   scalar("clipfrac", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(_kept(r, t, o) != UPDATE(r, t)))),
                   scalar("ppo_kl", "metric", lambda rows, o: -loops.token_mean(rows, UPDATE))),
          several=True, pads_finite=True),
]  # fmt: skip
