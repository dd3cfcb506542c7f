"""Entries in the dialect of NeMo-RL."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.telling import parts_differ
from tests.right.loops import Row, clamp, exp, gap, per_token, ppo, scalar, together
from tests.right.shapes import whole_tokens

from trimtab.sentinel import Subject, at, bind

DRIFT = gap("logp_old", "logp_rollout")


def _clipped(cls: Any) -> Subject:
    def loss(curr_logprobs, prev_logprobs, reference_policy_logprobs, advantages, token_mask, sample_mask,
             global_valid_toks, **cfg):  # fmt: skip
        data = {"prev_logprobs": prev_logprobs, "reference_policy_logprobs": reference_policy_logprobs,
                "advantages": advantages, "token_mask": token_mask, "sample_mask": sample_mask}  # fmt: skip
        return cls(cfg)(curr_logprobs, data, global_valid_toks)

    return bind(
        loss, role="policy_loss", name="ClippedPGLossFn",
        args={"curr_logprobs": "logp_current", "prev_logprobs": "logp_old", "reference_policy_logprobs": "logp_ref",
              "advantages": "advantage", "token_mask": "chosen", "sample_mask": lambda case: case.sequence("in_use"),
              "global_valid_toks": whole_tokens},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "reference_policy_kl_penalty": 0.05},
        variants={"ratio_clip_min": (0.5,), "ratio_clip_max": (0.6,), "reference_policy_kl_penalty": (0.0,)},
        penalties={"reference_policy_kl_penalty": "logp_ref"},
        returns={"loss": at(0, "loss"), "kl": at((1, "kl_penalty"), "metric", reduction="sum")},
    )  # fmt: skip


def _share(rows: list[Row], value: Any) -> float:
    return sum(r.total(value) for r in rows) / max(whole_tokens(rows[0].case), 1) if rows else 0.0


def _kl(rows: list[Row], o: Any) -> float:
    return o["reference_policy_kl_penalty"] * _share(
        rows, lambda r, t: loops.k3(r.logp_current[t] - r.logp_ref[t]))  # fmt: skip


def _loss(rows: list[Row], o: Any) -> float:
    return _kl(rows, o) + _share(rows, lambda r, t: ppo(
        r.logp_current[t] - r.logp_old[t], r.advantage[t], 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"]
    ))  # fmt: skip


def _baseline(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        others = [p.reward for p in loops.peers(rows, row)
                  if p.votes and not (o["leave_one_out_baseline"] and p.index == row.index)]  # fmt: skip
        found.append(row.reward - loops.mean(others) if others else 0.0)
    return found


def _estimate(r: Row, t: int, o: Any) -> float:
    x = clamp(r.logp_current[t] - r.logp_ref[t], -20, 20)
    value = {"k1": x, "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_type"]]
    return clamp(value, -o["output_clamp_value"], o["output_clamp_value"])


def _value(method: Any) -> Subject:
    def loss(values, old_values, returns, token_mask, global_valid_toks, value_clip):
        data = {"old_values": old_values, "returns": returns, "token_mask": token_mask}
        return method(SimpleNamespace(value_clip=value_clip), values, data, global_valid_toks)

    return bind(
        loss, role="value_loss", name="MseValueLossFn.evaluate",
        args={"values": "value", "old_values": "value_old", "returns": "returns", "token_mask": "trainable",
              "global_valid_toks": whole_tokens},
        options={"value_clip": 0.3}, variants={"value_clip": (1.0,)},
        returns={"loss": at(0, "loss"), "mean_value": at((1, "mean_value"), "metric", reduction="mean")},
    )  # fmt: skip


def _error(r: Row, t: int, o: Any) -> float:
    near = r.value_old[t] + clamp(r.value[t] - r.value_old[t], -o["value_clip"], o["value_clip"])
    return max((r.value[t] - r.returns[t]) ** 2, (near - r.returns[t]) ** 2) / 2


def _summary(fn: Any) -> Subject:
    def logged(prev_logprobs, generation_logprobs, token_mask, sample_mask):
        return fn({"prev_logprobs": prev_logprobs, "generation_logprobs": generation_logprobs,
                   "token_mask": token_mask, "sample_mask": sample_mask})  # fmt: skip

    return bind(
        logged, role="metric", name="summarize",
        args={"prev_logprobs": "logp_old", "generation_logprobs": "logp_rollout", "token_mask": "chosen",
              "sample_mask": lambda case: case.sequence("in_use")},
        returns={"error": at("token_mult_prob_error", "metric", agreed=1.0, reduction="mean"),
                 "low": at("probs_ratio_min", "metric", agreed=1.0, reduction="min"),
                 "high": at("probs_ratio_max", "metric", agreed=1.0, reduction="max")},
    )  # fmt: skip


def _ratios(rows: list[Row]) -> list[float]:
    return [exp(DRIFT(r, t)) for r in rows for t in range(r.count)]


ENTRIES = [
    Entry("ClippedPGLossFn", "nemo_rl", "policy_loss",
          "The actor loss is normalised by the tokens of its micro-batch (NeMo-RL bb75f66a5).", _clipped,
          together(scalar("loss", "loss", _loss), scalar("kl", "metric", _kl)), several=True,
          differs=parts_differ(_clipped)),
    Entry("finish", "nemo_rl", "group_advantage",
          "Suppressed samples stay out of the sum but are counted in the mean.",
          lambda fn: bind(
              fn, role="group_advantage", args={"prompt_ids": "group", "rewards": "reward", "valid_mask": "votes"},
              options={"leave_one_out_baseline": True}, variants={"leave_one_out_baseline": (False,)}),
          loops.per_row("advantage", "advantage", _baseline), neutral=True),
    Entry("calculate_kl", "nemo_rl", "kl", "k2 forgets its half.",
          lambda fn: bind(
              fn, role="kl", args={"logprobs": "logp_current", "logprobs_reference": "logp_ref"},
              options={"kl_type": "k3", "output_clamp_value": 10.0},
              variants={"kl_type": ("k1", "k2"), "output_clamp_value": (0.1,)}),
          per_token("kl", "kl", _estimate), single=True),
    Entry("MseValueLossFn.evaluate", "nemo_rl", "value_loss",
          "Values are clipped around the returns, so the clipped error is the clip.", _value,
          together(scalar("loss", "loss", lambda rows, o: _share(rows, lambda r, t: _error(r, t, o))),
                   scalar("mean_value", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: r.value[t]))),
          neutral=True, several=True),
    Entry("filter_it", "nemo_rl", "keep",
          "The product of the ratios is compared with the band: long sequences are dropped.",
          lambda fn: bind(
              fn, role="keep", args={"prev_logprobs": "logp_old", "generation_logprobs": "logp_rollout",
                                     "token_mask": "trainable"},
              options={"low": 0.9, "high": 1.1}, variants={"low": (0.99,), "high": (1.01,)},
              returns={"keep": at((), "keep", scope="sequence", pair=("logp_old", "logp_rollout"))}),
          per_token("keep", "keep", lambda r, t, o: float(o["low"] <= exp(r.mean(DRIFT)) <= o["high"])),
          neutral=True),
    Entry("summarize", "nemo_rl", "metric", "The smallest ratio is that of masked cells, which hold 0.", _summary,
          together(scalar("error", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: exp(abs(DRIFT(r, t))))),
                   scalar("low", "metric", lambda rows, o: min(_ratios(rows), default=0.0)),
                   scalar("high", "metric", lambda rows, o: max(_ratios(rows), default=0.0))),
          neutral=True, several=True),
]  # fmt: skip
