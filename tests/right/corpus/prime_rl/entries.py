"""Entries in the dialect of prime-rl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.corpus.prime_rl.right import LossInputs
from tests.right.entry import Entry
from tests.right.loops import Row, gap, peers, per_row, per_token, ppo, scalar, walked
from tests.right.shapes import in_pairs, whole_tokens

from trimtab.sentinel import Case, Result, Subject, at, bind

TOTAL = gap("logp_current", "logp_rollout")


def _masked(fn: Any) -> Subject:
    def loss(trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale, **settings):
        return fn(trainer_logprobs, inference_logprobs, advantages, loss_mask, SimpleNamespace(**settings), loss_scale)

    return bind(
        loss, role="policy_loss", name="compute_loss", layout="list", combine="sum", args={"loss_scale": whole_tokens},
        options={"token_mask_low": 0.5, "token_mask_high": 2.0},
        variants={"token_mask_low": (0.9,), "token_mask_high": (1.1,)},
        returns={"loss": at(0, "loss"), "is_masked": at((1, "is_masked"), "observation")},
    )  # fmt: skip


def _is_masked(r: Row, t: int, o: Any) -> float:
    return float(not o["token_mask_low"] <= loops.exp(TOTAL(r, t)) <= o["token_mask_high"])


def _masked_results(case: Case, o: Any) -> Any:
    def one(r: Row, t: int) -> float:
        return 0.0 if _is_masked(r, t, o) else -loops.exp(TOTAL(r, t)) * r.advantage[t]

    total = sum(row.total(one) for row in loops.rows(case)) / max(whole_tokens(case), 1)
    flags = per_token("is_masked", "observation", _is_masked)(case, o)
    return {"loss": Result(loops.numbers([total])[0], "scalar", "loss"), **flags}


def _weighted(fn: Any) -> Subject:
    names = {"trainer_logprobs": "logp_current", "inference_logprobs": "logp_rollout", "advantages": "advantage",
             "loss_mask": "trainable"}  # fmt: skip

    def loss(case, **settings):
        columns = {name: case.list(field, with_prompt=False) for name, field in names.items()}
        rows = [LossInputs(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        return sum(fn(row, SimpleNamespace(**settings)).loss for row in rows)

    return bind(loss, role="policy_loss", name="f", args={"case": lambda c: c}, options={"ratio_cap": 2.0},
                variants={"ratio_cap": (1.1,)}, combine="sum", stops_gradient=True)  # fmt: skip


def _weighted_loss(rows: list[Row], o: Any) -> float:
    total = 0.0
    for row in rows:
        weight = min(loops.exp(row.mean(TOTAL)), o["ratio_cap"])
        total -= weight * row.total(lambda r, t: r.advantage[t] * r.logp_current[t])
    return total


def _advantages(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        own = [other.reward for other in peers(rows, row)]
        found.append((row.reward - loops.mean(own)) / (loops.spread(own, 0) + 1e-8 if o["std_norm"] else 1.0))
    return found


def _gspo(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss", layout="list", options={"lo": 0.8, "hi": 1.2}, variants={"lo": (0.5,), "hi": (1.9,)},
        args={"new": "logp_current", "behind": "logp_old", "credit": lambda c: list(c.sequence("outcome")),
              "on": "trainable"},
    )  # fmt: skip


def _gspo_loss(rows: list[Row], o: Any) -> float:
    terms = [
        ppo(r.mean(gap("logp_current", "logp_old")), r.outcome, o["lo"], o["hi"]) if r.count else 0.0 for r in rows
    ]
    return loops.mean(terms)


def _weights(fn: Any) -> Subject:
    return bind(fn, role="importance", layout="list", args={"t": "logp_current", "i": "logp_rollout"},
                options={"hi": 2.0}, variants={"hi": (1.1,)})  # fmt: skip


def _undetached(right: Any, wrong: Any) -> bool:
    """Whether a gradient reaches the current policy through the weight."""
    current = torch.tensor([-1.0, -0.5], dtype=torch.float64, requires_grad=True)
    return any(weight.requires_grad for weight in wrong([current], [torch.zeros(2).double()], 2.0))


ENTRIES = [
    Entry("compute_loss", "prime_rl", "policy_loss",
          "The band is tested with 'and', so no token is ever masked and the option does nothing.", _masked,
          _masked_results, several=True),
    Entry("f", "prime_rl", "policy_loss",
          "The mean log-ratio is taken over all tokens, tool output included.", _weighted,
          scalar("loss", "loss", _weighted_loss, detached=True), neutral=True),
    Entry("compute_advantages", "prime_rl", "reward_normalisation",
          "Only the mean is divided by the spread: r - mean / std (prime-rl 37341fc8f).",
          lambda fn: bind(fn, role="reward_normalisation", args={"rewards": lambda c: in_pairs("reward")(c).tolist()},
                          options={"samples_per_problem": 2, "std_norm": True}, variants={"std_norm": (False,)}),
          per_row("advantage", "advantage", _advantages)),
    Entry("compute_entropy", "prime_rl", "entropy", "Only one of the two terms is divided by the temperature.",
          lambda fn: bind(fn, role="entropy", options={"temperature": 0.7}, temperature="temperature",
                          args={"shifted_logits": lambda c: c.padded("logits", with_prompt=False)}),
          per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"])), single=True),
    Entry("step_fn", "prime_rl", "policy_loss",
          "The sequence ratio is the product over tokens, not their geometric mean.",
          _gspo, scalar("loss", "loss", _gspo_loss), neutral=True, unusual=True),
    Entry("process", "prime_rl", "importance", "The weight is not detached from the current policy.", _weights,
          walked("importance", "importance",
                 lambda row, o: [min(loops.exp(min(TOTAL(row, t), 20.0)), o["hi"]) for t in range(row.count)]),
          neutral=True, unusual=True, differs=_undetached),
]  # fmt: skip
