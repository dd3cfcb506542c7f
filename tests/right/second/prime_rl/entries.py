"""Entries in the dialect of prime-rl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together, walked
from tests.right.shapes import in_pairs, prompted, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind

APART = gap("logp_current", "logp_rollout")


def _loss(fn: Any) -> Subject:
    def loss(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale, token_mask_low, token_mask_high, kl_tau
    ):
        config = SimpleNamespace(token_mask_low=token_mask_low, token_mask_high=token_mask_high, kl_tau=kl_tau)
        return fn(trainer_logprobs, inference_logprobs, advantages, loss_mask, config, loss_scale)

    return bind(
        loss, role="policy_loss", name="compute_loss", layout="list", args={"loss_scale": whole_tokens},
        options={"token_mask_low": 0.5, "token_mask_high": 2.0, "kl_tau": 0.01},
        variants={"token_mask_low": (0.95,), "token_mask_high": (1.05,), "kl_tau": (0.2,)},
        returns={"loss": at(0, "loss"), "masked": at((1, "is_masked"), "metric", range=(0, 1), agreed=0.0),
                 "mismatch": at((1, "mismatch_kl"), "metric", agreed=0.0)},
    )  # fmt: skip


def _masked(row: Row, t: int, o: Any) -> bool:
    return not o["token_mask_low"] <= loops.exp(APART(row, t)) <= o["token_mask_high"]


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        gain = 0.0 if _masked(r, t, o) else r.advantage[t] * loops.exp(APART(r, t))
        return o["kl_tau"] * APART(r, t) ** 2 - gain

    return sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1)


def _normalised(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = loops.spread(group, 1) + 1e-4 if o["std_norm"] else 1.0
        found.append((row.reward - loops.mean(group)) / size)
    return found


def _logprobs(fn: Any) -> Subject:
    def each(logits, input_ids, temperature):
        return [fn(one, ids, temperature) for one, ids in zip(logits, input_ids, strict=True)]

    def logits(case: Case) -> Any:
        grid = prompted(case).logits(side="right")
        return [grid[i, :length] for i, length in enumerate(case.lengths)]

    return bind(
        each, role="logp", name="compute_logprobs", layout="list", view={"with_prompt": True}, args={"logits": logits},
        options={"temperature": 0.8}, variants={"temperature": (1.0,)}, temperature="temperature",
    )  # fmt: skip


def _positions(case: Case) -> Any:
    return torch.cat([torch.arange(length) for length in case.lengths])


def _adjusted(row: Row, t: int, o: Any) -> float:
    return row.advantage[t] - o["coef"] * (row.logp_old[t] - row.logp_ref[t])


def _metric(which: str, value: Any) -> Any:
    return scalar(which, "metric", lambda rows, o: value(rows))


def _prob_gap(row: Row, t: int) -> float:
    return abs(loops.exp(row.logp_current[t]) - loops.exp(row.logp_rollout[t]))


def _k3(row: Row, t: int) -> float:
    return loops.exp(APART(row, t)) - APART(row, t) - 1


ENTRIES = [
    Entry("compute_loss", "prime_rl", "policy_loss",
          "The ratio is detached, so that only the penalty trains.", _loss,
          together(scalar("loss", "loss", _loss_value),
                   scalar("masked", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: float(_masked(r, t, o)))),
                   _metric("mismatch", lambda rows: loops.token_mean(rows, _k3))), several=True),
    Entry("run", "prime_rl", "group_advantage",
          "r - mean / std instead of (r - mean) / std (prime-rl 748158fa6).",
          lambda fn: bind(
              fn, role="group_advantage", args={"rewards": in_pairs("reward")},
              options={"samples_per_problem": 2, "std_norm": True}, variants={"std_norm": (False,)}),
          per_row("advantage", "advantage", _normalised), neutral=True),
    Entry("compute_logprobs", "prime_rl", "logp",
          "Log-probs are divided by the temperature instead of logits.", _logprobs,
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]])),
    Entry("fold_back", "prime_rl", "returns",
          "Returns flow from one packed sequence into the one before.",
          lambda fn: bind(
              fn, role="returns", layout="packed", args={"position_ids": _positions}, options={"gamma": 0.9},
              variants={"gamma": (1.0,)}),
          walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"])),
          neutral=True, unusual=True),
    Entry("adjust", "prime_rl", "kl_in_reward",
          "The policy is paid for what it finds likelier than the teacher.",
          lambda fn: bind(
              fn, role="kl_in_reward", layout="packed",
              args={"sampled_logp": "logp_old", "teacher_logp": "logp_ref"},
              options={"coef": 0.5}, variants={"coef": (0.1,)}, penalties={"coef": "logp_ref"}),
          per_token("reward", "reward", _adjusted), neutral=True, unusual=True),
    Entry("mismatch_metrics", "prime_rl", "metric",
          "One mean is taken over the whole packed row, prompts included.",
          lambda fn: bind(
              fn, role="metric", layout="packed",
              returns={"kl": at("mismatch_kl/mean", "metric", agreed=0.0),
                       "max": at("mismatch_kl/max", "metric", agreed=0.0, reduction="max"),
                       "gap": at("prob_gap/mean", "metric", agreed=0.0)}),
          together(_metric("kl", lambda rows: loops.token_mean(rows, _k3)),
                   _metric("max", lambda rows: max(_k3(r, t) for r in rows for t in range(r.count))),
                   _metric("gap", lambda rows: loops.token_mean(rows, _prob_gap))), several=True, single=True),
]  # fmt: skip
