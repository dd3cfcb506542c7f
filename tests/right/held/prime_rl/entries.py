"""Entries in the dialect of prime-rl."""

from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.prime_rl.right import LossConfig, LossInputs
from tests.right.held.telling import slopes_differ
from tests.right.loops import Row, exp, gap, per_token, scalar, together
from tests.right.shapes import in_pairs, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind

DRIFT = gap("logp_current", "logp_rollout")
LISTS = {"trainer_logprobs": "logp_current", "inference_logprobs": "logp_rollout", "advantages": "advantage",
         "loss_mask": "trainable"}  # fmt: skip


def _default(fn: Any) -> Subject:
    def loss(trainer_logprobs, inference_logprobs, advantages, loss_mask, **settings):
        every = zip(trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True)
        return torch.stack([fn(LossInputs(*one), LossConfig(**settings)).loss for one in every]).sum()

    return bind(
        loss, role="policy_loss", name="default_loss_fn", layout="list", args=LISTS,
        options={"token_mask_low": 0.8, "token_mask_high": 1.25},
        variants={"token_mask_low": (0.95,), "token_mask_high": (1.05,)},
        returns={"loss": at((), "loss")},
    )  # fmt: skip


def _band(r: Row, t: int, o: Any) -> float:
    ratio = exp(DRIFT(r, t))
    return -ratio * r.advantage[t] if o["token_mask_low"] <= ratio <= o["token_mask_high"] else 0.0


def _capped(fn: Any) -> Subject:
    def loss(trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale, ratio_cap):
        config = LossConfig(ratio_cap=ratio_cap)
        return fn(trainer_logprobs, inference_logprobs, advantages, loss_mask, config, loss_scale)

    return bind(
        loss, role="policy_loss", name="compute_loss", layout="list", args={**LISTS, "loss_scale": whole_tokens},
        options={"ratio_cap": 1.3}, variants={"ratio_cap": (1.05,)}, returns={"loss": at(0, "loss")},
    )  # fmt: skip


def _cispo(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return -min(exp(DRIFT(r, t)), o["ratio_cap"]) * r.advantage[t] * r.logp_current[t]

    return sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1) if rows else 0.0


def _lengths(case: Case) -> list[int]:
    case.sequence("length")
    if any(n < 1 for n in case.response_lengths):
        raise case.cannot("an answer without tokens has no weight")
    return case.response_lengths


def _advantages(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        sizes = [float(row.case.response_lengths[p.index]) if o["length_weighted_mean"] else 1.0 for p in group]
        found.append(row.reward - sum(p.reward * n for p, n in zip(group, sizes, strict=True)) / sum(sizes))
    return found


def _ratios(rows: list[Row]) -> list[float]:
    return [exp(DRIFT(r, t)) for r in rows for t in range(r.count)]


def _ess(rows: list[Row], o: Any) -> float:
    w = _ratios(rows)
    return sum(w) ** 2 / sum(x * x for x in w) / len(w) if w else 0.0


ENTRIES = [
    Entry("default_loss_fn", "prime_rl", "policy_loss",
          "A token is left out only if its ratio is below and above the band, so none ever is.", _default,
          scalar("loss", "loss", lambda rows, o: sum(r.total(lambda r, t: _band(r, t, o)) for r in rows))),
    Entry("compute_loss", "prime_rl", "policy_loss", "The capped weight is not detached and takes a gradient.",
          _capped, scalar("loss", "loss", _cispo, detached=True), differs=slopes_differ(_capped)),
    Entry("shape", "prime_rl", "group_advantage",
          "The weighted mean divides by the number of samples times the longest.",
          lambda fn: bind(
              fn, role="group_advantage",
              args={"rewards": lambda case: in_pairs("reward")(case).tolist(), "completion_lengths": _lengths},
              options={"samples_per_problem": 2, "length_weighted_mean": True},
              variants={"length_weighted_mean": (False,)}),
          loops.per_row("advantage", "advantage", _advantages), neutral=True),
    Entry("compute", "prime_rl", "entropy", "The expected logit is a mean over the vocabulary, not a sum.",
          lambda fn: bind(fn, role="entropy", args={"shifted_logits": "logits"}),
          per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t])), neutral=True, single=True),
    Entry("collect", "prime_rl", "metric", "The share of effective samples is taken of all tokens, also masked ones.",
          lambda fn: bind(
              fn, role="metric", layout="list", args={n: LISTS[n] for n in
                                                      ("trainer_logprobs", "inference_logprobs", "loss_mask")},
              returns={"kl": at("kl", "metric", agreed=0.0, reduction="mean"),
                       "ess": at("ess", "metric", range=(0, 1), agreed=1.0),
                       "largest": at("ratio_max", "metric", agreed=1.0, reduction="max")}),
          together(scalar("kl", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: exp(DRIFT(r, t)) - 1 - DRIFT(r, t))),
                   scalar("ess", "metric", _ess),
                   scalar("largest", "metric", lambda rows, o: max(_ratios(rows), default=0.0))),
          neutral=True, several=True),
    Entry("step_fn", "prime_rl", "kl_in_loss", "The summed log-ratio is squared, instead of each token's.",
          lambda fn: bind(fn, role="kl_in_loss", layout="packed",
                          args={"trainer_logprobs": "logp_current", "ref_logprobs": "logp_ref",
                                "loss_mask": "trainable"},
                          options={"kl_tau": 0.1}, variants={"kl_tau": (0.4,)}, penalties={"kl_tau": "logp_ref"}),
          scalar("loss", "loss", lambda rows, o: o["kl_tau"] * loops.token_mean(
              rows, lambda r, t: (r.logp_current[t] - r.logp_ref[t]) ** 2 / 2)), neutral=True),
]  # fmt: skip
