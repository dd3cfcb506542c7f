"""Entries in the dialect of TRL."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, numbers, per_row

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Out, Result


def _sums(name: str, which: int) -> Callable[[Case], torch.Tensor]:
    """One sum of log-probs per pair: of the chosen (0) or the rejected (1) completion."""

    def sums(case: Case) -> torch.Tensor:
        if not case.pairs:
            raise case.cannot("no group has two different rewards")
        rows = [row[mask.bool()].sum() for row, mask in zip(case.list(name), case.list("trainable"), strict=True)]
        return torch.stack([rows[pair[which]] for pair in case.pairs])

    return sums


def _dpo(method: Any) -> Subject:
    def loss(
        chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta, label_smoothing, loss_type,
        reference_free,
    ):  # fmt: skip
        trainer = SimpleNamespace(
            beta=beta, label_smoothing=label_smoothing, loss_type=loss_type, reference_free=reference_free
        )
        losses, chosen, rejected = method(trainer, chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps)
        return losses.mean(), (chosen - rejected).mean()

    return bind(
        loss, role="preference", name="DPOTrainer.dpo_loss",
        args={"chosen_logps": _sums("logp_current", 0), "rejected_logps": _sums("logp_current", 1),
              "ref_chosen_logps": _sums("logp_ref", 0), "ref_rejected_logps": _sums("logp_ref", 1)},
        options={"beta": 0.1, "label_smoothing": 0.1, "loss_type": "sigmoid", "reference_free": False},
        variants={"beta": (0.5,), "label_smoothing": (0.0,), "loss_type": ("hinge", "ipo"),
                  "reference_free": (True,)},
        returns={"loss": at(0, "loss"), "margin": at(1, "metric")},
    )  # fmt: skip


def _dpo_value(case: Case, o: Any) -> Out:
    rows = loops.rows(case)

    def total(name: str, row: int) -> float:
        return sum(getattr(rows[row], name), 0.0)

    losses, margins = [], []
    for chosen, rejected in case.pairs:
        update = total("logp_current", chosen) - total("logp_current", rejected)
        reference = total("logp_ref", chosen) - total("logp_ref", rejected)
        margins.append(o["beta"] * (update - reference))
        x = update if o["reference_free"] else update - reference
        if o["loss_type"] == "hinge":
            losses.append(max(0.0, 1 - o["beta"] * x))
        elif o["loss_type"] == "ipo":
            losses.append((x - 0.5 / o["beta"]) ** 2)
        else:
            right, flipped = math.log1p(math.exp(-o["beta"] * x)), math.log1p(math.exp(o["beta"] * x))
            losses.append((1 - o["label_smoothing"]) * right + o["label_smoothing"] * flipped)
    return {
        "loss": Result(numbers([loops.mean(losses)])[0], "scalar", "loss"),
        "margin": Result(numbers([loops.mean(margins)])[0], "scalar", "metric"),
    }


def _overlong(rows: list[Row], o: Any) -> list[float]:
    limit, cache = o["max_completion_len"], o["soft_punish_cache"]
    found: list[float] = []
    for row in rows:
        over = row.case.response_lengths[row.index] - (limit - cache)
        found.append(-loops.clamp(over / cache, 0.0, 1.0))
    return found


def _selected(case: Case, o: Any) -> Out:
    rows = loops.rows(case)
    ordered = sorted(x for row in rows for x in row.entropy)
    place = (1.0 - o["share"]) * (len(ordered) - 1)
    below = math.floor(place) if ordered else 0
    floor = 0.0
    if ordered:
        above = ordered[min(below + 1, len(ordered) - 1)]
        floor = ordered[below] + (place - below) * (above - ordered[below])
    kept = [float(x >= floor) for row in rows for x in row.entropy]
    return {"keep": Result(numbers(kept), "token", "keep")}


ENTRIES = [
    Entry("DPOTrainer.dpo_loss", "trl", "preference",
          "The target of IPO is beta / 2 instead of 1 / (2 beta), because the brackets are missing.",
          _dpo, _dpo_value, several=True),
    Entry("soft_overlong_punishment", "trl", None,
          "The ramp is an integer division, so every completion on it gets the full punishment.",
          lambda fn: bind(
              fn,
              args={"completion_ids": lambda case: [one.tolist() for one in case.list("token_id", with_prompt=False)]},
              options={"max_completion_len": 4, "soft_punish_cache": 3},
              variants={"max_completion_len": (6,), "soft_punish_cache": (2,)},
              returns={"reward": at((), "reward", level="sequence")}),
          per_row("reward", "reward", _overlong)),
    Entry("select_positions", "trl", "keep",
          "The quantile is taken over all cells, so padding lowers it and more positions are kept.",
          lambda fn: bind(
              fn, role="keep", couples="batch", args={"scores": "entropy", "valid": "trainable"},
              options={"share": 0.2}, variants={"share": (0.5,)},
              returns={"keep": at((), "keep", scope="batch")}),
          _selected, neutral=True, unusual=True, single=True),
]  # fmt: skip
