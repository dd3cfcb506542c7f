"""Entries in the dialect of OpenRLHF."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar
from tests.right.shapes import in_pairs, prompted, written

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result
from trimtab.sentinel.targets.handed import ending_ids

UPDATE = gap("logp_current", "logp_old")


def _sft(cls: Any) -> Subject:
    def loss(logits, input_ids, loss_mask, token_level_loss):
        return cls(token_level_loss)(logits, input_ids, loss_mask)

    return bind(
        loss, name="SFTTerm",
        args={"logits": lambda case: prompted(case).logits(), "input_ids": lambda case: case.padded("token_id"),
              "loss_mask": lambda case: case.padded("trainable")},
        options={"token_level_loss": True}, variants={"token_level_loss": (False,)},
        returns={"loss": at((), "loss")},
    )  # fmt: skip


def _nll(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return -loops.log_softmax(r.logits[t])[r.token_id[t]]

    return loops.token_mean(rows, one) if o["token_level_loss"] else loops.row_mean(rows, one, empty=True)


def _dual(cls: Any) -> Subject:
    def loss(log_probs, old_log_probs, advantages, action_mask, clip_eps, dual_clip):
        return cls(clip_eps, dual_clip)(log_probs, old_log_probs, advantages, action_mask)

    return bind(loss, role="policy_loss", name="DualClipLoss", options={"clip_eps": 0.2, "dual_clip": 1.5},
                variants={"clip_eps": (0.4,), "dual_clip": (None,)})  # fmt: skip


def _handle(method: Any) -> Subject:
    def shaped(rewards, advantage_estimator):
        return method(SimpleNamespace(advantage_estimator=advantage_estimator, n_samples_per_prompt=2), rewards)

    return bind(shaped, role="reward_normalisation", name="RemoteExperienceMaker.handle",
                args={"rewards": in_pairs("reward")}, options={"advantage_estimator": "rloo"},
                variants={"advantage_estimator": ("reinforce_baseline", "group_norm")})  # fmt: skip


def _shaped(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        others = [p.reward for p in loops.peers(rows, row) if p.index != row.index]
        centred = row.reward - loops.mean(group)
        found.append({
            "rloo": row.reward - loops.mean(others),
            "reinforce_baseline": centred,
            "group_norm": centred / (loops.spread(group, 1) + 1e-9),
        }[o["advantage_estimator"]])  # fmt: skip
    return found


def _white(case: Case, o: Any) -> Any:
    flat = [a for row in loops.rows(case) for a in row.advantage]
    centre, size = loops.mean(flat), max(loops.spread(flat, 0) ** 2, 1e-8) ** 0.5
    return {"advantage": Result(loops.numbers([(a - centre) / size for a in flat]), "token", "advantage")}


def _writes(right: Any, wrong: Any) -> bool:
    logits, labels = torch.ones(2, 3, 5).double(), torch.ones(2, 3).long()
    return written(lambda x: wrong(x, labels, 0.5), logits) != written(lambda x: right(x, labels, 0.5), logits)


def _mask(case: Case, o: Any) -> Any:
    width = max(case.response_lengths, default=0) + case.extra_columns
    grid = [[float(t < n) for t in range(width)] for n in case.response_lengths]
    return {"mask": Result(torch.tensor(grid, dtype=torch.float64), "cell", "mask")}


ENTRIES = [
    Entry("SFTTerm", "openrlhf", None, "The mask is not shifted with the labels (verl 02e06fa2e).", _sft,
          scalar("loss", "loss", _nll)),
    Entry("DualClipLoss", "openrlhf", "policy_loss",
          "The second clip lowers the objective further instead of bounding it.", _dual,
          scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: ppo(
              UPDATE(r, t), r.advantage[t], 1 - o["clip_eps"], 1 + o["clip_eps"], o["dual_clip"]))),
          pads_finite=True),
    Entry("RemoteExperienceMaker.handle", "openrlhf", "reward_normalisation",
          "Rewards are laid out with one column per prompt instead of one row.", _handle,
          loops.per_row("advantage", "advantage", _shaped), neutral=True),
    Entry("normalize_advantages", "openrlhf", "whitening", "The variance sums over masked positions too.",
          lambda fn: bind(fn, role="whitening", layout="list",
                          args={"advantages": "advantage", "action_masks": "trainable"}),
          _white, single=True),
    Entry("log_probs_from_logits", "openrlhf", "logp",
          "The logits of the model are divided in place (verl 90d6a667f).",
          lambda fn: bind(fn, role="logp", args={"logits": "logits", "labels": "token_id"},
                          options={"temperature": 0.6}, variants={"temperature": (1.0,)}, temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          differs=_writes),
    Entry("compute", "openrlhf", "response_mask", "The end of the sequence itself is not trained.",
          lambda fn: bind(fn, role="response_mask", args={"sequences": ending_ids},
                          options={"eos_token_id": 1, "pad_token_id": 0}),
          _mask, neutral=True, unusual=True),
]  # fmt: skip
