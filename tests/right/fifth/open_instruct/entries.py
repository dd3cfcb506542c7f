"""Entries in the dialect of open-instruct."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Subject, at, bind

MISMATCH = gap("logp_old", "logp_rollout")
BEST = 10.0


def _labels(case: Case) -> torch.Tensor:
    return torch.where(case.padded("trainable") > 0, case.padded("token_id"), -100)


def _logps(rows: list[Row], o: Any) -> list[float]:
    def one(r: Row, t: int) -> float:
        return loops.log_softmax(r.logits[t])[r.token_id[t]]

    return [row.mean(one) if o["average_log_prob"] else row.total(one) for row in rows]


def _reweighed(fn: Any) -> Subject:
    def reweigh(old_logprobs, vllm_logprobs, response_mask, cap, level):
        args = SimpleNamespace(truncated_importance_sampling_ratio_cap=cap, importance_level=level)
        return fn(old_logprobs, vllm_logprobs, response_mask, args)

    return bind(
        reweigh, role="importance", name="reweigh",
        args={"old_logprobs": "logp_old", "vllm_logprobs": "logp_rollout", "response_mask": "trainable"},
        options={"cap": 2.0, "level": "token"}, variants={"cap": (1.05,), "level": ("sequence",)},
        returns={"importance": at("weights", "importance", pair=("logp_old", "logp_rollout")),
                 "mean": at(("metrics", "val/tis_ratio"), "metric"),
                 "capped": at(("metrics", "val/tis_capfrac"), "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _ratio(row: Row, t: int, o: Any) -> float:
    x = row.total(MISMATCH) if o["level"] == "sequence" else MISMATCH(row, t)
    return loops.exp(loops.clamp(x, -10.0, 10.0))


def _summarized(fn: Any) -> Subject:
    logged = {"scores": "scores", "solve_rate": "val/solve_rate", "lengths": "val/sequence_lengths",
              "solved": "val/sequence_lengths_solved", "unsolved": "val/sequence_lengths_unsolved",
              "stop_rate": "val/stop_rate"}  # fmt: skip
    return bind(
        fn, role="metric",
        args={"scores": lambda case: np.where(case.sequence("reward").detach().numpy() > 0, BEST, 0.0),
              "sequence_lengths": lambda case: np.array(case.response_lengths, dtype=np.float64),
              "finish_reasons": lambda case: ["stop" if e else "length" for e in case.sequence("ended").tolist()]},
        options={"max_possible_score": BEST},
        returns={name: at(key, "metric") for name, key in logged.items()},
    )  # fmt: skip


def _length(row: Row) -> float:
    return float(row.case.response_lengths[row.index])


ENTRIES = [
    Entry("get_batch_logps", "open_instruct", "logp",
          "The mask is taken before the labels are shifted, so it is late by one and leaves out the first label.",
          lambda fn: bind(
              fn, role="logp", couples="sequence",
              args={"logits": lambda case: prompted(case).logits(), "labels": _labels},
              options={"average_log_prob": False}, variants={"average_log_prob": (True,)},
              returns={"logp": at((), "logp", level="sequence")}),
          per_row("logp", "logp", _logps), single=True, pads_finite=True),
    Entry("reweigh", "open_instruct", "importance",
          "The share of capped tokens is counted after the cap, so it is always 0.",
          _reweighed,
          together(
              per_token("importance", "importance", lambda r, t, o: min(_ratio(r, t, o), o["cap"])),
              scalar("mean", "metric",
                     lambda rows, o: loops.token_mean(rows, lambda r, t: min(_ratio(r, t, o), o["cap"]))),
              scalar("capped", "metric",
                     lambda rows, o: loops.token_mean(rows, lambda r, t: float(_ratio(r, t, o) > o["cap"])))),
          neutral=True, several=True, single=True),
    Entry("summarize", "open_instruct", "metric",
          "The length of solved answers is summed over these and divided by the number of all answers.",
          _summarized,
          together(
              scalar("scores", "metric", lambda rows, o: loops.mean([BEST * (r.reward > 0) for r in rows])),
              scalar("solve_rate", "metric", lambda rows, o: loops.mean([float(r.reward > 0) for r in rows])),
              scalar("lengths", "metric", lambda rows, o: loops.mean([_length(r) for r in rows])),
              scalar("solved", "metric", lambda rows, o: loops.mean([_length(r) for r in rows if r.reward > 0])),
              scalar("unsolved", "metric", lambda rows, o: loops.mean([_length(r) for r in rows if r.reward <= 0])),
              scalar("stop_rate", "metric", lambda rows, o: loops.mean([float(r.ended) for r in rows]))),
          neutral=True, several=True),
]  # fmt: skip
