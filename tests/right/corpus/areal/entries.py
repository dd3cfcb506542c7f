"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, peers, per_row, per_token, ppo, scalar, together, walked
from tests.right.shapes import whole_tokens

from trimtab.sentinel import Case, Result, Subject, at, bind
from trimtab.sentinel.batch.directed import directed

BEHAVIOUR = gap("logp_old", "logp_rollout")
SEQLENS = {"cu_seqlens": lambda c: c.cu_seqlens}


def _actor(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss", layout="packed", args={"old_logprobs": "logp_rollout"}, stops_gradient=False,
        options={"eps_clip": 0.2, "behav_imp_weight_cap": 5.0},
        variants={"eps_clip": (0.5,), "behav_imp_weight_cap": (1.1,)},
        returns={"loss": at(0, "loss"), "clipped": at((1, "clip_mask"), "observation"),
                 "keep": at((1, "behave_mask"), "keep")},
    )  # fmt: skip


def _actor_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        weight = loops.exp(BEHAVIOUR(r, t))
        loss = ppo(r.logp_current[t] - r.logp_old[t], r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip"])
        return weight * loss if weight <= o["behav_imp_weight_cap"] else 0.0

    return loops.token_mean(rows, one)


def _is_clipped(r: Row, t: int, o: Any) -> float:
    ratio, credit = loops.exp(r.logp_current[t] - r.logp_old[t]), r.advantage[t]
    return float((credit > 0 and ratio > 1 + o["eps_clip"]) or (credit < 0 and ratio < 1 - o["eps_clip"]))


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _normed(rows: list[Row], o: Any) -> list[float]:
    own = [[other.reward for other in peers(rows, row)] for row in rows]
    return [(row.reward - loops.mean(g)) / (loops.spread(g, 0) + o["eps"]) for row, g in zip(rows, own, strict=True)]


def _group_norm(fn: Any) -> Subject:
    def normed(data, eps):
        return fn(SimpleNamespace(config=SimpleNamespace(eps=eps)), data)

    def data(case: Case) -> dict[str, torch.Tensor]:
        return {"rewards": case.sequence("reward"), "group_ids": case.sequence("group")}

    return bind(normed, role="reward_normalisation", name="compute", options={"eps": 1e-5}, args={"data": data})


def _batch_norm(fn: Any) -> Subject:
    def normed(x, loss_mask, eps):
        return fn(SimpleNamespace(config=SimpleNamespace(eps=eps)), x, loss_mask)

    return bind(normed, role="whitening", name="__call__", layout="packed", args={"x": "advantage"},
                options={"eps": 1e-5})  # fmt: skip


def _whitened(case: Case, o: Any) -> Any:
    values = [v for row in loops.rows(case) for v in row.advantage]
    wide = loops.spread(values, 0) + o["eps"]
    return {"advantage": Result(loops.numbers([(v - loops.mean(values)) / wide for v in values]), "token", "advantage")}


def _share(fn: Any) -> Subject:
    return bind(fn, role="aggregation", layout="packed", combine="sum",
                args={"per_tok": "token_loss", "on": "trainable", "step_total": whole_tokens})  # fmt: skip


def _share_of(case: Case, o: Any) -> Any:
    total = sum(row.total(lambda r, t: r.token_loss[t]) for row in loops.rows(case))
    return {"loss": Result(loops.numbers([total / max(whole_tokens(case), 1)])[0], "scalar", "loss")}


def _split(right: Any, wrong: Any) -> bool:
    """Whether the losses of two micro-batches no longer add up to that of the whole."""
    whole = next(directed())
    parts = [whole.taken(rows, as_part=True) for rows in ([0], [1, 2, 3])]
    subject = _share(wrong)
    found = sum(float(subject.call(part, {})["loss"].value) for part in parts)
    return not torch.isclose(torch.tensor(found).double(), _share_of(whole, {})["loss"].value)


def _geometric(row: Row, o: Any) -> list[float]:
    weight = loops.exp(row.mean(gap("logp_current", "logp_rollout")))
    return [min(weight, o["cap"])] * row.count


ENTRIES = [
    Entry("ppo_actor_loss_fn", "areal", "policy_loss",
          "The behaviour weight is built from the current policy instead of the proximal one (miles 7a6cf48e6).",
          _actor,
          together(scalar("loss", "loss", _actor_loss), per_token("clipped", "observation", _is_clipped),
                   per_token("keep", "keep",
                             lambda r, t, o: float(loops.exp(BEHAVIOUR(r, t)) <= o["behav_imp_weight_cap"]))),
          several=True),
    Entry("process", "areal", "returns", "The recursion runs on over the border between packed sequences.",
          lambda fn: bind(fn, role="returns", layout="packed", options={"gamma": 0.95, "lam": 0.9},
                          variants={"gamma": (1.0,), "lam": (0.5,)}, args={**SEQLENS, "values": "value_old"}),
          walked("return", "return", _gae),
          neutral=True),
    Entry("PPOActor.compute", "areal", "reward_normalisation",
          "Groups are slices of one size, so unequal groups are mixed (AReaL a315ea97d).", _group_norm,
          per_row("advantage", "advantage", _normed), neutral=True),
    Entry("Normalization.__call__", "areal", "whitening", "The mean counts tokens that do not train.", _batch_norm,
          _whitened, neutral=True, single=True, unusual=True),
    Entry("f", "areal", "logp", "The temperature is ignored (AReaL d78f6282a).",
          lambda fn: bind(fn, role="logp", layout="packed", args={"logits": "logits", "labels": "token_id"},
                          options={"temperature": 0.7}, variants={"temperature": (1.0,)}, temperature="temperature",
                          returns={"logp": at(0, "logp"), "entropy": at(1, "entropy")}),
          together(per_token("logp", "logp",
                             lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          neutral=True, several=True),
    Entry("reduce_it", "areal", "aggregation",
          "Each micro-batch is divided by its own count of tokens (prime-rl b5aa34498).", _share, _share_of,
          neutral=True, unusual=True, differs=_split),
    Entry("sequence_importance", "areal", "importance",
          "The mean log-ratio is taken over the whole length, prompt and tool output included.",
          lambda fn: bind(fn, role="importance", layout="packed", args={**SEQLENS, "old_logprobs": "logp_rollout"},
                          options={"cap": 2.0}, variants={"cap": (1.1,)}),
          walked("importance", "importance", _geometric)),
]  # fmt: skip
