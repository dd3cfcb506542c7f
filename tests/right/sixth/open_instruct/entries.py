"""Entries in the dialect of open-instruct."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, numbers, per_row, per_token, together, walked
from tests.right.shapes import as_array

from trimtab.sentinel import Case, Out, Result, Subject, at, bind


def _owner(case: Case) -> torch.Tensor:
    """[1, tokens]: the number of the answer, from 1, at its trained tokens."""
    numbers = torch.repeat_interleave(torch.arange(1, len(case.lengths) + 1), torch.tensor(case.lengths))
    return torch.where(case.packed("trainable") > 0, numbers, 0)[None]


def _applied(method: Any) -> Subject:
    def apply(scores, format_scores, finish_reasons, with_format, format_reward, with_penalty, penalty_value):
        args = SimpleNamespace(
            apply_r1_style_format_reward=with_format,
            r1_style_format_reward=format_reward,
            non_stop_penalty=with_penalty,
            non_stop_penalty_value=penalty_value,
        )
        return torch.tensor(
            method(SimpleNamespace(args=args), scores, format_scores, finish_reasons), dtype=torch.float64
        )

    return bind(
        apply, name="RewardPipeline.apply",
        args={"scores": lambda case: case.sequence("reward").tolist(),
              "format_scores": lambda case: (case.sequence("outcome") > 0).double().tolist(),
              "finish_reasons": lambda case: ["stop" if e else "length" for e in case.sequence("ended").tolist()]},
        options={"with_format": True, "format_reward": 1.0, "with_penalty": True, "penalty_value": -10.0},
        variants={"with_format": (False,), "format_reward": (0.5,), "with_penalty": (False,),
                  "penalty_value": (0.0,)},
        returns={"reward": at((), "reward", level="sequence")},
    )  # fmt: skip


def _applied_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        bonus = o["format_reward"] if o["with_format"] and row.outcome > 0 else 0.0
        found.append(o["penalty_value"] if o["with_penalty"] and not row.ended else row.reward + bonus)
    return found


def _row(name: str) -> Callable[[Case], Any]:
    return lambda case: as_array(case.packed(name))[None]


def _dones(case: Case) -> Any:
    marks = torch.zeros(sum(case.lengths), dtype=torch.float64)
    marks[case.cu_seqlens[1:] - 1] = 1
    return marks.numpy()[None]


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lam"])


def _means(which: int) -> Callable[[Case], torch.Tensor]:
    """The mean log-prob of the chosen (0) or the rejected (1) answer of each pair."""

    def means(case: Case) -> torch.Tensor:
        if not case.pairs:
            raise case.cannot("no group has two different rewards")
        rows = [row[mask.bool()] for row, mask in zip(case.list("logp_current"), case.list("trainable"), strict=True)]
        return torch.stack([rows[pair[which]].sum() / max(len(rows[pair[which]]), 1) for pair in case.pairs])

    return means


def _simpo(fn: Any) -> Subject:
    def loss(policy_chosen_logps, policy_rejected_logps, beta, gamma_beta_ratio, label_smoothing):
        losses, chosen, rejected = fn(
            policy_chosen_logps, policy_rejected_logps, beta, gamma_beta_ratio, label_smoothing
        )  # fmt: skip
        return losses.mean(), (chosen > rejected).double().mean()

    return bind(
        loss, role="preference", name="simpo_loss",
        args={"policy_chosen_logps": _means(0), "policy_rejected_logps": _means(1)},
        options={"beta": 2.0, "gamma_beta_ratio": 0.5, "label_smoothing": 0.0},
        variants={"beta": (1.0,), "gamma_beta_ratio": (0.0, 1.0), "label_smoothing": (0.1,)},
        returns={"loss": at(0, "loss"), "accuracy": at(1, "metric", range=(0, 1))},
    )  # fmt: skip


def _simpo_value(case: Case, o: Any) -> Out:
    rows = loops.rows(case)
    losses, right = [], []
    for pair in case.pairs:
        chosen, rejected = (rows[i].mean(lambda r, t: r.logp_current[t]) for i in pair)
        x = o["beta"] * (chosen - rejected - o["gamma_beta_ratio"])
        smooth = o["label_smoothing"]
        losses.append((1 - smooth) * math.log1p(math.exp(-x)) + smooth * math.log1p(math.exp(x)))
        right.append(float(chosen > rejected))
    return {
        "loss": Result(numbers([loops.mean(losses)])[0], "scalar", "loss"),
        "accuracy": Result(numbers([loops.mean(right)])[0], "scalar", "metric"),
    }


ENTRIES = [
    Entry("spread", "open_instruct", None,
          "The zero for positions without an answer is put at the end, so each answer gets the next one's number.",
          lambda fn: bind(
              fn, layout="packed", args={"per_answer": "outcome", "owner": _owner},
              returns={"advantage": at((), "advantage", level="token")}),
          per_token("advantage", "advantage", lambda r, t, o: r.outcome), neutral=True, unusual=True),
    Entry("RewardPipeline.apply", "open_instruct", None,
          "The penalty starts again from the bare scores, so the format reward is lost wherever it is on.",
          _applied, per_row("reward", "reward", _applied_value), neutral=True),
    Entry("calculate_advantages_packed", "open_instruct", "returns",
          "At the end of a sequence only the next value is reset, so advantages run on into the one before it.",
          lambda fn: bind(
              fn, role="returns", layout="packed",
              args={"values": _row("value"), "rewards": _row("token_reward"), "dones": _dones,
                    "response_masks": _row("trainable")},
              options={"gamma": 0.9, "lam": 0.8}, variants={"gamma": (1.0,), "lam": (1.0, 0.5)},
              returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          together(walked("advantage", "advantage", _advantages),
                   walked("returns", "return", lambda row, o: [
                       a + v for a, v in zip(_advantages(row, o), row.value, strict=True)])),
          several=True),
    Entry("simpo_loss", "open_instruct", "preference",
          "The target margin is not multiplied by beta, although it is given as a multiple of it.",
          _simpo, _simpo_value, several=True),
]  # fmt: skip
