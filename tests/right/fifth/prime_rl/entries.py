"""Entries in the dialect of prime-rl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import in_pairs, prompted, whole_tokens

from trimtab.sentinel import Subject, at, bind

MISMATCH = gap("logp_current", "logp_rollout")


def _loss(fn: Any) -> Subject:
    def loss(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale,
        ratio_type, mask_ratio_low, mask_ratio_high, kl_tau,
    ):  # fmt: skip
        config = SimpleNamespace(
            ratio_type=ratio_type, mask_ratio_low=mask_ratio_low, mask_ratio_high=mask_ratio_high, kl_tau=kl_tau
        )
        return fn(trainer_logprobs, inference_logprobs, advantages, loss_mask, config, loss_scale)

    return bind(
        loss, role="policy_loss", name="compute_loss", layout="list", view={"with_prompt": True}, combine="sum",
        args={"trainer_logprobs": "logp_current", "inference_logprobs": "logp_rollout", "advantages": "advantage",
              "loss_mask": lambda case: [mask.bool() for mask in case.list("trainable")], "loss_scale": whole_tokens},
        options={"ratio_type": "token", "mask_ratio_low": 0.125, "mask_ratio_high": 8.0, "kl_tau": 0.01},
        variants={"ratio_type": ("sequence",), "mask_ratio_low": (0.9,), "mask_ratio_high": (1.1,), "kl_tau": (0.5,)},
    )  # fmt: skip


def _loss_value(rows: list[Row], o: Any) -> float:
    total = 0.0
    for row in rows:
        whole = min(row.mean(MISMATCH), 10.0)
        for t in range(row.count):
            ratio = loops.exp(whole if o["ratio_type"] == "sequence" else MISMATCH(row, t))
            if o["mask_ratio_low"] <= ratio <= o["mask_ratio_high"]:
                total -= ratio * row.advantage[t]
            total += o["kl_tau"] * MISMATCH(row, t) ** 2
    return total / whole_tokens(rows[0].case)


def _assigned(method: Any) -> Subject:
    def assign(rewards, completion_lengths, length_weighted_mean):
        config = SimpleNamespace(rollouts_per_example=2, length_weighted_mean=length_weighted_mean)
        return torch.tensor(method(SimpleNamespace(config=config), rewards, completion_lengths))

    return bind(
        assign, role="group_advantage", name="Orchestrator.assign",
        args={"rewards": lambda case: in_pairs("reward")(case).tolist(),
              "completion_lengths": lambda case: list(case.response_lengths)},
        options={"length_weighted_mean": True}, variants={"length_weighted_mean": (False,)},
    )  # fmt: skip


def _assigned_value(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        sizes = [p.case.response_lengths[p.index] if o["length_weighted_mean"] else 1 for p in group]
        baseline = sum(n * p.reward for n, p in zip(sizes, group, strict=True)) / max(sum(sizes), 1)
        found.append(row.reward - baseline)
    return found


ENTRIES = [
    Entry("compute_loss", "prime_rl", "policy_loss",
          "The ratio of a sequence is the mean over prompt and tool tokens too.",
          _loss, scalar("loss", "loss", _loss_value, detached=True), several=True, pads_finite=True),
    Entry("Orchestrator.assign", "prime_rl", "group_advantage",
          "The weighted mean of an example is divided by the lengths of the whole batch, so the baseline is too small.",
          _assigned, per_row("advantage", "advantage", _assigned_value), neutral=True, single=True),
    Entry("run_head", "prime_rl", "logp",
          "The entropy is computed from logits that are not divided by the temperature.",
          lambda fn: bind(
              fn, role="logp", layout="packed",
              args={"logits": lambda case: prompted(case).packed("logits").roll(-1, 0)[None],
                    "input_ids": lambda case: case.packed("token_id")[None]},
              options={"temperature": 0.7}, variants={"temperature": (1.0,)}, temperature="temperature",
              returns={"logp": at("logprobs", "logp"), "entropy": at("entropy", "entropy")}),
          together(
              per_token("logp", "logp",
                        lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
              per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          neutral=True, single=True, several=True),
]  # fmt: skip
