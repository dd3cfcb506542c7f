"""Entries in the dialect of prime-rl."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import in_pairs, prompted, whole_tokens

from trimtab.sentinel import Case, Result, Subject, at, bind

MISMATCH = gap("logp_current", "logp_rollout")


def _samples(name: str) -> Callable[[Case], list[torch.Tensor]]:
    return lambda case: case.list(name)


def _masks(case: Case) -> list[torch.Tensor]:
    return [one.bool() for one in case.list("trainable")]


LISTS = {"trainer_logprobs": _samples("logp_current"), "inference_logprobs": _samples("logp_rollout"),
         "loss_mask": _masks}  # fmt: skip


def _loss(fn: Any) -> Subject:
    def loss(trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale, **settings):
        config = SimpleNamespace(**settings)
        return fn(trainer_logprobs, inference_logprobs, advantages, loss_mask, config, loss_scale)

    return bind(
        loss, role="policy_loss", name="compute_loss",
        args={**LISTS, "advantages": _samples("advantage"), "loss_scale": whole_tokens},
        options={"adv_tau": 1.0, "kl_tau": 0.01, "mask_high": 0.2, "mask_low": 0.1},
        variants={"adv_tau": (0.5,), "kl_tau": (0.3,), "mask_high": (0.02,), "mask_low": (0.02,)},
        returns={"loss": at(0, "loss"), "masked": at((1, "is_masked"), "metric")},
    )  # fmt: skip


def _is_masked(r: Row, t: int, o: Any) -> bool:
    moved = loops.exp(r.logp_current[t]) - loops.exp(r.logp_rollout[t])
    return moved > o["mask_high"] if r.advantage[t] > 0 else moved < -o["mask_low"]


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        kept = 0.0 if _is_masked(r, t, o) else o["adv_tau"] * r.advantage[t] * loops.exp(MISMATCH(r, t))
        return o["kl_tau"] * MISMATCH(r, t) ** 2 - kept

    return loops.token_mean(rows, one)


def _assign(fn: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        payoff = in_pairs("reward")(case).detach().tolist()
        found = fn(payoff, list(case.response_lengths), 2, SimpleNamespace(**options))
        return {"advantage": Result.sequence(torch.tensor(found, dtype=torch.float64), "advantage")}

    return Subject(
        "assign", call, role="group_advantage", options={"length_weighted_mean": True, "neg_clipped": False},
        variants={"length_weighted_mean": (False,), "neg_clipped": (True,)},
    )  # fmt: skip


def _assigned(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        lengths = [float(row.case.response_lengths[p.index]) if o["length_weighted_mean"] else 1.0 for p in group]
        total = sum(n * p.reward for n, p in zip(lengths, group, strict=True))
        one = row.reward - total / max(sum(lengths), 1.0)
        found.append(max(one, 0.0) if o["neg_clipped"] else one)
    return found


def _head(cls: Any) -> Subject:
    def forward(hidden_states, labels, temperature):
        width = hidden_states.shape[-1]
        head = cls(width, width)
        head.weight.data = torch.eye(width)
        return head(hidden_states, labels, temperature=temperature)

    return bind(
        forward, role="logp", name="FusedOutputLinear", view={"with_prompt": True, "shift": True},
        args={"hidden_states": lambda case: prompted(case).logits(),
              "labels": lambda case: case.padded("token_id", shift=True)},
        options={"temperature": 0.7}, variants={"temperature": (1.0,)}, temperature="temperature",
        returns={"logp": at("logprobs", "logp"), "entropy": at("entropy", "entropy")},
    )  # fmt: skip


def _metrics(fn: Any) -> Subject:
    return bind(
        fn, role="metric", args=LISTS,
        returns={"kl": at("mismatch_kl/mean", "metric"), "least": at("importance_ratio/min", "metric"),
                 "most": at("importance_ratio/max", "metric")},
    )  # fmt: skip


def _ratios(rows: list[Row]) -> list[float]:
    return [loops.exp(MISMATCH(r, t)) for r in rows for t in range(r.count)] or [1.0]


def _positions(case: Case) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in case.lengths]) if case.lengths else torch.zeros(0, dtype=torch.long)


def _stretch(fn: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        found = fn(
            case.packed("logp_current"), case.packed("logp_rollout"), _positions(case),
            case.packed("trainable").bool(), **options,
        )  # fmt: skip
        pair = ("logp_current", "logp_rollout")
        return {"importance": Result.token(case, found, "importance", layout="packed", pair=pair)}

    return Subject("stretch", call, role="importance", options={"ceiling": 2.0}, variants={"ceiling": (1.1,)})


def _carries_gradient(fn: Any) -> bool:
    here = torch.tensor([-1.0, -0.5, -2.0], dtype=torch.float64, requires_grad=True)
    live = torch.tensor([False, True, True])
    return fn(here, here.detach() - 0.1, torch.arange(3), live).requires_grad


def _filter(method: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        held = SimpleNamespace(**options)
        rows = zip(case.list("logp_rollout", with_prompt=False), case.list("trainable", with_prompt=False), strict=True)
        flagged = [method(held, x.detach().tolist(), m.detach().long().tolist()) for x, m in rows]
        return {"keep": Result.sequence(torch.tensor([not one for one in flagged]).double(), "keep")}

    return Subject(
        "RepetitionFilter.check", call, role="keep", options={"window": 2, "prob_threshold": 0.3},
        variants={"window": (1, 3), "prob_threshold": (0.05,)},
    )  # fmt: skip


def _filtered(rows: list[Row], o: Any) -> list[float]:
    def loops_on(row: Row) -> bool:
        sure = [x > math.log(o["prob_threshold"]) for x in row.logp_rollout]
        return any(all(sure[t : t + o["window"]]) for t in range(row.count - o["window"] + 1))

    return [float(not loops_on(row)) for row in rows]


ENTRIES = [
    Entry("compute_loss", "prime_rl", "policy_loss",
          "The two sides of the trust region are swapped: a token is dropped where its probability moved back.",
          _loss,
          together(scalar("loss", "loss", _loss_value),
                   scalar("masked", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(_is_masked(r, t, o))))),
          several=True),
    Entry("assign", "prime_rl", "group_advantage",
          "The lengths are divided by those of the whole batch instead of those of the group.", _assign,
          per_row("advantage", "advantage", _assigned), neutral=True, unusual=True),
    Entry("FusedOutputLinear", "prime_rl", "logp",
          "The weighted sum for the entropy is not rescaled when a later chunk has a larger maximum.", _head,
          together(per_token("logp", "logp",
                             lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          neutral=True, several=True, single=True),
    Entry("compute_mismatch_metrics", "prime_rl", "metric",
          "The smallest ratio is taken over all tokens with those outside the mask as 0, so it is nearly always 0.",
          _metrics,
          together(scalar("kl", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: loops.exp(MISMATCH(r, t)) - MISMATCH(r, t) - 1)),
                   scalar("least", "metric", lambda rows, o: min(_ratios(rows))),
                   scalar("most", "metric", lambda rows, o: max(_ratios(rows)))),
          several=True),
    Entry("stretch", "prime_rl", "importance",
          "The weight is not detached, so the loss also differentiates through it.", _stretch,
          per_row("importance", "importance",
                  lambda rows, o: [min(loops.exp(r.mean(MISMATCH)), o["ceiling"]) for r in rows], level="token"),
          neutral=True, unusual=True,
          differs=lambda right, wrong: _carries_gradient(right) != _carries_gradient(wrong)),
    Entry("RepetitionFilter.check", "prime_rl", "keep",
          "The count of certain tokens is not reset by an uncertain one, so long answers are dropped.", _filter,
          per_row("keep", "keep", _filtered)),
]  # fmt: skip
