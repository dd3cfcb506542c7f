"""Entries in the dialect of prime-rl."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, scalar, together
from tests.right.shapes import detached, prompted, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind

MISMATCH = gap("logp_current", "logp_rollout")
SOLVED = 0.5


def _masks(case: Case) -> list[torch.Tensor]:
    return [mask.bool() for mask in case.list("trainable")]


def _keep(fn: Any) -> Subject:
    def keep(
        trainer_logprobs, inference_logprobs, loss_mask, token_mask_low, token_mask_high, sequence_mask_low
    ):  # fmt: skip
        loss_config = SimpleNamespace(
            token_mask_low=token_mask_low, token_mask_high=token_mask_high, sequence_mask_low=sequence_mask_low
        )
        return fn(trainer_logprobs, inference_logprobs, loss_mask, loss_config)

    return bind(
        keep, role="keep", name="keep_tokens", layout="list", view={"with_prompt": True},
        args={"trainer_logprobs": "logp_current", "inference_logprobs": "logp_rollout", "loss_mask": _masks},
        options={"token_mask_low": 0.7, "token_mask_high": 1.4, "sequence_mask_low": 0.6},
        variants={"token_mask_low": (0.9,), "token_mask_high": (1.1,), "sequence_mask_low": (0.0, 0.8)},
        returns={"keep": at(0, "keep", pair=("logp_current", "logp_rollout")),
                 "is_masked": at((1, "is_masked"), "metric", range=(0, 1), agreed=0.0),
                 "sequences": at((1, "sequence_is_masked"), "metric", agreed=0.0)},
    )  # fmt: skip


def _lost(r: Row, o: Any) -> bool:
    return any(loops.exp(MISMATCH(r, t)) < o["sequence_mask_low"] for t in range(r.count))


def _kept(r: Row, t: int, o: Any) -> float:
    inside = o["token_mask_low"] <= loops.exp(MISMATCH(r, t)) <= o["token_mask_high"]
    return float(inside and not _lost(r, o))


def _stacked(fn: Any) -> Subject:
    def stack(heads, tails, tail_lps, tail_keep):
        found = fn(heads, tails, tail_lps, tail_keep)["inference_logprobs"]
        return [row[: len(head) + len(tail)] for row, head, tail in zip(found, heads, tails, strict=True)]

    def ids(case: Case, of_prompt: bool) -> list[list[int]]:
        rows = zip(prompted(case).list("token_id"), case.response_lengths, strict=True)
        return [row[: len(row) - n].tolist() if of_prompt else row[len(row) - n :].tolist() for row, n in rows]

    return bind(
        stack, role="packing", name="stack_rows", layout="list", view={"with_prompt": True},
        args={"heads": lambda case: ids(case, True), "tails": lambda case: ids(case, False),
              "tail_lps": lambda case: detached(case, "logp_rollout"),
              "tail_keep": lambda case: [[bool(x) for x in row] for row in detached(case, "trainable")]},
        returns={"logp": at((), "carried", of="logp_rollout", level="token")},
    )  # fmt: skip


def _loss(fn: Any) -> Subject:
    inputs = fn.__globals__["LossInputs"]

    def loss(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, loss_scale, mask_low, mask_high, adv_tau, kl_tau
    ):  # fmt: skip
        loss_config = SimpleNamespace(mask_low=mask_low, mask_high=mask_high, adv_tau=adv_tau, kl_tau=kl_tau)
        rows = zip(trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True)
        return sum(fn(inputs(*row), loss_config).loss for row in rows) / loss_scale

    return bind(
        loss, role="policy_loss", name="default_loss_fn", layout="list", view={"with_prompt": True}, combine="sum",
        args={"trainer_logprobs": "logp_current", "inference_logprobs": "logp_rollout", "advantages": "advantage",
              "loss_mask": _masks, "loss_scale": whole_tokens},
        options={"mask_low": 0.125, "mask_high": 8.0, "adv_tau": 1.0, "kl_tau": 0.001},
        variants={"mask_low": (0.9,), "mask_high": (1.1,), "adv_tau": (0.5,), "kl_tau": (0.5,)},
    )  # fmt: skip


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio = loops.exp(MISMATCH(r, t))
        kept = o["mask_low"] <= ratio <= o["mask_high"]
        gain = o["adv_tau"] * ratio * r.advantage[t] * r.logp_current[t] if kept else 0.0
        return o["kl_tau"] * MISMATCH(r, t) ** 2 - gain

    return sum((row.total(one) for row in rows), 0.0) / whole_tokens(rows[0].case)


def _slopes_apart(right: Any, wrong: Any) -> bool:
    """Whether the gradients of the two versions differ."""
    loss_config = SimpleNamespace(mask_low=0.125, mask_high=8.0, adv_tau=1.0, kl_tau=0.01)
    found = []
    for fn in (right, wrong):
        new = torch.tensor([-0.5, -1.0, -0.3], dtype=torch.float64, requires_grad=True)
        old = torch.tensor([-0.6, -0.8, -0.3], dtype=torch.float64)
        inputs = fn.__globals__["LossInputs"](new, old, torch.tensor([1.0, -1.0, 0.5]), torch.tensor([True] * 3))
        fn(inputs, loss_config).loss.backward()
        found.append(new.grad)
    return not torch.allclose(found[0], found[1])


def _computed(method: Any) -> Subject:
    def compute(hits, tasks, full_score):
        return method(SimpleNamespace(full_score=full_score), hits, tasks)

    return bind(
        compute, role="metric", name="Monitor.compute",
        args={"hits": lambda case: (case.sequence("reward") > SOLVED).double().tolist(),
              "tasks": lambda case: case.sequence("group").tolist()},
        options={"full_score": 1.0},
        returns={"none": at("solve_none", "metric"), "all": at("solve_all", "metric"),
                 "effective": at("effective_batch_size", "metric"), "pass_rate": at("pass_rate", "metric")},
    )  # fmt: skip


def _rates(rows: list[Row]) -> list[float]:
    """The share of solved attempts, task by task."""
    tasks = sorted({row.group for row in rows})
    return [loops.mean([float(row.reward > SOLVED) for row in rows if row.group == task]) for task in tasks]


ENTRIES = [
    Entry("keep_tokens", "prime_rl", "keep",
          "The smallest ratio is carried on from sample to sample, so a bad one takes all later ones with it.",
          _keep,
          together(per_token("keep", "keep", _kept),
                   scalar("is_masked", "metric",
                          lambda rows, o: 1 - loops.token_mean(rows, lambda r, t: _kept(r, t, o))),
                   scalar("sequences", "metric", lambda rows, o: loops.mean([float(_lost(r, o)) for r in rows]))),
          several=True),
    Entry("stack_rows", "prime_rl", "packing",
          "The log-probs begin one column early, as if they belonged to the positions that predict the tokens.",
          _stacked, per_token("logp", "carried", lambda r, t, o: r.logp_rollout[t]),
          neutral=True, unusual=True, several=True),
    Entry("default_loss_fn", "prime_rl", "policy_loss",
          "The ratio in front of the log-prob is not detached, which adds a second gradient through it.",
          _loss, scalar("loss", "loss", _loss_value, detached=True), several=True, pads_finite=True,
          differs=_slopes_apart),
    Entry("Monitor.compute", "prime_rl", "metric",
          "The share of tasks that every attempt has solved is counted over attempts instead of tasks.",
          _computed,
          together(scalar("none", "metric", lambda rows, o: loops.mean([float(x == 0) for x in _rates(rows)])),
                   scalar("all", "metric", lambda rows, o: loops.mean([float(x == 1) for x in _rates(rows)])),
                   scalar("effective", "metric", lambda rows, o: loops.mean([float(0 < x < 1) for x in _rates(rows)])),
                   scalar("pass_rate", "metric", lambda rows, o: loops.mean(_rates(rows)))),
          neutral=True, unusual=True, several=True, single=True),
]  # fmt: skip
