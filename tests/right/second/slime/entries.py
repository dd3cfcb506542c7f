"""Entries in the dialect of slime."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together, walked
from tests.right.shapes import in_pairs

from trimtab.sentinel import Subject, at, bind

AWAY = gap("logp_old", "logp_current")


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


def _gae_returns(row: Row, o: Any) -> list[float]:
    return [a + v for a, v in zip(_gae(row, o), row.value, strict=True)]


def _to_go(row: Row, o: Any) -> list[float]:
    paid = [-o["kl_coef"] * k for k in row.kl]
    if paid:
        paid[-1] += row.reward
    return loops.to_go(paid, o["gamma"])


def _averaged(rows: list[Row], o: Any) -> float:
    of_row = sum if o["calculate_per_token_loss"] else loops.mean
    return float(sum(of_row(r.token_loss) for r in rows))


def _opsm(fn: Any) -> Subject:
    def masked(full_log_probs, full_old_log_probs, advantages, loss_masks, opsm_delta):
        args = SimpleNamespace(opsm_delta=opsm_delta)
        return fn(args, full_log_probs, full_old_log_probs, advantages, loss_masks)

    return bind(
        masked, role="keep", name="compute_opsm_mask", layout="list",
        args={"full_log_probs": "logp_current", "full_old_log_probs": "logp_old"},
        options={"opsm_delta": 0.01}, variants={"opsm_delta": (0.5,)},
        returns={"keep": at(0, "keep", scope="sequence"), "dropped": at(1, "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _dropped(row: Row, o: Any) -> bool:
    return bool(row.count) and loops.mean(row.advantage) < 0 and row.mean(AWAY) > o["opsm_delta"]


def _processed(fn: Any) -> Subject:
    def processed(rewards, grpo_std_normalization):
        args = SimpleNamespace(n_samples_per_prompt=2, grpo_std_normalization=grpo_std_normalization)
        _, found = fn(args, [SimpleNamespace(reward=float(one)) for one in rewards])
        return torch.tensor(found)

    return bind(
        processed, role="reward_normalisation", name="post_process", args={"rewards": in_pairs("reward")},
        options={"grpo_std_normalization": True}, variants={"grpo_std_normalization": (False,)},
    )  # fmt: skip


def _normalised(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = loops.spread(group, 1) + 1e-6 if o["grpo_std_normalization"] else 1.0
        found.append((row.reward - loops.mean(group)) / size)
    return found


def _tis(fn: Any) -> Subject:
    def weights(train_log_probs, rollout_log_probs, loss_masks, tis_clip_low, tis_clip):
        args = SimpleNamespace(tis_clip_low=tis_clip_low, tis_clip=tis_clip)
        return fn(args, train_log_probs, rollout_log_probs, loss_masks)

    return bind(
        weights, role="importance", name="tis_fn", layout="list", args={"train_log_probs": "logp_old"},
        options={"tis_clip_low": 0.0, "tis_clip": 2.0}, variants={"tis_clip_low": (0.9,), "tis_clip": (1.05,)},
        returns={"importance": at(0, "importance"),
                 "clipfrac": at((1, "tis_clipfrac"), "metric", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _ratio(row: Row, t: int) -> float:
    return loops.exp(row.logp_old[t] - row.logp_rollout[t])


def _outside(row: Row, t: int, o: Any) -> float:
    return float(not o["tis_clip_low"] <= _ratio(row, t) <= o["tis_clip"])


ENTRIES = [
    Entry("get_advantages_and_returns", "slime", "returns",
          "The loop over tokens starts one before the last, so the last reward is lost.",
          lambda fn: bind(
              fn, role="returns", layout="list", args={"rewards": "token_reward"},
              options={"gamma": 0.9, "lambd": 0.8}, variants={"gamma": (1.0,), "lambd": (1.0,)},
              returns={"advantage": at(0, "advantage"), "return": at(1, "return")}),
          together(walked("advantage", "advantage", _gae), walked("return", "return", _gae_returns)), several=True),
    Entry("go", "slime", "returns",
          "The KL of tool output enters the returns of the actions before it (slime 166441911, miles#1383).",
          lambda fn: bind(
              fn, role="returns", layout="list", options={"kl_coef": 0.1, "gamma": 0.9},
              variants={"kl_coef": (0.5,), "gamma": (1.0,)}),
          walked("return", "return", _to_go), neutral=True),
    Entry("sum_of_sample_mean", "slime", "aggregation",
          "A sample is divided by the length of its response, tool output included.",
          lambda fn: bind(
              fn, role="aggregation", layout="list",
              args={"x": lambda case: torch.cat(case.list("token_loss", with_prompt=False)),
                    "response_lengths": lambda case: list(case.response_lengths)},
              options={"calculate_per_token_loss": False}, variants={"calculate_per_token_loss": (True,)}),
          scalar("loss", "loss", _averaged), unusual=True),
    Entry("compute_opsm_mask", "slime", "keep",
          "The sign of the advantage is asked token by token, so part of a sample is left out (slime#1917).", _opsm,
          together(per_token("keep", "keep", lambda r, t, o: float(not _dropped(r, o))),
                   scalar("dropped", "metric", lambda rows, o: loops.mean([float(_dropped(r, o)) for r in rows]))),
          several=True),
    Entry("post_process", "slime", "reward_normalisation",
          "The rewards are viewed as [samples, prompts], so the samples of different prompts are compared.", _processed,
          per_row("advantage", "advantage", _normalised), neutral=True, single=True),
    Entry("tis_fn", "slime", "importance",
          "The bound is a lower one: large weights pass, small ones are raised.", _tis,
          together(per_token("importance", "importance",
                             lambda r, t, o: loops.clamp(_ratio(r, t), o["tis_clip_low"], o["tis_clip"])),
                   scalar("clipfrac", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: _outside(r, t, o)))),
          neutral=True, several=True),
]  # fmt: skip
