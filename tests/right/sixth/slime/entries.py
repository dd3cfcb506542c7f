"""Entries in the dialect of slime."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _joined(name: str) -> Callable[[Case], torch.Tensor]:
    return lambda case: torch.cat(case.list(name, with_prompt=False))


def _opsm(fn: Any) -> Subject:
    def mask(full_log_probs, full_old_log_probs, advantages, loss_masks, opsm_delta):
        args = SimpleNamespace(opsm_delta=opsm_delta)
        return fn(args, full_log_probs, full_old_log_probs, advantages, loss_masks)

    return bind(
        mask, role="keep", name="compute_opsm_mask", layout="list",
        args={"full_log_probs": "logp_current", "full_old_log_probs": "logp_old", "advantages": "advantage",
              "loss_masks": "trainable"},
        options={"opsm_delta": 0.05}, variants={"opsm_delta": (0.3,)},
        returns={"keep": at(0, "keep", level="token", scope="sequence", pair=("logp_current", "logp_old")),
                 "lost": at(1, "metric", level="scalar", range=(0, 1), agreed=0.0)},
    )  # fmt: skip


def _kept(r: Row, t: int, o: Any) -> float:
    wrong = r.mean(lambda row, s: row.advantage[s]) < 0
    return float(not (wrong and -r.mean(UPDATE) > o["opsm_delta"]))


def _swept(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


def _policy(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss", layout="list",
        args={"ppo_kl": lambda case: _joined("logp_old")(case) - _joined("logp_current")(case),
              "advantages": _joined("advantage")},
        options={"eps_clip": 0.2, "eps_clip_high": 0.28, "eps_clip_c": 1.5},
        variants={"eps_clip": (0.05,), "eps_clip_high": (0.05,), "eps_clip_c": (None, 1.1)},
        returns={"loss": at(0, "term", level="token"), "clipfrac": at(1, "metric", level="token")},
    )  # fmt: skip


def _policy_value(r: Row, t: int, o: Any) -> float:
    return ppo(UPDATE(r, t), r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip_high"], o["eps_clip_c"])


def _clipped(r: Row, t: int, o: Any) -> float:
    ratio = loops.exp(UPDATE(r, t))
    above, below = ratio > 1 + o["eps_clip_high"], ratio < 1 - o["eps_clip"]
    return float((above and r.advantage[t] > 0) or (below and r.advantage[t] < 0))


def _processed(method: Any) -> Subject:
    def process(rewards, groups, rewards_normalization, grpo_std_normalization):
        args = SimpleNamespace(
            rewards_normalization=rewards_normalization,
            grpo_std_normalization=grpo_std_normalization,
            n_samples_per_prompt=2,
        )
        samples = [SimpleNamespace(reward=r, group_index=g) for r, g in zip(rewards, groups, strict=True)]
        return torch.tensor(method(SimpleNamespace(args=args), samples)[1])

    return bind(
        process, role="group_advantage", name="RolloutManager.post_process",
        args={"rewards": lambda case: case.sequence("reward").tolist(),
              "groups": lambda case: case.sequence("group").tolist()},
        options={"rewards_normalization": True, "grpo_std_normalization": True},
        variants={"rewards_normalization": (False,), "grpo_std_normalization": (False,)},
    )  # fmt: skip


def _processed_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        scaled = o["grpo_std_normalization"] and len(group) > 1
        scale = loops.spread(group, 1) + 1e-6 if scaled else 1.0
        found.append((row.reward - loops.mean(group)) / scale if o["rewards_normalization"] else row.reward)
    return found


ENTRIES = [
    Entry("compute_opsm_mask", "slime", "keep",
          "The sign of the advantage is asked token by token, so parts of a rejected sample go on training.",
          _opsm,
          together(per_token("keep", "keep", _kept),
                   scalar("lost", "metric", lambda rows, o: 1 - loops.token_mean(rows, lambda r, t: _kept(r, t, o)))),
          several=True),
    Entry("sweep", "slime", "returns",
          "Lambda is forgotten in the recursion, so the advantages are those of plain returns.",
          lambda fn: bind(
              fn, role="returns", layout="list",
              args={"guesses": "value", "gains": "token_reward", "keeps": "trainable"},
              options={"gamma": 0.9, "lambd": 0.8}, variants={"gamma": (1.0,), "lambd": (1.0, 0.5)},
              returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          together(walked("advantage", "advantage", _swept),
                   walked("returns", "return", lambda row, o: [
                       a + v for a, v in zip(_swept(row, o), row.value, strict=True)])),
          neutral=True, unusual=True, several=True),
    Entry("compute_policy_loss", "slime", "policy_loss",
          "The dual clip also takes hold where the advantage is positive, and nothing good is learned any more.",
          _policy, together(per_token("loss", "term", _policy_value), per_token("clipfrac", "metric", _clipped)),
          several=True),
    Entry("RolloutManager.post_process", "slime", "group_advantage",
          "Groups are cut by position, and a batch with a dropped sample becomes one group of all prompts.",
          _processed, per_row("advantage", "advantage", _processed_value), neutral=True, several=True, single=True),
]  # fmt: skip
