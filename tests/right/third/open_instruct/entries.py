"""Entries in the dialect of open-instruct."""

from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together
from tests.right.shapes import as_array, in_pairs, whole_tokens

from trimtab.sentinel import Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
AWAY = gap("logp_current", "logp_ref")


def _loss(fn: Any) -> Subject:
    def loss(
        new_logprobs, old_logprobs, vllm_logprobs, ref_logprobs, advantages, response_mask,
        clip_lower, clip_higher, tis_cap, beta,
    ):  # fmt: skip
        config = SimpleNamespace(clip_lower=clip_lower, clip_higher=clip_higher, beta=beta,
                                 truncated_importance_sampling_ratio_cap=tis_cap)  # fmt: skip
        return fn(new_logprobs, old_logprobs, vllm_logprobs, ref_logprobs, advantages, response_mask, config)

    return bind(
        loss, role="policy_loss", name="compute_grpo_loss",
        args={"new_logprobs": "logp_current", "old_logprobs": "logp_old", "vllm_logprobs": "logp_rollout",
              "ref_logprobs": "logp_ref", "advantages": "advantage", "response_mask": "trainable"},
        options={"clip_lower": 0.2, "clip_higher": 0.28, "tis_cap": 2.0, "beta": 0.05},
        variants={"clip_lower": (0.1,), "clip_higher": (0.5,), "tis_cap": (1.1, 0.0), "beta": (0.0,)},
        returns={"loss": at("loss", "loss"), "kl": at("objective/kl", "metric")},
    )  # fmt: skip


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        weight = min(loops.exp(r.logp_old[t] - r.logp_rollout[t]), o["tis_cap"]) if o["tis_cap"] > 0 else 1.0
        clipped = ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_lower"], 1 + o["clip_higher"])
        return weight * clipped + o["beta"] * loops.k3(AWAY(r, t))

    return loops.token_mean(rows, one)


def _scored(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = [p.reward for p in loops.peers(rows, row)]
        size = loops.spread(group, 0) + 1e-8 if o["advantage_normalization_type"] == "standard" else 1.0
        found.append((row.reward - loops.mean(group)) / size)
    return found


def _inner(method: Any) -> Subject:
    def loss(local_logprobs, old_logprobs, advantages, response_mask, accumulated_tokens, clip_higher):
        process = SimpleNamespace(args=SimpleNamespace(clip_higher=clip_higher))
        return method(process, local_logprobs, old_logprobs, advantages, response_mask, accumulated_tokens)

    return bind(
        loss, role="policy_loss", name="PolicyTrainerRayProcess.inner",
        args={"local_logprobs": "logp_current", "old_logprobs": "logp_old", "advantages": "advantage",
              "response_mask": "trainable", "accumulated_tokens": whole_tokens},
        options={"clip_higher": 0.28}, variants={"clip_higher": (0.05,)},
    )  # fmt: skip


def _inner_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return -r.advantage[t] * min(loops.exp(UPDATE(r, t)), 1 + o["clip_higher"]) * r.logp_current[t]

    return sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1)


ENTRIES = [
    Entry("compute_grpo_loss", "open_instruct", "policy_loss",
          "The importance weight multiplies the plain surrogate, but not the clipped one.", _loss,
          together(scalar("loss", "loss", _loss_value),
                   scalar("kl", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: loops.k3(AWAY(r, t))))),
          several=True, pads_finite=True),
    Entry("calculate_advantages", "open_instruct", "group_advantage",
          "Only the mean is divided by the spread: a pair of brackets is missing.",
          lambda fn: bind(
              fn, role="group_advantage", args={"scores": lambda case: as_array(in_pairs("reward")(case))},
              options={"num_samples_per_prompt_rollout": 2, "advantage_normalization_type": "standard"},
              variants={"advantage_normalization_type": ("centered",)}),
          per_row("advantage", "advantage", _scored)),
    Entry("estimate", "open_instruct", "kl",
          "The log-ratio is subtracted in the third estimate, so that it can be negative.",
          lambda fn: bind(
              fn, role="kl", args={"new_logprobs": "logp_current", "ref_logprobs": "logp_ref"},
              returns={"k1": at(0, "kl"), "k2": at(1, "kl"), "k3": at(2, "kl")}),
          together(per_token("k1", "kl", lambda r, t, o: AWAY(r, t)),
                   per_token("k2", "kl", lambda r, t, o: AWAY(r, t) ** 2 / 2),
                   per_token("k3", "kl", lambda r, t, o: loops.k3(AWAY(r, t)))),
          neutral=True, several=True),
    Entry("PolicyTrainerRayProcess.inner", "open_instruct", "policy_loss",
          "The upper bound of the weight is the width of the band, not one plus the width.", _inner,
          scalar("loss", "loss", _inner_value, detached=True), neutral=True, several=True, pads_finite=True),
]  # fmt: skip
