"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.areal.right import NormConfig
from tests.right.loops import Row, clamp, exp, per_token, ppo, scalar, together, walked
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Subject, at, bind


def _actor(r: Row, t: int, o: Any) -> float:
    weight = exp(r.logp_old[t] - r.logp_rollout[t])
    if o["behav_imp_weight_cap"] is not None and weight > o["behav_imp_weight_cap"]:
        return 0.0
    return weight * ppo(r.logp_current[t] - r.logp_old[t], r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip"])


def _behave(r: Row, t: int, o: Any) -> float:
    weight = exp(r.logp_old[t] - r.logp_rollout[t])
    return 0.0 if o["behav_imp_weight_cap"] is not None and weight > o["behav_imp_weight_cap"] else weight


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["discount"], o["gae_lambda"])


def _norm(method: Any) -> Subject:
    def run(x, group_ids, **settings):
        config = NormConfig(**settings)
        return method(SimpleNamespace(mean_level=config.mean_level, std_level=config.std_level, eps=config.eps),
                      x, group_ids)  # fmt: skip

    return bind(
        run, role="reward_normalisation", name="Normalization.run", couples="batch",
        args={"x": "reward", "group_ids": "group"}, options={"mean_level": "group", "std_level": "group"},
        variants={"mean_level": ("batch", None), "std_level": ("batch", None)},
    )  # fmt: skip


def _normalised(rows: list[Row], o: Any) -> list[float]:
    everything = [r.reward for r in rows]
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        centre = {"group": loops.mean(group), "batch": loops.mean(everything), None: 0.0}[o["mean_level"]]
        size = {"group": loops.spread(group, 0) + 1e-5, "batch": loops.spread(everything, 0) + 1e-5, None: 1.0}
        found.append((row.reward - centre) / size[o["std_level"]])
    return found


def _lengths(case: Case) -> torch.Tensor:
    case.sequence("length")
    return torch.tensor(case.response_lengths)


def _penalised(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        over = row.case.response_lengths[row.index] - (o["max_response_length"] - o["overlong_tokens"])
        share = clamp(over / o["overlong_tokens"], 0.0, 1.0)
        found.append(row.reward - share * o["overlong_penalty_factor"])
    return found


def _prepare(method: Any) -> Subject:
    def prepared(rewards, logprobs, ref_logp, loss_mask, **settings):
        data = {"rewards": rewards, "logprobs": logprobs, "ref_logp": ref_logp, "loss_mask": loss_mask}
        return method(SimpleNamespace(config=SimpleNamespace(**settings)), data)

    return bind(
        prepared, role="kl_in_reward", name="PPOActor.prepare",
        args={"rewards": "reward", "logprobs": "logp_old", "ref_logp": "logp_ref", "loss_mask": "trainable"},
        options={"kl_ctl": 0.1, "reward_bias": -0.5, "reward_scaling": 2.0, "reward_clip": 1.5},
        variants={"kl_ctl": (0.4,), "reward_scaling": (1.0,), "reward_clip": (0.6,)},
    )  # fmt: skip


def _paid(row: Row, o: Any) -> list[float]:
    score = clamp((row.reward + o["reward_bias"]) * o["reward_scaling"], -o["reward_clip"], o["reward_clip"])
    return [-o["kl_ctl"] * (row.logp_old[t] - row.logp_ref[t]) + (score if t == row.count - 1 else 0.0)
            for t in range(row.count)]  # fmt: skip


ENTRIES = [
    Entry("ppo_actor_loss_fn", "areal", "policy_loss",
          "The cap on the behaviour weight is compared with its logarithm.",
          lambda fn: bind(
              fn, role="policy_loss", layout="packed",
              args={"logprobs": "logp_current", "proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout",
                    "advantages": "advantage", "loss_mask": "trainable"},
              options={"eps_clip": 0.2, "behav_imp_weight_cap": 1.2},
              variants={"eps_clip": (0.4,), "behav_imp_weight_cap": (None,)},
              returns={"loss": at(0, "loss"), "behave": at((1, "behave_imp_weight"), "importance", level="token",
                                                            pair=("logp_old", "logp_rollout"))}),
          together(scalar("loss", "loss", lambda rows, o: loops.token_mean(rows, lambda r, t: _actor(r, t, o))),
                   per_token("behave", "importance", _behave)), several=True),
    Entry("compute", "areal", "returns", "The next value is discounted by gamma and lambda.",
          lambda fn: bind(
              fn, role="returns", layout="packed",
              args={"rewards": "token_reward", "values": "value_old", "cu_seqlens": lambda case: case.cu_seqlens,
                    "loss_mask": "trainable"},
              options={"discount": 0.95, "gae_lambda": 0.8}, variants={"discount": (1.0,), "gae_lambda": (1.0,)},
              returns={"advantage": at(0, "advantage", level="token"), "returns": at(1, "return", level="token")}),
          together(walked("advantage", "advantage", _advantages), walked("returns", "return", lambda row, o: [
              a + v for a, v in zip(_advantages(row, o), row.value_old, strict=True)])),
          neutral=True, several=True),
    Entry("Normalization.run", "areal", "reward_normalisation",
          "The deviation of a group is its root mean square: the mean is not taken off.", _norm,
          loops.per_row("advantage", "advantage", _normalised), neutral=True, unusual=True),
    Entry("gather_logprobs", "areal", "logp", "The temperature divides log-probs instead of logits.",
          lambda fn: bind(
              fn, role="logp", view={"with_prompt": True, "shift": True},
              args={"logits": lambda case: prompted(case).logits(), "input_ids": lambda case: case.padded("token_id")},
              options={"temperature": 0.5}, variants={"temperature": (1.0, 1.3)}, temperature="temperature"),
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          single=True),
    Entry("reward_overlong_penalty", "areal", None, "Whole division: the penalty is nothing or everything.",
          lambda fn: bind(
              fn, args={"reward_score": "reward", "response_lengths": _lengths},
              options={"overlong_tokens": 3, "overlong_penalty_factor": 0.5, "max_response_length": 4},
              variants={"overlong_tokens": (2,), "overlong_penalty_factor": (1.0,), "max_response_length": (6,)},
              returns={"reward": at((), "reward", level="sequence")}),
          loops.per_row("reward", "reward", _penalised), single=True, unusual=True),
    Entry("PPOActor.prepare", "areal", "kl_in_reward", "The score is clipped before it is scaled.", _prepare,
          walked("reward", "reward", _paid), neutral=True),
]  # fmt: skip
