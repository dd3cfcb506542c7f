"""Entries in the dialect of verl."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, exp, gap, per_token, ppo, scalar, together, walked

from trimtab.sentinel import Subject, at, bind
from trimtab.sentinel.binding.subject import Result
from trimtab.sentinel.targets.handed import group_names, reward_on_last

UPDATE = gap("logp_current", "logp_old")


def _gspo(fn: Any) -> Subject:
    def loss(old_log_prob, log_prob, advantages, response_mask, clip_ratio_low, clip_ratio_high):
        config = SimpleNamespace(clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
        return fn(old_log_prob, log_prob, advantages, response_mask, config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_gspo",
        args={"old_log_prob": "logp_old", "log_prob": "logp_current", "advantages": "advantage",
              "response_mask": "trainable"},
        options={"clip_ratio_low": 0.1, "clip_ratio_high": 0.15},
        variants={"clip_ratio_low": (0.5,), "clip_ratio_high": (0.6,)},
        returns={"loss": at(0, "loss"),
                 "clipfrac": at((1, "actor/pg_clipfrac"), "metric", range=(0, 1), agreed=0.0, reduction="mean"),
                 "ppo_kl": at((1, "actor/ppo_kl"), "metric", agreed=0.0, reduction="mean")},
    )  # fmt: skip


def _sequence_gap(r: Row) -> float:
    return min(r.mean(UPDATE), 10.0)


def _gspo_token(r: Row, t: int, o: Any) -> float:
    return ppo(_sequence_gap(r), r.advantage[t], 1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"])


def _gspo_clipped(r: Row, t: int, o: Any) -> float:
    ratio, credit = exp(_sequence_gap(r)), r.advantage[t]
    return float(-credit * clamp(ratio, 1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"]) > -credit * ratio)


def _raw(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _white(case: Any, o: Any) -> Any:
    raw = [a for row in loops.rows(case) for a in _raw(row, o)]
    centre, size = loops.mean(raw), (loops.spread(raw, 1) ** 2 + 1e-8) ** 0.5
    return {"advantage": Result(loops.numbers([(a - centre) / size for a in raw]), "token", "advantage")}


def _penalty(fn: Any) -> Subject:
    def shaped(old_log_probs, ref_log_prob, token_level_scores, response_mask, beta, kl_penalty):
        data = {"old_log_probs": old_log_probs, "ref_log_prob": ref_log_prob,
                "token_level_scores": token_level_scores, "response_mask": response_mask}  # fmt: skip
        return fn(data, SimpleNamespace(value=beta), kl_penalty)

    return bind(
        shaped, role="kl_in_reward", name="apply_kl_penalty",
        args={"old_log_probs": "logp_old", "ref_log_prob": "logp_ref", "token_level_scores": "token_reward",
              "response_mask": "trainable"},
        options={"beta": 0.05, "kl_penalty": "kl"}, variants={"beta": (0.5,), "kl_penalty": ("abs", "mse")},
        returns={"reward": at((0, "token_level_rewards"), "reward"),
                 "kl": at((1, "actor/reward_kl_penalty"), "metric", agreed=0.0)},
    )  # fmt: skip


def _kl(r: Row, t: int, o: Any) -> float:
    x = r.logp_old[t] - r.logp_ref[t]
    return {"kl": x, "abs": abs(x), "mse": x * x / 2}[o["kl_penalty"]]


def _micro(method: Any) -> Subject:
    def forward(logits, responses, temperature):
        return method(SimpleNamespace(config={"temperature": temperature}), logits, responses)

    return bind(
        forward, role="logp", name="Actor.forward_micro", args={"logits": "logits", "responses": "token_id"},
        options={"temperature": 0.7}, variants={"temperature": (1.0, 1.5)}, temperature="temperature",
        returns={"logp": at(0, "logp"), "entropy": at(1, "entropy")},
    )  # fmt: skip


def _weight(r: Row, t: int, o: Any) -> float:
    x = gap("logp_old", "logp_rollout")
    size = r.total(x) if o["rollout_is"] == "sequence" else x(r, t)
    return min(exp(clamp(size, -20, 20)), o["rollout_is_threshold"])


def _largest(rows: list[Row], o: Any) -> float:
    x = gap("logp_old", "logp_rollout")
    sizes = [r.total(x) if o["rollout_is"] == "sequence" else x(r, t) for r in rows for t in range(r.count)]
    return exp(clamp(max(sizes), -20, 20)) if sizes else 0.0


def _grpo(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    paid = {r.index: r.reward if r.count else 0.0 for r in rows}
    for row in rows:
        group = [paid[p.index] for p in loops.peers(rows, row)]
        centred = paid[row.index] - (loops.mean(group) if len(group) > 1 else 0.0)
        scaled = o["norm_adv_by_std_in_grpo"] and len(group) > 1
        found.append(centred / (loops.spread(group, 1) + 1e-6) if scaled else centred)
    return found


ENTRIES = [
    Entry("compute_policy_loss_gspo", "verl", "policy_loss",
          "The sequence ratio sums the log-ratios of all cells: the mask is forgotten in the numerator.", _gspo,
          together(
              scalar("loss", "loss", lambda rows, o: loops.row_mean(rows, lambda r, t: _gspo_token(r, t, o)),
                     detached=True),
              scalar("clipfrac", "metric",
                     lambda rows, o: loops.token_mean(rows, lambda r, t: _gspo_clipped(r, t, o))),
              scalar("ppo_kl", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: -UPDATE(r, t)))),
          several=True, single=True),
    Entry("estimate", "verl", "returns", "The returns of the critic are made from the whitened advantages.",
          lambda fn: bind(
              fn, role="returns", couples="batch", args={"token_level_rewards": "token_reward", "values": "value_old",
                                                         "response_mask": "trainable"},
              options={"gamma": 0.97, "lam": 0.9}, variants={"gamma": (0.8,), "lam": (0.5,)},
              returns={"advantage": at(0, "advantage"), "returns": at(1, "return")}),
          together(_white, walked("returns", "return", lambda row, o: [
              a + v for a, v in zip(_raw(row, o), row.value_old, strict=True)])),
          neutral=True, several=True),
    Entry("apply_kl_penalty", "verl", "kl_in_reward",
          "The logged KL is averaged over the padded width of each row.", _penalty,
          together(per_token("reward", "reward", lambda r, t, o: r.token_reward[t] - o["beta"] * _kl(r, t, o)),
                   scalar("kl", "metric", lambda rows, o: loops.row_mean(
                       rows, lambda r, t: _kl(r, t, o), empty=True))),
          several=True),
    Entry("Actor.forward_micro", "verl", "logp",
          "The entropy mixes scaled log-probs with unscaled logits.", _micro,
          together(per_token("logp", "logp", lambda r, t, o: loops.log_softmax(
                       r.logits[t], o["temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          neutral=True, several=True),
    Entry("compute_rollout_correction", "verl", "importance",
          "Weights of sequences are never truncated (OpenRLHF 3c3be6234).",
          lambda fn: bind(
              fn, role="importance", args={"old_log_prob": "logp_old", "rollout_log_prob": "logp_rollout",
                                           "response_mask": "trainable"},
              options={"rollout_is": "token", "rollout_is_threshold": 2.0},
              variants={"rollout_is": ("sequence",), "rollout_is_threshold": (1.2,)},
              returns={"weight": at(0, "importance", pair=("logp_old", "logp_rollout")),
                       "largest": at((1, "rollout_is_max"), "metric", reduction="max")}),
          together(per_token("weight", "importance", _weight), scalar("largest", "metric", _largest)),
          several=True),
    Entry("compute_grpo_outcome_advantage", "verl", "group_advantage",
          "The option that leaves out the standard deviation leaves out the mean instead.",
          lambda fn: bind(
              fn, role="group_advantage", args={"token_level_rewards": lambda case: reward_on_last(case, trained=True),
                                                "response_mask": "trainable", "index": group_names},
              options={"norm_adv_by_std_in_grpo": True}, variants={"norm_adv_by_std_in_grpo": (False,)}),
          loops.per_row("advantage", "advantage", _grpo, level="token")),
]  # fmt: skip
