"""Entries in the dialect of verl."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together
from tests.right.shapes import cells, prompted

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.targets.handed import reward_on_last

UPDATE = gap("logp_current", "logp_old")
TINY = 1e-8


class Controller:
    """A fixed coefficient, as verl's FixedKLController."""

    def __init__(self, value: float) -> None:
        self.value = value

    def update(self, current_kl: float, n_steps: int) -> None:
        pass


# --- policy loss --------------------------------------------------------------------------------------------------


def _sapo(fn: Any) -> Subject:
    def loss(old_log_prob, log_prob, advantages, response_mask, tau_pos, tau_neg, loss_agg_mode):
        config = SimpleNamespace(tau_pos=tau_pos, tau_neg=tau_neg)
        return fn(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config=config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_sapo",
        args={"old_log_prob": "logp_old", "log_prob": "logp_current", "advantages": "advantage",
              "response_mask": "trainable"},
        options={"tau_pos": 1.0, "tau_neg": 1.05, "loss_agg_mode": "seq-mean-token-mean"},
        variants={"tau_pos": (2.0,), "tau_neg": (3.0,), "loss_agg_mode": ("token-mean", "seq-mean-token-sum")},
        returns={"loss": at(0, "loss"), "kl": at((1, "actor/ppo_kl"), "metric")},
    )  # fmt: skip


def _aggregated(rows: list[Row], value: Any, mode: str) -> float:
    """verl's means: every denominator has 1e-8 on top."""
    if mode == "token-mean":
        return sum(r.total(value) for r in rows) / (sum(r.count for r in rows) + TINY)
    by_sum = mode == "seq-mean-token-sum"
    found = [r.total(value) if by_sum else r.total(value) / (r.count + TINY) for r in rows if r.count]
    return sum(found) / (len(found) + TINY)


def _sapo_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        tau = o["tau_pos"] if r.advantage[t] > 0 else o["tau_neg"]
        ratio = math.exp(loops.clamp(UPDATE(r, t), -20.0, 20.0))
        return -r.advantage[t] * 4.0 / tau / (1.0 + math.exp(-tau * (ratio - 1.0)))

    return _aggregated(rows, one, o["loss_agg_mode"])


# --- KL in the reward ---------------------------------------------------------------------------------------------


def _penalised(fn: Any) -> Subject:
    def rewards(token_level_scores, old_log_probs, ref_log_prob, response_mask, kl_coef, kl_penalty):
        batch = {"token_level_scores": token_level_scores, "old_log_probs": old_log_probs,
                 "ref_log_prob": ref_log_prob, "response_mask": response_mask}  # fmt: skip
        data, metrics = fn(SimpleNamespace(batch=batch), Controller(kl_coef), kl_penalty)
        return data.batch["token_level_rewards"], metrics["actor/reward_kl_penalty"]

    return bind(
        rewards, role="kl_in_reward", name="apply_kl_penalty",
        args={"token_level_scores": "token_reward", "old_log_probs": "logp_old", "ref_log_prob": "logp_ref",
              "response_mask": "trainable"},
        options={"kl_coef": 0.1, "kl_penalty": "kl"}, variants={"kl_coef": (0.5,), "kl_penalty": ("abs", "mse")},
        returns={"reward": at(0, "reward"), "kl": at(1, "metric")},
    )  # fmt: skip


def _distance(r: Row, t: int, o: Any) -> float:
    apart = r.logp_old[t] - r.logp_ref[t]
    return {"kl": apart, "abs": abs(apart), "mse": apart * apart / 2}[o["kl_penalty"]]


def _kl_level(rows: list[Row], o: Any) -> float:
    return loops.mean([r.total(lambda r, t: _distance(r, t, o)) / (r.count + TINY) for r in rows])


def _writes(fn: Any) -> bool:
    """Whether the scores of the batch are still the scores after the call."""
    scores = torch.zeros(2, 3, dtype=torch.float64)
    batch = {"token_level_scores": scores, "old_log_probs": torch.full((2, 3), -1.0, dtype=torch.float64),
             "ref_log_prob": torch.full((2, 3), -2.0, dtype=torch.float64),
             "response_mask": torch.ones(2, 3)}  # fmt: skip
    fn(SimpleNamespace(batch=batch), Controller(0.1))
    return bool(scores.any())


# --- log-probs ----------------------------------------------------------------------------------------------------


def _fused(cls: Any) -> Subject:
    def fused(hidden_states, vocab_weights, input_ids, temperature, chunk_size):
        return cls(chunk_size)(hidden_states, vocab_weights, input_ids, temperature=temperature)

    return bind(
        fused, role="logp", name="FusedLinearForPPO",
        args={"hidden_states": lambda case: prompted(case).logits(),
              "vocab_weights": lambda case: torch.eye(case.tokens["logits"].shape[-1], dtype=torch.float64),
              "input_ids": lambda case: case.padded("token_id", shift=True)},
        view={"with_prompt": True, "shift": True}, options={"temperature": 0.7, "chunk_size": 3},
        variants={"temperature": (1.0,)}, temperature="temperature",
        returns={"logp": at(0, "logp"), "entropy": at(1, "entropy")},
    )  # fmt: skip


# --- advantages, factors, metrics ---------------------------------------------------------------------------------


def _indexes(case: Case) -> np.ndarray:
    return np.array([f"uid-{g}" for g in case.sequence("group").tolist()], dtype=object)


def _score(row: Row) -> float:
    return row.reward if row.count else 0.0


def _assigned(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        size = max(sum(p.count for p in group), 1)
        baseline = sum(p.count * _score(p) for p in group) / size if len(group) > 1 else 0.0
        found.append(_score(row) - baseline)
    return found


def _factor(r: Row, t: int, o: Any) -> float:
    one = gap("logp_old", "logp_rollout")
    log = {"token": lambda: one(r, t), "sequence": lambda: r.total(one), "geometric": lambda: r.mean(one)}[o["level"]]()
    return min(math.exp(loops.clamp(log, -20.0, 20.0)), o["cap"])


def _summary(fn: Any) -> Subject:
    def summary(token_level_scores, response_mask, max_response_length):
        batch = {"token_level_scores": token_level_scores, "response_mask": response_mask}
        return fn(SimpleNamespace(batch=batch), max_response_length)

    return bind(
        summary, role="metric", name="summarize_batch",
        args={"token_level_scores": reward_on_last, "response_mask": "trainable"},
        options={"max_response_length": 3}, variants={"max_response_length": (2,)},
        returns={"score": at("critic/score/mean", "metric"), "highest": at("critic/score/max", "metric"),
                 "lowest": at("critic/score/min", "metric"), "length": at("response_length/mean", "metric"),
                 "clipped": at("response_length/clip_ratio", "metric"),
                 "aborted": at("response/aborted_ratio", "metric")},
    )  # fmt: skip


def _over_answered(name: str, value: Any) -> Any:
    def one(rows: list[Row], o: Any) -> float:
        answered = [value(r) for r in rows if r.count]
        told = {"highest": max, "lowest": min}.get(name, loops.mean)
        return told(answered) if answered else 0.0

    return scalar(name, "metric", one)


ENTRIES = [
    Entry("compute_policy_loss_sapo", "verl", "policy_loss",
          "The gate of tokens with a negative advantage is scaled by the temperature of the positive ones.", _sapo,
          together(scalar("loss", "loss", _sapo_value),
                   scalar("kl", "metric", lambda rows, o: _aggregated(rows, lambda r, t: -loops.clamp(
                       UPDATE(r, t), -20.0, 20.0), "token-mean"))),
          several=True),
    Entry("apply_kl_penalty", "verl", "kl_in_reward",
          "The penalty is subtracted in place, so the scores of the batch, which are logged later, change too.",
          _penalised,
          together(per_token("reward", "reward", lambda r, t, o: r.token_reward[t] - o["kl_coef"] * _distance(r, t, o)),
                   scalar("kl", "metric", _kl_level)),
          several=True, differs=lambda right, wrong: _writes(right) != _writes(wrong)),
    Entry("FusedLinearForPPO", "verl", "logp",
          "The probabilities in the entropy are divided by the temperature a second time.", _fused,
          together(per_token("logp", "logp",
                             lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          several=True, single=True),
    Entry("assign_outcome", "verl", "group_advantage",
          "The baseline is computed anew for each response, from scores of which the earlier ones are already centred.",
          lambda fn: bind(
              fn, role="group_advantage",
              args={"token_level_rewards": reward_on_last, "response_mask": "trainable", "index": _indexes},
              returns={"advantage": at(0, "advantage"), "return": at(1, "return")}),
          together(per_row("advantage", "advantage", _assigned, level="token"),
                   per_row("return", "return", _assigned, level="token")),
          neutral=True, several=True),
    Entry("adjust", "verl", "importance",
          "The log-ratios of a response are added up over tool output and padding too.",
          lambda fn: bind(
              fn, role="importance",
              args={"pi_lp": cells("logp_old"), "mu_lp": cells("logp_rollout"), "msk": cells("trainable")},
              options={"level": "token", "cap": 2.0},
              variants={"level": ("sequence", "geometric"), "cap": (1.1,)}),
          per_token("importance", "importance", _factor), neutral=True, unusual=True, single=True),
    Entry("summarize_batch", "verl", "metric",
          "A response counts as cut off if it is as long as the longest of the batch, whatever the limit is.", _summary,
          together(_over_answered("score", _score), _over_answered("highest", _score),
                   _over_answered("lowest", _score), _over_answered("length", lambda r: float(r.count)),
                   scalar("clipped", "metric", lambda rows, o: loops.mean(
                       [float(r.count >= o["max_response_length"]) for r in rows])),
                   scalar("aborted", "metric", lambda rows, o: loops.mean([float(not r.count) for r in rows]))),
          neutral=True, several=True, single=True),
]  # fmt: skip
