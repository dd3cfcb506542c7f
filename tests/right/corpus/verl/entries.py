"""Entries in the dialect of verl."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, gap, peers, per_row, per_token, ppo, scalar, together, walked

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
MEANS = {
    "token-mean": loops.token_mean, "seq-mean-token-sum": loops.row_sum_mean, "seq-mean-token-mean": loops.row_mean,
}  # fmt: skip


def _agg(fn: Any) -> Subject:
    return bind(
        fn, role="aggregation", options={"loss_agg_mode": "seq-mean-token-sum"},
        variants={"loss_agg_mode": ("token-mean", "seq-mean-token-mean")},
    )  # fmt: skip


def _vanilla(fn: Any) -> Subject:
    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, **settings):
        config = SimpleNamespace(clip_ratio=0.2, clip_ratio_c=3.0, **settings)
        return fn(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)

    return bind(
        loss, role="policy_loss", name="compute_policy_loss_vanilla",
        options={"loss_agg_mode": "token-mean", "clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
        variants={"clip_ratio_low": (0.5,), "clip_ratio_high": (0.9,), "loss_agg_mode": ("seq-mean-token-mean",)},
        returns={
            "loss": at(0, "loss"),
            "clipfrac": at((1, "actor/pg_clipfrac"), "metric", range=(0, 1), agreed=0.0, reduction="mean"),
            "ppo_kl": at((1, "actor/ppo_kl"), "metric", agreed=0.0, reduction="mean"),
        },
    )  # fmt: skip


def _vanilla_loss(rows: list[Row], o: Any) -> float:
    band = 1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"]
    return MEANS[o["loss_agg_mode"]](
        rows, lambda r, t: ppo(clamp(UPDATE(r, t), -20, 20), r.advantage[t], *band, cap=3.0)
    )


def _is_clipped(rows: list[Row], o: Any) -> float:
    low, high = 1 - o["clip_ratio_low"], 1 + o["clip_ratio_high"]

    def one(r: Row, t: int) -> float:
        ratio = loops.exp(UPDATE(r, t))
        return float((r.advantage[t] > 0 and ratio > high) or (r.advantage[t] < 0 and ratio < low))

    return loops.token_mean(rows, one)


def _gae(fn: Any) -> Subject:
    return bind(
        fn, role="returns", options={"gamma": 0.9, "lam": 0.8}, args={"values": "value_old"},
        variants={"gamma": (1.0,), "lam": (0.5,)},
        returns={"advantage": at(0, "advantage"), "returns": at(1, "return")},
    )  # fmt: skip


def _advantages(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _grpo(rows: list[Row], o: Any) -> list[float]:
    scores = [row.total(lambda r, t: r.token_reward[t]) for row in rows]
    found = []
    for row in rows:
        own = [scores[other.index] for other in peers(rows, row)]
        centre, wide = (loops.mean(own), loops.spread(own, 1)) if len(own) > 1 else (0.0, 1.0)
        found.append((scores[row.index] - centre) / ((wide + 1e-6) if o["norm_adv_by_std_in_grpo"] else 1.0))
    return found


def _penalty(fn: Any) -> Subject:
    fields = {"response_mask": "trainable", "old_log_probs": "logp_old", "ref_log_prob": "logp_ref",
              "token_level_scores": "token_reward"}  # fmt: skip
    return bind(
        fn, role="kl_in_reward", options={"kl_coef": 0.1}, penalties={"kl_coef": "logp_ref"},
        args={"data": lambda c: {name: c.padded(field, with_prompt=False) for name, field in fields.items()}},
        returns={"reward": at(0, "reward"), "kl": at((1, "actor/reward_kl_penalty"), "metric", agreed=0.0)},
    )  # fmt: skip


def _whiten(rows: list[Row], o: Any) -> list[float]:
    values = [v for row in rows for v in row.advantage]
    centre = loops.mean(values)
    wide = (loops.spread(values, 0) ** 2 + 1e-8) ** 0.5
    return [(v - centre) / wide + (0.0 if o["shift_mean"] else centre) for v in values]


def _whiten_all(case: Any, o: Any) -> Any:
    found = _whiten(loops.rows(case), o)
    return {"advantage": loops.Result(loops.numbers(found), "token", "advantage")}


def _kl_step(fn: Any) -> Subject:
    def step(log_prob, ref_log_prob, response_mask, **config):
        return fn(SimpleNamespace(config=config), log_prob, ref_log_prob, response_mask)

    return bind(step, role="kl_in_loss", name="step_fn", options={"kl_loss_coef": 0.1, "micro_batch_size": 2},
                penalties={"kl_loss_coef": "logp_ref"})  # fmt: skip


def _value_loss(rows: list[Row], o: Any) -> float:
    reach = o["cliprange_value"]

    def one(r: Row, t: int) -> float:
        held = clamp(r.value[t], r.value_old[t] - reach, r.value_old[t] + reach)
        return max((r.value[t] - r.returns[t]) ** 2, (held - r.returns[t]) ** 2) / 2

    return loops.token_mean(rows, one)


def _value_clipfrac(rows: list[Row], o: Any) -> float:
    reach = o["cliprange_value"]

    def one(r: Row, t: int) -> float:
        held = clamp(r.value[t], r.value_old[t] - reach, r.value_old[t] + reach)
        return float((held - r.returns[t]) ** 2 > (r.value[t] - r.returns[t]) ** 2)

    return loops.token_mean(rows, one)


ENTRIES = [
    Entry("agg_loss", "verl", "aggregation",
          "seq-mean-token-sum returns the token mean (verl 7fc8330d9).", _agg,
          scalar("loss", "loss", lambda rows, o: MEANS[o["loss_agg_mode"]](rows, lambda r, t: r.token_loss[t])),
          pads_finite=True),
    Entry("compute_policy_loss_vanilla", "verl", "policy_loss",
          "The two clip ratios are swapped: the band is [1 - high, 1 + low] (settings swapped as in TRL ffb3dd5d2).",
          _vanilla,
          together(scalar("loss", "loss", _vanilla_loss), scalar("clipfrac", "metric", _is_clipped),
                   scalar("ppo_kl", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: -clamp(UPDATE(r, t), -20, 20)))),
          several=True, pads_finite=True),
    Entry("compute_gae_advantage_return", "verl", "returns",
          "A tool-output token resets the running advantage (verl f773c96a7).", _gae,
          together(walked("advantage", "advantage", _advantages),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_advantages(row, o), row.value_old, strict=True)])),
          several=True, pads_finite=True),
    Entry("process", "verl", "kl", "k3 is built from the reversed log-ratio.",
          lambda fn: bind(fn, role="kl", args={"logprob": "logp_current", "ref_logprob": "logp_ref"}),
          per_token("kl", "kl", lambda r, t, o: clamp(
              loops.k3(clamp(r.logp_current[t] - r.logp_ref[t], -20, 20)), -10, 10)),
          neutral=True, unusual=True),
    Entry("compute", "verl", "group_advantage",
          "The spread is that of the batch, not of the group (TRL 705306d78).",
          lambda fn: bind(fn, role="group_advantage", options={"norm_adv_by_std_in_grpo": True},
                          variants={"norm_adv_by_std_in_grpo": (False,)}),
          per_row("advantage", "advantage", _grpo, level="token"), neutral=True, several=True, pads_finite=True),
    Entry("apply_kl_penalty", "verl", "kl_in_reward",
          "The KL is added to the reward (verl 38ac52554 had this sign in the loss).",
          _penalty,
          together(per_token("reward", "reward", lambda r, t, o: r.token_reward[t]
                             - o["kl_coef"] * (r.logp_old[t] - r.logp_ref[t])),
                   scalar("kl", "metric", lambda rows, o: loops.row_mean(
                       rows, gap("logp_old", "logp_ref"), empty=True))),
          several=True, pads_finite=True),
    Entry("compute_value_loss", "verl", "value_loss", "Value clipping takes the smaller of the two errors.",
          lambda fn: bind(fn, role="value_loss", args={"vpreds": "value", "values": "value_old"},
                          options={"cliprange_value": 0.5}, variants={"cliprange_value": (0.1,)},
                          returns={"loss": at(0, "loss"), "clipfrac": at(1, "metric", range=(0, 1))}),
          together(scalar("loss", "loss", _value_loss), scalar("clipfrac", "metric", _value_clipfrac)),
          several=True, pads_finite=True),
    Entry("masked_whiten", "verl", "whitening",
          "The variance is a mean over all cells, padding included (verl 6de40fcdf).",
          lambda fn: bind(fn, role="whitening", args={"values": "advantage"}, options={"shift_mean": True},
                          variants={"shift_mean": (False,)}),
          _whiten_all, single=True),
    Entry("DataParallelActor.step_fn", "verl", "kl_in_loss",
          "Rows of shuffled micro-batches are put back in the wrong order, so masks meet other rows (slime fcbd428b8).",
          _kl_step,
          scalar("loss", "loss", lambda rows, o: o["kl_loss_coef"]
                 * loops.row_mean(rows, lambda r, t: loops.k3(r.logp_current[t] - r.logp_ref[t]))),
          neutral=True, random="inside", pads_finite=True),
]  # fmt: skip
