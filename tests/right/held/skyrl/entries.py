"""Entries in the dialect of SkyRL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, per_token, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result
from trimtab.sentinel.targets.handed import group_names


def _critic(fn: Any) -> Subject:
    def loss(values, old_values, returns, loss_mask, value_clip):
        return fn(values, old_values, returns, SimpleNamespace(value_clip=value_clip), loss_mask)

    return bind(
        loss, role="value_loss", name="ppo_critic_loss",
        args={"values": "value", "old_values": "value_old", "returns": "returns", "loss_mask": "trainable"},
        options={"value_clip": 0.4}, variants={"value_clip": (1.5,)},
        returns={"loss": at(0, "loss"), "clipfrac": at(1, "metric", range=(0, 1), reduction="mean")},
    )  # fmt: skip


def _errors(r: Row, t: int, o: Any) -> tuple[float, float]:
    near = r.value_old[t] + clamp(r.value[t] - r.value_old[t], -o["value_clip"], o["value_clip"])
    return (near - r.returns[t]) ** 2, (r.value[t] - r.returns[t]) ** 2


def _reduced(rows: list[Row], o: Any) -> float:
    def loss(r: Row, t: int) -> float:
        return r.token_loss[t]

    return {
        "token_mean": lambda: loops.token_mean(rows, loss),
        "sequence_mean": lambda: loops.row_mean(rows, loss, empty=True),
        "seq_mean_token_sum_norm": lambda: loops.row_sum_mean(rows, loss, empty=True) / 32,
    }[o["loss_reduction"]]()


def _white(case: Case, value: Any, *, back: bool = False) -> Any:
    flat = [one for row in loops.rows(case) for one in value(row)]
    centre, size = loops.mean(flat), (loops.spread(flat, 0) ** 2 + 1e-8) ** 0.5
    found = [(one - centre) / size + (centre if back else 0.0) for one in flat]
    return {"advantage": Result(loops.numbers(found), "token", "advantage")}


def _to_go(row: Row, o: Any) -> list[float]:
    return loops.to_go(row.token_reward, o["gamma"])


def _grpo(rows: list[Row], o: Any) -> list[float]:
    scores = [r.total(lambda r, t: r.token_reward[t]) for r in rows]
    found: list[float] = []
    for row in rows:
        group = [scores[p.index] for p in loops.peers(rows, row)]
        size = loops.spread(group, 0) + 1e-6 if o["grpo_norm_by_std"] else 1.0
        found.append((scores[row.index] - loops.mean(group)) / size)
    return found


def _turns(case: Case) -> list[list[int]]:
    """Ids of several turns: each turn before tool output ends with id 1, and so does an answer that ended."""
    found: list[list[int]] = []
    for kinds, ended, length in zip(case.kinds, case.sequence("ended").tolist(), case.response_lengths, strict=True):
        answer = kinds[len(kinds) - length :]
        ids = [1 if t + 1 < length and answer[t + 1] == "o" else 3 for t in range(length)]
        found.append([*ids[:-1], 1 if ended else 3] if length else [])
    return found


def _overlong(fn: Any) -> Subject:
    def kept(loss_masks, response_ids, eos_token_id):
        return [torch.tensor(one).double() for one in fn(loss_masks, response_ids, eos_token_id)]

    return bind(
        kept, role="keep", name="apply_overlong_filtering", layout="list",
        args={"loss_masks": lambda case: [m.long().tolist() for m in case.list("trainable", with_prompt=False)],
              "response_ids": _turns},
        options={"eos_token_id": 1}, returns={"keep": at((), "keep", level="token", scope="sequence")},
    )  # fmt: skip


ENTRIES = [
    Entry("ppo_critic_loss", "skyrl", "value_loss", "Only the clipped error is taken, and values beyond the clip stop.",
          _critic,
          together(scalar("loss", "loss", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: max(_errors(r, t, o)) / 2)),
                   scalar("clipfrac", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(_errors(r, t, o)[0] > _errors(r, t, o)[1])))),
          several=True, single=True),
    Entry("reduce_loss", "skyrl", "aggregation", "sequence_mean averages over the columns instead of the rows.",
          lambda fn: bind(
              fn, role="aggregation", args={"loss": "token_loss", "loss_mask": "trainable"},
              options={"loss_reduction": "sequence_mean"},
              variants={"loss_reduction": ("token_mean", "seq_mean_token_sum_norm")}),
          scalar("loss", "loss", _reduced)),
    Entry("run", "skyrl", "returns", "Tool output resets the return (SkyRL a9564572e).",
          lambda fn: bind(
              fn, role="returns", couples="batch",
              args={"token_level_rewards": "token_reward", "response_mask": "trainable"},
              options={"gamma": 0.9}, variants={"gamma": (1.0,)},
              returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          together(lambda case, o: _white(case, lambda row: _to_go(row, o)), walked("returns", "return", _to_go)),
          neutral=True, several=True),
    Entry("whiten", "skyrl", "whitening", "Values are divided by the variance.",
          lambda fn: bind(fn, role="whitening", args={"values": "advantage", "mask": "trainable"},
                          options={"shift_mean": True}, variants={"shift_mean": (False,)}),
          lambda case, o: _white(case, lambda row: row.advantage, back=not o["shift_mean"])),
    Entry("derive", "skyrl", "group_advantage", "Rewards of tool output and padding enter the score.",
          lambda fn: bind(
              fn, role="group_advantage",
              args={"token_level_rewards": "token_reward", "response_mask": "trainable", "index": group_names},
              options={"grpo_norm_by_std": True}, variants={"grpo_norm_by_std": (False,)}),
          loops.per_row("advantage", "advantage", _grpo, level="token"), neutral=True),
    Entry("apply_overlong_filtering", "skyrl", "keep",
          "A response counts as ended if an earlier turn in it ended.", _overlong,
          per_token("keep", "keep", lambda r, t, o: float(r.ended)), unusual=True),
]  # fmt: skip
