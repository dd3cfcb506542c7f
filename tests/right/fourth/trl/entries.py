"""Entries in the dialect of TRL."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, numbers, per_row, per_token, scalar
from tests.right.shapes import cells, in_pairs, whole_tokens

from trimtab.sentinel import Case, Result, Subject, at, bind

# --- methods of trainers ------------------------------------------------------------------------------------------


def _high_entropy(method: Any) -> Subject:
    def high_entropy(entropies, mask, threshold):
        return method(SimpleNamespace(), entropies, mask, threshold)

    return bind(
        high_entropy, role="keep", name="GRPOTrainer.get_high_entropy_mask", couples="batch",
        args={"entropies": "entropy", "mask": "trainable"}, options={"threshold": 0.5},
        variants={"threshold": (0.75, 0.0)},
    )  # fmt: skip


def _is_high(case: Case, o: Any) -> dict[str, Result]:
    found = [x for row in loops.rows(case) for x in row.entropy]
    ordered = sorted(found)
    rank = o["threshold"] * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    least = ordered[below] + (rank - below) * (ordered[above] - ordered[below])
    return {"keep": Result(numbers([float(x >= least) for x in found]), "token", "keep")}


def _reduced(method: Any) -> Subject:
    def reduced(per_token_loss, completion_mask, num_items_in_batch):
        trainer = SimpleNamespace(loss_type="dapo", num_processes=1, current_gradient_accumulation_steps=1)
        return method(trainer, per_token_loss, completion_mask, num_items_in_batch)

    return bind(
        reduced, role="aggregation", name="GRPOTrainer._reduce_loss", combine="sum",
        args={"per_token_loss": "token_loss", "completion_mask": "trainable", "num_items_in_batch": whole_tokens},
    )  # fmt: skip


def _adds_up(method: Any) -> bool:
    """Whether the losses of two micro-batches with other token counts add up to that of both."""
    trainer = SimpleNamespace(loss_type="dapo", num_processes=1, current_gradient_accumulation_steps=2)
    losses = torch.tensor([[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    parts = sum(float(method(trainer, losses[i : i + 1], mask[i : i + 1], 4)) for i in range(2))
    return abs(parts - float(method(trainer, losses, mask, 4))) < 1e-12


def _centred(method: Any) -> Subject:
    def centred(rewards, reward_clip_range, normalize_advantages):
        trainer = SimpleNamespace(
            num_generations=2, reward_clip_range=reward_clip_range, normalize_advantages=normalize_advantages
        )
        return method(trainer, rewards)

    return bind(
        centred, role="group_advantage", name="RLOOTrainer._center", args={"rewards": in_pairs("reward")},
        options={"reward_clip_range": None, "normalize_advantages": False},
        variants={"reward_clip_range": ((0.5, 1.2),)},
    )  # fmt: skip


def _centred_value(rows: list[Row], o: Any) -> list[float]:
    low, high = o["reward_clip_range"] or (-math.inf, math.inf)

    def reward(row: Row) -> float:
        return loops.clamp(row.reward, low, high)

    return [reward(r) - loops.mean([reward(p) for p in loops.peers(rows, r) if p is not r]) for r in rows]


# --- preferences --------------------------------------------------------------------------------------------------


def _both_halves(case: Case, name: str) -> torch.Tensor:
    """First the chosen rows, then the rejected ones."""
    if not case.pairs:
        raise case.cannot("there is no pair")
    places = [chosen for chosen, _ in case.pairs] + [rejected for _, rejected in case.pairs]
    return case.padded(name, with_prompt=False)[places]


def _preferred(method: Any) -> Subject:
    def preferred(per_token_logps, loss_mask, beta, label_smoothing, simpo_gamma, loss_type):
        trainer = SimpleNamespace(
            beta=beta, label_smoothing=label_smoothing, simpo_gamma=simpo_gamma, loss_type=loss_type
        )
        return method(trainer, per_token_logps, loss_mask)

    return bind(
        preferred, role="preference", name="CPOTrainer.get_batch_loss_metrics",
        args={"per_token_logps": lambda case: _both_halves(case, "logp_current"),
              "loss_mask": lambda case: _both_halves(case, "trainable")},
        options={"beta": 2.0, "label_smoothing": 0.0, "simpo_gamma": 0.5, "loss_type": "simpo"},
        variants={"beta": (0.5,), "label_smoothing": (0.1,), "simpo_gamma": (1.0,), "loss_type": ("sigmoid",)},
        returns={"loss": at(0, "loss"), "accuracy": at((1, "rewards/accuracies"), "metric"),
                 "margin": at((1, "rewards/margins"), "metric")},
    )  # fmt: skip


def _preferred_value(case: Case, o: Any) -> dict[str, Result]:
    rows, simpo = loops.rows(case), o["loss_type"] == "simpo"

    def score(row: Row) -> float:
        taken = row.mean if simpo else row.total
        return o["beta"] * taken(lambda r, t: r.logp_current[t])

    losses, margins = [], []
    for chosen, rejected in case.pairs:
        margin = score(rows[chosen]) - score(rows[rejected])
        x = margin - (o["simpo_gamma"] if simpo else 0.0)
        smooth = o["label_smoothing"]
        losses.append((1 - smooth) * math.log1p(math.exp(-x)) + smooth * math.log1p(math.exp(x)))
        margins.append(margin)
    told = {"loss": loops.mean(losses), "accuracy": loops.mean([float(m > 0) for m in margins]),
            "margin": loops.mean(margins)}  # fmt: skip
    kinds = {"loss": "loss", "accuracy": "metric", "margin": "metric"}
    return {name: Result(numbers([value])[0], "scalar", kinds[name]) for name, value in told.items()}


# --- distillation, factors ----------------------------------------------------------------------------------------


def _labels(case: Case) -> torch.Tensor:
    return cells("token_id")(case).masked_fill(~cells("trainable")(case).bool(), -100)


def _divergence(r: Row, t: int, o: Any) -> float:
    beta = o["beta"]
    student, teacher = (loops.log_softmax(x, o["temperature"]) for x in (r.logits[t], r.teacher_logits[t]))

    def kl(p: list[float], q: list[float]) -> float:
        return sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))

    if beta in (0.0, 1.0):
        return kl(student, teacher) if beta else kl(teacher, student)
    mixed = [math.log((1 - beta) * math.exp(a) + beta * math.exp(b)) for a, b in zip(student, teacher, strict=True)]
    return beta * kl(teacher, mixed) + (1 - beta) * kl(student, mixed)


def _corrected(r: Row, t: int, o: Any) -> float:
    one = gap("logp_old", "logp_rollout")
    factor = loops.exp(r.total(one) if o["mode"].startswith("sequence") else one(r, t))
    return min(factor, o["top"]) if o["mode"].endswith("truncate") else factor * (factor <= o["top"])


ENTRIES = [
    Entry("GRPOTrainer.get_high_entropy_mask", "trl", "keep",
          "Padding enters the quantile with an entropy of 0, so too many tokens are above it.", _high_entropy,
          _is_high),
    Entry("GRPOTrainer._reduce_loss", "trl", "aggregation",
          "The sum is divided by the tokens of the micro-batch instead of those of the whole step.", _reduced,
          scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: r.token_loss[t])),
          pads_finite=True, differs=lambda right, wrong: _adds_up(right) != _adds_up(wrong)),
    Entry("RLOOTrainer._center", "trl", "group_advantage",
          "The rewards are folded as if the first completions of all prompts came first, so groups mix prompts.",
          _centred, per_row("advantage", "advantage", _centred_value), neutral=True),
    Entry("CPOTrainer.get_batch_loss_metrics", "trl", "preference",
          "The margin is not divided by beta, so it is beta times what is configured.", _preferred, _preferred_value,
          several=True, single=True),
    Entry("blend", "trl", "distillation",
          "The two sides of the divergence have each other's weights, which does not show at one half.",
          lambda fn: bind(
              fn, role="distillation",
              args={"student_logits": cells("logits"), "teacher_logits": cells("teacher_logits"), "labels": _labels},
              options={"beta": 0.5, "temperature": 1.0},
              variants={"beta": (0.0, 0.25, 1.0), "temperature": (2.0,)}),
          scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: _divergence(r, t, o))),
          neutral=True, single=True, pads_finite=True),
    Entry("correction", "trl", "importance",
          "The mode that should drop a sequence truncates its factor, like the mode beside it.",
          lambda fn: bind(
              fn, role="importance",
              args={"lps": cells("logp_old"), "vllm_lps": cells("logp_rollout"), "tokens_in": cells("trainable")},
              options={"mode": "sequence_mask", "top": 1.5},
              variants={"mode": ("sequence_truncate", "token_truncate", "token_mask"), "top": (1.1,)}),
          per_token("importance", "importance", _corrected), neutral=True, unusual=True),
]  # fmt: skip
