"""Entries in the dialect of OpenRLHF."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, numbers, per_row, per_token, walked
from tests.right.shapes import in_pairs, prompted, written

from trimtab.sentinel import Case, Out, Result, Subject, bind


def _pairs(case: Case) -> list[tuple[int, int]]:
    if not case.pairs:
        raise case.cannot("no group has two different rewards")
    return case.pairs


def _scores(which: int) -> Callable[[Case], torch.Tensor]:
    """The mean value of the trained tokens, as the score of the chosen (0) or the rejected (1) answer."""

    def scores(case: Case) -> torch.Tensor:
        rows = [row[mask.bool()] for row, mask in zip(case.list("value"), case.list("trainable"), strict=True)]
        return torch.stack([rows[pair[which]].sum() / max(len(rows[pair[which]]), 1) for pair in _pairs(case)])

    return scores


def _margin(case: Case) -> torch.Tensor:
    rewards = case.sequence("reward").detach()
    return torch.stack([rewards[chosen] - rewards[rejected] for chosen, rejected in _pairs(case)])


def _pairwise(case: Case, o: Any) -> Out:
    rows = loops.rows(case)
    losses: list[float] = []
    for chosen, rejected in case.pairs:
        better, worse = (rows[i].mean(lambda r, t: r.value[t]) for i in (chosen, rejected))
        margin = rows[chosen].reward - rows[rejected].reward
        losses.append(math.log1p(math.exp(-(better - worse - margin))))
    return {"loss": Result(numbers([loops.mean(losses)])[0], "scalar", "loss")}


def _accumulated(method: Any) -> Subject:
    def accumulate(rewards, action_mask, gamma):
        return method(SimpleNamespace(args=SimpleNamespace(gamma=gamma)), rewards, action_mask)

    return bind(
        accumulate, role="returns", name="ExperienceMaker.accumulate",
        args={"rewards": "token_reward", "action_mask": "trainable"},
        options={"gamma": 0.9}, variants={"gamma": (1.0, 0.5)},
    )  # fmt: skip


def _processed(fn: Any) -> Subject:
    def process(rewards, advantage_estimator):
        return fn(rewards, SimpleNamespace(n_samples_per_prompt=2, advantage_estimator=advantage_estimator))

    return bind(
        process, role="reward_normalisation", name="process", args={"rewards": in_pairs("reward")},
        options={"advantage_estimator": "group_norm"}, variants={"advantage_estimator": ("rloo", "dr_grpo")},
    )  # fmt: skip


def _processed_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        if o["advantage_estimator"] == "rloo":
            found.append(row.reward - (sum(group) - row.reward) / (len(group) - 1))
        else:
            scale = loops.spread(group, 1) + 1e-9 if o["advantage_estimator"] == "group_norm" else 1.0
            found.append((row.reward - loops.mean(group)) / scale)
    return found


def _writes(right: Any, wrong: Any) -> bool:
    """Whether one version changes the logits that it is given, and the other does not."""
    logits = torch.linspace(-1.0, 2.0, 30, dtype=torch.float64).view(2, 3, 5)
    labels = torch.tensor([[0, 1, 2], [3, 4, 0]])
    changed = [written(lambda one, fn=fn: fn(one, labels, 0.7), logits.clone()) for fn in (right, wrong)]
    return changed[0] != changed[1]


ENTRIES = [
    Entry("PairWiseLoss", "openrlhf", "preference",
          "The margin is added to the difference, so pairs that should be far apart are pushed the least.",
          lambda cls: bind(
              cls, role="preference",
              args={"chosen_reward": _scores(0), "reject_reward": _scores(1), "margin": _margin}),
          _pairwise),
    Entry("ExperienceMaker.accumulate", "openrlhf", "returns",
          "The mask is only put on the result, so rewards of tool output and padding flow into the actions before.",
          _accumulated, walked("return", "return", lambda row, o: loops.to_go(row.token_reward, o["gamma"])),
          neutral=True),
    Entry("process", "openrlhf", "reward_normalisation",
          "The spread is taken over the whole batch instead of the samples of one prompt.",
          _processed, per_row("advantage", "advantage", _processed_value), neutral=True),
    Entry("log_probs_from_logits", "openrlhf", "logp",
          "The logits are divided in place, so whatever reads them later gets the temperature a second time.",
          lambda fn: bind(
              fn, role="logp", view={"with_prompt": True, "drop_first": True},
              args={"logits": lambda case: prompted(case).logits()[:, :-1],
                    "labels": lambda case: case.padded("token_id", drop_first=True)},
              options={"temperature": 0.7}, variants={"temperature": (1.0,)}, temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          differs=_writes),
]  # fmt: skip
