"""Entries in the dialect of TRL."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, numbers, per_row, ppo, scalar, together
from tests.right.shapes import in_pairs

from trimtab.sentinel import Case, Out, Result, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _totals(case: Case, name: str, average: bool) -> torch.Tensor:
    """One sum, or mean, of log-probs per sequence, over its trained tokens."""
    rows = [row[mask.bool()] for row, mask in zip(case.list(name), case.list("trainable"), strict=True)]
    return torch.stack([row.sum() / max(len(row), 1) if average else row.sum() for row in rows])


def _of_pairs(name: str, which: int, average: bool = False) -> Callable[[Case], torch.Tensor]:
    """The chosen (0) or the rejected (1) completion of each pair."""

    def taken(case: Case) -> torch.Tensor:
        if not case.pairs:
            raise case.cannot("no group has two different rewards")
        return _totals(case, name, average)[[pair[which] for pair in case.pairs]]

    return taken


def _prepared(method: Any) -> Subject:
    def prepare(rewards_per_func, scale_rewards, second_weight):
        trainer = SimpleNamespace(
            num_generations=2, scale_rewards=scale_rewards, reward_weights=torch.tensor([1.0, second_weight])
        )
        return method(trainer, rewards_per_func)

    return bind(
        prepare, role="group_advantage", name="GRPOTrainer._prepare",
        args={"rewards_per_func": lambda case: torch.stack([in_pairs("reward")(case), case.sequence("outcome")], 1)},
        options={"scale_rewards": True, "second_weight": 0.5},
        variants={"scale_rewards": (False,), "second_weight": (0.0, 2.0)},
    )  # fmt: skip


def _prepared_value(rows: list[Row], o: Any) -> list[float]:
    def score(row: Row) -> float:
        return row.reward + o["second_weight"] * row.outcome

    found: list[float] = []
    for row in rows:
        group = [score(p) for p in loops.peers(rows, row)]
        scale = loops.spread(group, 1) + 1e-4 if o["scale_rewards"] else 1.0
        found.append((score(row) - loops.mean(group)) / scale)
    return found


def _likely(which: int) -> Callable[[Case], torch.Tensor]:
    """The mean log-prob of one completion of each pair; a completion that is certain has no odds."""

    def taken(case: Case) -> torch.Tensor:
        found = _of_pairs("logp_current", which, average=True)(case)
        if bool((found >= 0).any()):
            raise case.cannot("a completion with a mean log-prob of zero or more has no odds")
        return found

    return taken


def _orpo(method: Any) -> Subject:
    def loss(policy_chosen_logps, policy_rejected_logps, beta):
        losses, chosen, rejected = method(SimpleNamespace(beta=beta), policy_chosen_logps, policy_rejected_logps)
        return -losses.mean(), (chosen - rejected).mean()

    return bind(
        loss, role="preference", name="ORPOTrainer.odds_ratio_loss",
        args={"policy_chosen_logps": _likely(0), "policy_rejected_logps": _likely(1)},
        options={"beta": 0.1}, variants={"beta": (0.5,)},
        returns={"loss": at(0, "loss"), "margin": at(1, "metric")},
    )  # fmt: skip


def _orpo_value(case: Case, o: Any) -> Out:
    rows = loops.rows(case)
    losses, margins = [], []
    for pair in case.pairs:
        chosen, rejected = (rows[i].mean(lambda r, t: r.logp_current[t]) for i in pair)
        odds = [x - math.log(1 - math.exp(x)) for x in (chosen, rejected)]
        losses.append(o["beta"] * math.log1p(math.exp(odds[1] - odds[0])))
        margins.append(o["beta"] * (chosen - rejected))
    return {
        "loss": Result(numbers([loops.mean(losses)])[0], "scalar", "loss"),
        "margin": Result(numbers([loops.mean(margins)])[0], "scalar", "metric"),
    }


def _kto(method: Any) -> Subject:
    def loss(
        policy_chosen_logps, policy_rejected_logps, policy_KL_logps, reference_chosen_logps,
        reference_rejected_logps, reference_KL_logps, beta, desirable_weight, undesirable_weight,
    ):  # fmt: skip
        trainer = SimpleNamespace(
            beta=beta, desirable_weight=desirable_weight, undesirable_weight=undesirable_weight
        )  # fmt: skip
        losses, _, _, kl = method(
            trainer, policy_chosen_logps, policy_rejected_logps, policy_KL_logps, reference_chosen_logps,
            reference_rejected_logps, reference_KL_logps,
        )  # fmt: skip
        return losses.mean(), kl

    return bind(
        loss, role="preference", name="KTOTrainer.kto_loss", couples="batch",
        args={"policy_chosen_logps": _of_pairs("logp_current", 0), "reference_chosen_logps": _of_pairs("logp_ref", 0),
              "policy_rejected_logps": _of_pairs("logp_current", 1),
              "reference_rejected_logps": _of_pairs("logp_ref", 1),
              "policy_KL_logps": lambda case: _totals(case, "logp_current", average=False),
              "reference_KL_logps": lambda case: _totals(case, "logp_ref", average=False)},
        options={"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0},
        variants={"beta": (0.5,), "desirable_weight": (1.5,), "undesirable_weight": (0.5,)},
        returns={"loss": at(0, "loss"), "kl": at(1, "metric")},
    )  # fmt: skip


def _kto_value(case: Case, o: Any) -> Out:
    rows = loops.rows(case)
    ratios = [row.total(gap("logp_current", "logp_ref")) for row in rows]
    kl = max(loops.mean(ratios), 0.0)
    losses: list[float] = []
    for chosen, rejected in case.pairs:
        losses.append(o["desirable_weight"] / (1 + math.exp(o["beta"] * (ratios[chosen] - kl))))
        losses.append(o["undesirable_weight"] / (1 + math.exp(o["beta"] * (kl - ratios[rejected]))))
    return {
        "loss": Result(numbers([loops.mean(losses)])[0], "scalar", "loss"),
        "kl": Result(numbers([kl])[0], "scalar", "metric"),
    }


_kto_value.stops_gradient = True


def _fused(cls: Any) -> Subject:
    return bind(
        cls, role="policy_loss",
        args={"per_token_logps": "logp_current", "attention_mask": "trainable", "advantages": "outcome",
              "ref_per_token_logps": "logp_ref", "old_per_token_logps": "logp_old"},
        options={"beta": 0.04, "epsilon_low": 0.2, "epsilon_high": 0.28, "loss_type": "dr_grpo",
                 "max_completion_length": 8},
        variants={"beta": (0.0, 0.5), "epsilon_low": (0.05,), "epsilon_high": (0.05,), "loss_type": ("grpo", "bnpo"),
                  "max_completion_length": (16,)},
        returns={"loss": at(0, "loss"), "kl": at((1, 0), "metric", agreed=0.0),
                 "clip_ratio": at((1, 1), "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _kl(r: Row, t: int) -> float:
    return loops.k3(r.logp_current[t] - r.logp_ref[t])


def _fused_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.outcome, 1 - o["epsilon_low"], 1 + o["epsilon_high"]) + o["beta"] * _kl(r, t)

    if o["loss_type"] == "bnpo":
        return loops.token_mean(rows, one)
    if o["loss_type"] == "grpo":
        return loops.row_mean(rows, one, empty=True)
    return loops.row_sum_mean(rows, one, empty=True) / o["max_completion_length"]


def _fused_clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        x = loops.exp(UPDATE(r, t))
        return float((x > 1 + o["epsilon_high"] and r.outcome > 0) or (x < 1 - o["epsilon_low"] and r.outcome < 0))

    return loops.token_mean(rows, one)


ENTRIES = [
    Entry("GRPOTrainer._prepare", "trl", "group_advantage",
          "The spreads of the groups are tiled instead of interleaved, so a completion is divided by another group's.",
          _prepared, per_row("advantage", "advantage", _prepared_value), neutral=True),
    Entry("ORPOTrainer.odds_ratio_loss", "trl", "preference",
          "The terms of log(1 - p) are added instead of taken off, which is not the logarithm of odds.",
          _orpo, _orpo_value, several=True),
    Entry("KTOTrainer.kto_loss", "trl", "preference",
          "The estimate of the distance to the reference model is not held at zero and becomes negative.",
          _kto, _kto_value, several=True),
    Entry("FusedLoss", "trl", "policy_loss",
          "Dr. GRPO divides by the cells of this batch instead of a constant length, so long answers train less.",
          _fused,
          together(scalar("loss", "loss", _fused_loss),
                   scalar("kl", "metric", lambda rows, o: loops.token_mean(rows, _kl)),
                   scalar("clip_ratio", "metric", _fused_clipped)),
          neutral=True, several=True, pads_finite=True),
]  # fmt: skip
