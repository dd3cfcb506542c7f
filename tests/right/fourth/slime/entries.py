"""Entries in the dialect of slime."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, scalar, together, walked
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Subject, at, bind

LISTS = {"with_prompt": False}
MISMATCH = gap("logp_old", "logp_rollout")


def _samples(name: str) -> Callable[[Case], list[torch.Tensor]]:
    """One tensor per sample, over its response."""
    return lambda case: case.list(name, with_prompt=False)


def _cut(joined: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    return list(joined.split(list(lengths)))


# --- returns ------------------------------------------------------------------------------------------------------


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lambd"])


def _returns(row: Row, o: Any) -> list[float]:
    return [a + v for a, v in zip(_advantages(row, o), row.value, strict=True)]


# --- log-probs ----------------------------------------------------------------------------------------------------


def _packed_logits(case: Case) -> torch.Tensor:
    """[1, tokens, vocabulary]: the model predicts a token from the position before it."""
    return torch.cat([torch.cat([one[1:], one[:1]]) for one in prompted(case).list("logits")])[None]


def _scored(fn: Any) -> Subject:
    def scored(logits, unconcat_tokens, total_lengths, response_lengths, rollout_temperature):
        return fn(
            logits, args=SimpleNamespace(rollout_temperature=rollout_temperature), unconcat_tokens=unconcat_tokens,
            total_lengths=total_lengths, response_lengths=response_lengths, with_entropy=True,
        )  # fmt: skip

    return bind(
        scored, role="logp", name="get_log_probs_and_entropy",
        args={"logits": _packed_logits, "unconcat_tokens": lambda case: case.list("token_id"),
              "total_lengths": lambda case: case.lengths, "response_lengths": lambda case: case.response_lengths},
        layout="list", view=LISTS, options={"rollout_temperature": 0.8}, variants={"rollout_temperature": (1.0,)},
        temperature="rollout_temperature",
        returns={"logp": at("log_probs", "logp"), "entropy": at("entropy", "entropy")},
    )  # fmt: skip


def _trains_entropy(fn: Any) -> bool:
    logits = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = fn(logits, args=SimpleNamespace(rollout_temperature=1.0), unconcat_tokens=[torch.tensor([1, 2, 3, 4])],
               total_lengths=[4], response_lengths=[2], with_entropy=True)  # fmt: skip
    return found["entropy"][0].requires_grad


# --- rejection, rewards -------------------------------------------------------------------------------------------


def _screened(rows: list[Row], o: Any) -> list[float]:
    moved = gap("logp_old", "logp_current")
    return [float(not (r.mean(moved) > o["far"] and r.outcome < 0)) for r in rows]


def _post_processed(method: Any) -> Subject:
    def post_processed(rewards, groups, rewards_normalization, grpo_std_normalization):
        args = SimpleNamespace(
            rewards_normalization=rewards_normalization, grpo_std_normalization=grpo_std_normalization
        )
        samples = [
            SimpleNamespace(reward=r, group_index=g) for r, g in zip(rewards.tolist(), groups.tolist(), strict=True)
        ]
        raw, processed = method(SimpleNamespace(args=args), samples)
        return torch.tensor(raw, dtype=torch.float64), torch.tensor(processed, dtype=torch.float64)

    return bind(
        post_processed, role="reward_normalisation", name="RolloutManager._post_process",
        args={"rewards": lambda case: case.sequence("reward"), "groups": lambda case: case.sequence("group")},
        options={"rewards_normalization": True, "grpo_std_normalization": True},
        variants={"rewards_normalization": (False,), "grpo_std_normalization": (False,)},
        returns={"raw": at(0, "carried", level="sequence", of="reward"), "reward": at(1, "reward", level="sequence")},
    )  # fmt: skip


def _normalised(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = loops.spread(group, 1) + 1e-6 if o["grpo_std_normalization"] and len(group) > 1 else 1.0
        found.append((row.reward - loops.mean(group)) / size if o["rewards_normalization"] else row.reward)
    return found


# --- factors, losses ----------------------------------------------------------------------------------------------


def _truncated(fn: Any) -> Subject:
    def truncated(pg_losses, train_log_probs, rollout_log_probs, loss_masks, lengths, tis_clip, tis_clip_low):
        pg_loss, _, metrics = fn(
            SimpleNamespace(tis_clip=tis_clip, tis_clip_low=tis_clip_low), pg_loss=torch.cat(pg_losses),
            train_log_probs=train_log_probs, rollout_log_probs=rollout_log_probs, loss_masks=loss_masks,
        )  # fmt: skip
        return {"pg_loss": _cut(pg_loss, lengths), **metrics}

    return bind(
        truncated, role="policy_loss", name="vanilla_tis_function",
        args={"pg_losses": _samples("token_loss"), "train_log_probs": _samples("logp_old"),
              "rollout_log_probs": _samples("logp_rollout"), "loss_masks": _samples("trainable"),
              "lengths": lambda case: case.response_lengths},
        layout="list", view=LISTS, options={"tis_clip": 1.2, "tis_clip_low": 0.0},
        variants={"tis_clip": (1.02,), "tis_clip_low": (0.9,)},
        returns={"loss": at("pg_loss", "term"), "tis": at("tis", "metric"), "clipped": at("tis_clipfrac", "metric"),
                 "apart": at("tis_abs", "metric")},
    )  # fmt: skip


def _weight(r: Row, t: int, o: Any) -> float:
    return loops.clamp(loops.exp(MISMATCH(r, t)), o["tis_clip_low"], o["tis_clip"])


def _is_truncated(r: Row, t: int, o: Any) -> float:
    return float(not o["tis_clip_low"] <= loops.exp(MISMATCH(r, t)) <= o["tis_clip"])


def _mean_of(name: str, value: Any) -> Any:
    return scalar(name, "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: value(r, t, o)))


def _objective(fn: Any) -> Subject:
    def objective(log_probs, old_log_probs, advantages, lengths, eps_high, eps_low):
        now, then = torch.cat(log_probs), torch.cat(old_log_probs)
        losses, _ = fn(then - now, now, torch.cat(advantages), eps_high, eps_low)
        return _cut(losses, lengths)

    return bind(
        objective, role="policy_loss", name="token_objective",
        args={"log_probs": _samples("logp_current"), "old_log_probs": _samples("logp_old"),
              "advantages": _samples("advantage"), "lengths": lambda case: case.response_lengths},
        layout="list", view=LISTS, options={"eps_high": 0.28, "eps_low": 1.0},
        variants={"eps_high": (0.05,), "eps_low": (0.05,)},
        stops_gradient=True, returns={"loss": at((), "term")},
    )  # fmt: skip


def _objective_value(r: Row, t: int, o: Any) -> float:
    weight = loops.clamp(loops.exp(r.logp_current[t] - r.logp_old[t]), 1 - o["eps_low"], 1 + o["eps_high"])
    return -weight * r.advantage[t] * r.logp_current[t]


def _slope(fn: Any) -> float:
    """The gradient at a token where both policies agree."""
    now = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    fn(now.detach() * 0 - 2.0 - now, now, torch.ones(1, dtype=torch.float64))[0].sum().backward()
    return float(now.grad)


ENTRIES = [
    Entry("get_advantages_and_returns_batch", "slime", "returns",
          "What a chunk hands to the one before it is discounted by one step too few.",
          lambda fn: bind(
              fn, role="returns",
              args={"values_list": _samples("value"), "rewards_list": _samples("token_reward"),
                    "loss_masks": _samples("trainable")},
              layout="list", view=LISTS, options={"gamma": 0.9, "lambd": 0.8, "chunk_size": 2},
              variants={"gamma": (1.0,), "lambd": (0.5,)},
              returns={"advantage": at(0, "advantage"), "return": at(1, "return")}),
          together(walked("advantage", "advantage", _advantages), walked("return", "return", _returns)), several=True),
    Entry("get_log_probs_and_entropy", "slime", "logp",
          "The entropy is computed without gradients, so an entropy bonus trains nothing.", _scored,
          together(per_token("logp", "logp", lambda r, t, o: loops.log_softmax(
                       r.logits[t], o["rollout_temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy",
                             lambda r, t, o: loops.entropy(r.logits[t], o["rollout_temperature"]))),
          several=True, single=True, differs=lambda right, wrong: _trains_entropy(right) != _trains_entropy(wrong)),
    Entry("screen", "slime", "keep",
          "The distance of a sample is averaged over tool output too, so long observations hide it.",
          lambda fn: bind(
              fn, role="keep",
              args={"now": _samples("logp_current"), "then": _samples("logp_old"),
                    "signs": lambda case: case.sequence("outcome"), "spans": _samples("trainable")},
              options={"far": 0.1}, variants={"far": (0.02, 0.3)}),
          per_row("keep", "keep", _screened), neutral=True, unusual=True),
    Entry("RolloutManager._post_process", "slime", "reward_normalisation",
          "The rewards are normalised in place, so those that are logged as raw are not.", _post_processed,
          together(per_row("raw", "carried", lambda rows, o: [r.reward for r in rows]),
                   per_row("reward", "reward", _normalised)), neutral=True, several=True),
    Entry("vanilla_tis_function", "slime", "policy_loss",
          "The loss is multiplied by the factor as it was before it was truncated; only the metric knows the bound.",
          _truncated,
          together(per_token("loss", "term", lambda r, t, o: r.token_loss[t] * _weight(r, t, o)),
                   _mean_of("tis", lambda r, t, o: loops.exp(MISMATCH(r, t))), _mean_of("clipped", _is_truncated),
                   _mean_of("apart", lambda r, t, o: abs(loops.exp(MISMATCH(r, t)) - 1))),
          several=True, single=True),
    Entry("token_objective", "slime", "policy_loss",
          "The weight is not detached, so inside the bounds it has a gradient of its own.", _objective,
          per_token("loss", "term", _objective_value, detached=True), neutral=True, unusual=True,
          differs=lambda right, wrong: abs(_slope(right) - _slope(wrong)) > 1e-9),
]  # fmt: skip
