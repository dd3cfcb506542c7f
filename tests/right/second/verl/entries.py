"""Entries in the dialect of verl."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.telling import parts_differ
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together
from tests.right.shapes import whole_tokens

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE = gap("logp_current", "logp_old")


def _gspo(fn: Any) -> Subject:
    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, clip_ratio_low, clip_ratio_high):
        config = SimpleNamespace(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
        return fn(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_gspo",
        options={"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": 0.1, "clip_ratio_high": 0.2},
        variants={"loss_agg_mode": ("token-mean",), "clip_ratio_low": (0.02,), "clip_ratio_high": (0.03,)},
        returns={"loss": at(0, "loss"),
                 "clipfrac": at((1, "actor/pg_clipfrac"), "metric", range=(0, 1), agreed=0.0),
                 "kl": at((1, "actor/ppo_kl"), "metric", agreed=0.0)},
    )  # fmt: skip


def _gspo_term(row: Row, t: int, o: Any) -> float:
    return ppo(min(row.mean(UPDATE), 10.0), row.advantage[t], 1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"])


def _gspo_loss(rows: list[Row], o: Any) -> float:
    average = loops.token_mean if o["loss_agg_mode"] == "token-mean" else loops.row_mean
    return average(rows, lambda r, t: _gspo_term(r, t, o))


def _gspo_clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        free = -r.advantage[t] * loops.exp(min(r.mean(UPDATE), 10.0))
        return float(_gspo_term(r, t, o) > free)

    return loops.token_mean(rows, one)


def _opo(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        weighted = sum(p.count * sum(p.token_reward) for p in group)
        baseline = weighted / max(sum(p.count for p in group), 1) if len(group) > 1 else 0.0
        found.append(sum(row.token_reward) - baseline)
    return found


def _numbers(fn: Any) -> Subject:
    def logged(advantages, returns, response_mask):
        return fn({"advantages": advantages, "returns": returns, "response_mask": response_mask})

    return bind(
        logged, role="metric", name="collect_numbers",
        returns={"mean": at("critic/advantages/mean", "metric"),
                 "max": at("critic/advantages/max", "metric", reduction="max"),
                 "min": at("critic/advantages/min", "metric", reduction="min"),
                 "returns": at("critic/returns/mean", "metric"),
                 "length": at("response_length/mean", "metric")},
    )  # fmt: skip


def _peaks_differ(right: Any, wrong: Any) -> bool:
    """Whether two versions disagree on a padded batch in which every advantage is negative."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    batch = {"advantages": -0.5 * mask.double(), "returns": mask.double(), "response_mask": mask}
    return right(batch) != wrong(batch)


def _number(which: str, value: Any) -> Any:
    return scalar(which, "metric", lambda rows, o: value(rows))


def _pool(rows: list[Row]) -> list[float]:
    return [a for row in rows for a in row.advantage] or [0.0]


def _kl(row: Row, t: int, o: Any) -> float:
    gone = row.logp_current[t] - row.logp_ref[t]
    if o["kl_penalty"] == "kl":
        return gone
    if o["kl_penalty"] == "k2":
        return gone * gone / 2
    return min(loops.k3(loops.clamp(gone, -20, 20)), 10.0)


def _whole_rows(case: Case) -> int:
    return sum("a" in kinds for kinds in case.whole.kinds)


def _combined(fn: Any) -> Subject:
    return bind(
        fn, role="aggregation", args={"batch_num_tokens": whole_tokens, "global_batch_size": _whole_rows},
        options={"loss_agg_mode": "seq-mean-token-mean"},
        variants={"loss_agg_mode": ("token-mean", "seq-mean-token-sum")},
    )  # fmt: skip


def _rows_combined(rows: list[Row], o: Any) -> float:
    case = rows[0].case
    if o["loss_agg_mode"] == "token-mean":
        return sum(sum(r.token_loss) for r in rows) / max(whole_tokens(case), 1)
    of_row = sum if o["loss_agg_mode"] == "seq-mean-token-sum" else loops.mean
    return sum(of_row(r.token_loss) for r in rows) / max(_whole_rows(case), 1)


def _whitened_gae(case: Case, o: Any) -> Any:
    rows = loops.rows(case)
    plain = [a for r in rows for a in loops.gae(r, r.token_reward, r.value, o["gamma"], o["lam"])]
    centre = loops.mean(plain)
    size = math.sqrt(sum((a - centre) ** 2 for a in plain) / max(len(plain) - 1, 1) + 1e-8)
    scaled = [(a - centre) / size for a in plain]
    back = [a + v for a, v in zip(plain, [v for r in rows for v in r.value], strict=True)]
    return {
        "advantage": Result(loops.numbers(scaled), "token", "advantage"),
        "return": Result(loops.numbers(back), "token", "return"),
    }


ENTRIES = [
    Entry("compute_policy_loss_gspo", "verl", "policy_loss",
          "The log-ratio of a sequence is divided by the padded width instead of its length.", _gspo,
          together(scalar("loss", "loss", _gspo_loss, detached=True), scalar("clipfrac", "metric", _gspo_clipped),
                   scalar("kl", "metric", lambda rows, o: -loops.token_mean(rows, UPDATE))), several=True),
    Entry("compute_opo_outcome_advantage", "verl", "group_advantage",
          "Token rewards are summed over tool output and padding too.",
          lambda fn: bind(fn, role="group_advantage"),
          per_row("advantage", "advantage", _opo, level="token")),
    Entry("collect_numbers", "verl", "metric",
          "The largest advantage is taken over padding that was set to 0, so it is never negative.", _numbers,
          together(_number("mean", lambda rows: loops.mean(_pool(rows))), _number("max", lambda rows: max(_pool(rows))),
                   _number("min", lambda rows: min(_pool(rows))),
                   _number("returns", lambda rows: loops.token_mean(rows, lambda r, t: r.returns[t])),
                   _number("length", lambda rows: loops.mean([r.count for r in rows]))),
          neutral=True, several=True, single=True, differs=_peaks_differ),
    Entry("estimate", "verl", "kl", "k3 is taken from log p - log q: it estimates the other direction.",
          lambda fn: bind(
              fn, role="kl", args={"logprob": "logp_current", "ref_logprob": "logp_ref"},
              options={"kl_penalty": "low_var_kl"}, variants={"kl_penalty": ("kl", "k2")}),
          per_token("kl", "kl", _kl), neutral=True),
    Entry("combine_rows", "verl", "aggregation",
          "One mode divides by the rows of the micro-batch instead of the rows of the mini-batch.", _combined,
          scalar("loss", "loss", _rows_combined), neutral=True, differs=parts_differ(_combined)),
    Entry("compute_gae_advantage_return", "verl", "returns",
          "Before tool output the next value is 0 instead of the value of the next action.",
          lambda fn: bind(
              fn, role="returns", couples="batch", options={"gamma": 0.9, "lam": 0.8},
              variants={"gamma": (1.0,), "lam": (0.5,)},
              returns={"advantage": at(0, "advantage"), "return": at(1, "return")}),
          _whitened_gae, several=True),
]  # fmt: skip
