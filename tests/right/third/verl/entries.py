"""Entries in the dialect of verl."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together

from trimtab.sentinel import Subject, at, bind
from trimtab.sentinel.targets.handed import reward_on_last

UPDATE = gap("logp_current", "logp_old")
DRIFT = gap("logp_old", "logp_ref")


class _Config(SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def _vanilla(fn: Any) -> Subject:
    def loss(
        old_log_prob, log_prob, advantages, response_mask, clip_ratio_low, clip_ratio_high, clip_ratio_c, loss_agg_mode
    ):
        config = _Config(clip_ratio=0.2, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high,
                         clip_ratio_c=clip_ratio_c)  # fmt: skip
        return fn(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_vanilla",
        options={"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean"},
        variants={"clip_ratio_low": (0.1,), "clip_ratio_high": (0.5,), "clip_ratio_c": (1.5,),
                  "loss_agg_mode": ("seq-mean-token-sum", "seq-mean-token-mean")},
        returns={"loss": at(0, "loss"), "clipfrac": at((1, "actor/pg_clipfrac"), "metric"),
                 "ppo_kl": at((1, "actor/ppo_kl"), "metric")},
    )  # fmt: skip


def _vanilla_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        band = (1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"])
        return ppo(loops.clamp(UPDATE(r, t), -20, 20), r.advantage[t], *band, o["clip_ratio_c"])

    averages = {"token-mean": loops.token_mean, "seq-mean-token-sum": loops.row_sum_mean}
    return averages.get(o["loss_agg_mode"], loops.row_mean)(rows, one)


def _is_clipped(o: Any) -> Any:
    def clipped(r: Row, t: int) -> float:
        ratio = loops.exp(UPDATE(r, t))
        bounded = loops.clamp(ratio, 1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"])
        return float(-r.advantage[t] * bounded > -r.advantage[t] * ratio)

    return clipped


def _on_average(rows: list[Row], value: Any) -> float:
    count = sum(row.count for row in rows)
    return sum(row.total(value) for row in rows) / (count + 1e-8)


def _rloo(fn: Any) -> Subject:
    return bind(
        fn, role="group_advantage",
        args={"token_level_rewards": reward_on_last, "response_mask": "trainable",
              "index": lambda case: case.sequence("group").numpy()},
    )  # fmt: skip


def _rloo_value(rows: list[Row], o: Any) -> list[float]:
    return [r.reward - loops.mean([p.reward for p in loops.peers(rows, r) if p is not r]) for r in rows]


def _penalise_value(r: Row, t: int, o: Any) -> float:
    away = r.logp_current[t] - r.logp_ref[t]
    plain = {"kl": away, "abs": abs(away), "mse": 0.5 * away * away}
    return plain[o["kl_penalty"]] if o["kl_penalty"] in plain else loops.k3(loops.clamp(away, -20, 20))


def _prepared(fn: Any) -> Subject:
    def prepared(token_level_scores, old_log_probs, ref_log_prob, response_mask, attention_mask, kl_coef):
        data = {"token_level_scores": token_level_scores, "old_log_probs": old_log_probs,
                "ref_log_prob": ref_log_prob, "response_mask": response_mask,
                "attention_mask": attention_mask}  # fmt: skip
        return fn(data, SimpleNamespace(value=kl_coef))

    return bind(
        prepared, role="kl_in_reward", name="prepare_rewards",
        args={"token_level_scores": reward_on_last, "old_log_probs": "logp_old", "ref_log_prob": "logp_ref",
              "response_mask": "trainable", "attention_mask": "attention"},
        options={"kl_coef": 0.1}, variants={"kl_coef": (0.5,)},
        returns={"reward": at(0, "reward"), "kl": at((1, "actor/reward_kl_penalty"), "metric")},
    )  # fmt: skip


def _paid(rows: list[Row], o: Any) -> list[float]:
    return [r.reward - o["kl_coef"] * r.total(DRIFT) for r in rows]


def _row_kl(rows: list[Row], o: Any) -> float:
    return loops.mean([r.total(DRIFT) / (r.count + 1e-8) for r in rows])


ENTRIES = [
    Entry("compute_policy_loss_vanilla", "verl", "policy_loss",
          "The logged KL of the update has the wrong sign.", _vanilla,
          together(scalar("loss", "loss", _vanilla_value),
                   scalar("clipfrac", "metric", lambda rows, o: _on_average(rows, _is_clipped(o))),
                   scalar("ppo_kl", "metric", lambda rows, o: _on_average(rows, lambda r, t: -UPDATE(r, t)))),
          several=True),
    Entry("compute_rloo_outcome_advantage", "verl", "group_advantage",
          "The factor n / (n - 1) is applied to the mean, but not to the score.", _rloo,
          per_row("advantage", "advantage", _rloo_value, level="token"), several=True),
    Entry("penalise", "verl", "kl",
          "The low-variance estimate is of the other direction.",
          lambda fn: bind(
              fn, role="kl", args={"logprob": "logp_current", "ref_logprob": "logp_ref"},
              options={"kl_penalty": "low_var_kl"}, variants={"kl_penalty": ("kl", "abs", "mse")}),
          per_token("kl", "kl", _penalise_value), neutral=True),
    Entry("prepare_rewards", "verl", "kl_in_reward",
          "Tool output counts in the KL, because the mask is a slice of the attention mask.", _prepared,
          together(per_row("reward", "reward", _paid), scalar("kl", "metric", _row_kl)), neutral=True, several=True),
]  # fmt: skip
