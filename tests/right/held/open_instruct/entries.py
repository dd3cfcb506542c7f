"""Entries in the dialect of open-instruct."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together, walked
from tests.right.shapes import as_array, in_pairs

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE = gap("logp_current", "logp_old")


def _grpo(fn: Any) -> Subject:
    def loss(new_logprobs, old_logprobs, advantages, clip_lower, clip_higher):
        args = SimpleNamespace(clip_lower=clip_lower, clip_higher=clip_higher)
        return fn(new_logprobs, old_logprobs, advantages, args)

    return bind(
        loss, role="policy_loss", name="compute_grpo_loss",
        args={"new_logprobs": "logp_current", "old_logprobs": "logp_old", "advantages": "advantage"},
        options={"clip_lower": 0.2, "clip_higher": 0.3}, variants={"clip_lower": (0.4,), "clip_higher": (0.1,)},
        returns={"term": at(0, "term")},
    )  # fmt: skip


def _row(name: str) -> Any:
    return lambda case: as_array(case.packed(name))[None]


def _dones(case: Case) -> Any:
    found = torch.zeros(1, sum(case.lengths)).double()
    for end in case.cu_seqlens.tolist()[1:]:
        found[0, end - 1] = 1.0
    return found.numpy()


def _packed(fn: Any) -> Subject:
    def computed(values, rewards, dones, response_masks, gamma, lam):
        return [torch.from_numpy(one[0]) for one in fn(values, rewards, gamma, lam, dones, response_masks)]

    return bind(
        computed, role="returns", name="calculate_advantages_packed", layout="packed",
        args={"values": _row("value_old"), "rewards": _row("token_reward"), "dones": _dones,
              "response_masks": _row("trainable")},
        options={"gamma": 0.95, "lam": 0.9}, variants={"gamma": (1.0,), "lam": (0.6,)},
        returns={"advantage": at(0, "advantage", level="token"), "returns": at(1, "return", level="token")},
    )  # fmt: skip


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _stopped(case: Case) -> torch.Tensor:
    """Ids of answers that end with id 1 or id 2, in turn; after it comes padding, or what was sampled too much."""
    if any("o" in kinds for kinds in case.kinds):
        raise case.cannot("ids alone do not separate tool output from answers")
    ids = case.padded("token_id", with_prompt=False).clone()
    for row, length in enumerate(case.response_lengths):
        if length:
            ids[row, length - 1] = 1 + row % 2
            ids[row, length:] = 4 if row % 2 else case.pad_id
    return ids


def _mask(case: Case, o: Any) -> Any:
    width = max(case.response_lengths, default=0) + case.extra_columns
    grid = [[float(t < n) for t in range(width)] for n in case.response_lengths]
    return {"mask": Result(torch.tensor(grid, dtype=torch.float64), "cell", "mask")}


def _step(cls: Any) -> Subject:
    def loss(new_logprobs, logprobs, advantage, response_mask, cliprange):
        return cls(SimpleNamespace(cliprange=cliprange))(new_logprobs, logprobs, advantage, response_mask)

    return bind(
        loss, role="policy_loss", name="Step",
        args={"new_logprobs": "logp_current", "logprobs": "logp_old", "advantage": "outcome",
              "response_mask": "trainable"},
        options={"cliprange": 0.2}, variants={"cliprange": (0.5,)},
    )  # fmt: skip


def _whole(rows: list[Row], o: Any) -> float:
    return loops.mean([ppo(r.total(UPDATE), r.outcome, 1 - o["cliprange"], 1 + o["cliprange"]) for r in rows])


def _prompts(rows: list[Row]) -> list[list[float]]:
    return [[p.reward for p in loops.peers(rows, row)] for row in rows if row is loops.peers(rows, row)[0]]


ENTRIES = [
    Entry("compute_grpo_loss", "open_instruct", "policy_loss", "The upper bound ignores its own option.", _grpo,
          per_token("term", "term", lambda r, t, o: ppo(
              UPDATE(r, t), r.advantage[t], 1 - o["clip_lower"], 1 + o["clip_higher"]))),
    Entry("calculate_advantages_packed", "open_instruct", "returns",
          "The running sum goes on into the sequence before; only the next value stops.", _packed,
          together(walked("advantage", "advantage", _advantages), walked("returns", "return", lambda row, o: [
              a + v for a, v in zip(_advantages(row, o), row.value_old, strict=True)])), several=True),
    Entry("build", "open_instruct", "response_mask", "Only the first of several stop ids counts (verl 27484a7bb).",
          lambda fn: bind(fn, role="response_mask", args={"responses": _stopped},
                          options={"stop_token_ids": [1, 2], "pad_token_id": 0}),
          _mask, neutral=True, unusual=True),
    Entry("log_entropy", "open_instruct", "metric", "The mean divides by all cells (SkyRL a0e0b333d).",
          lambda fn: bind(
              fn, role="metric", args={"logits": "logits", "response_mask": "trainable"},
              options={"temperature": 0.9}, variants={"temperature": (0.5,)},
              returns={"entropy": at("policy/entropy_avg", "metric", reduction="mean")}),
          scalar("entropy", "metric", lambda rows, o: loops.token_mean(
              rows, lambda r, t: loops.entropy(r.logits[t], o["temperature"])))),
    Entry("Step", "open_instruct", "policy_loss", "The log-ratio of an answer is a mean over its padded width.", _step,
          scalar("loss", "loss", _whole), neutral=True),
    Entry("report", "open_instruct", "metric", "The best of each prompt is taken across prompts.",
          lambda fn: bind(
              fn, role="metric", args={"scores": lambda case: as_array(in_pairs("reward")(case))},
              options={"num_samples_per_prompt": 2},
              returns={"mean": at("scores", "metric"), "best": at("best_of_n", "metric"),
                       "flat": at("solve_rate_zero_std", "metric", range=(0, 1))}),
          together(scalar("mean", "metric", lambda rows, o: loops.mean([r.reward for r in rows])),
                   scalar("best", "metric", lambda rows, o: loops.mean([max(g) for g in _prompts(rows)])),
                   scalar("flat", "metric", lambda rows, o: loops.mean(
                       [float(max(g) == min(g)) for g in _prompts(rows)]))),
          neutral=True, several=True, unusual=True),
]  # fmt: skip
