"""Entries in the dialect of open-instruct."""

from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together
from tests.right.shapes import as_array, in_pairs, prompted, response_width, whole_tokens

from trimtab.sentinel import Case, at, bind

UPDATE = gap("logp_current", "logp_old")
CUT = {"with_prompt": True, "drop_first": True}


def _scores(case: Case) -> Any:
    return as_array(in_pairs("reward")(case))


def _loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_lower"], 1 + o["clip_higher"])

    return sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1)


def _differing(rows: list[Row], o: Any) -> list[float]:
    return [float(len({p.reward for p in loops.peers(rows, row)}) > 1) for row in rows]


def _weight(row: Row, t: int, o: Any) -> float:
    apart = loops.clamp(row.logp_old[t] - row.logp_rollout[t], -10, 10)
    return min(loops.exp(apart), o["truncated_importance_sampling_ratio_cap"])


def _penalty(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        apart = loops.clamp(r.logp_current[t] - r.logp_ref[t], -40, 40)
        return apart**2 / 2 if o["kl_estimator"] == 1 else loops.k3(apart)

    return o["beta"] * sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1)


ENTRIES = [
    Entry("compute_grpo_loss", "open_instruct", "policy_loss",
          "The lower and the higher clip are exchanged.",
          lambda fn: bind(
              fn, role="policy_loss", view=CUT, args={"loss_denominator": whole_tokens},
              options={"clip_lower": 0.1, "clip_higher": 0.4},
              variants={"clip_lower": (0.03,), "clip_higher": (0.05,)}),
          scalar("loss", "loss", _loss)),
    Entry("filter_zero_std", "open_instruct", "keep",
          "The prompts without a signal are kept, the others are left out.",
          lambda fn: bind(
              fn, role="keep", couples="group", args={"scores": _scores},
              options={"num_samples_per_prompt_rollout": 2},
              returns={"keep": at((), "keep", level="sequence", scope="sequence")}),
          per_row("keep", "keep", _differing)),
    Entry("stage_two", "open_instruct", "importance",
          "The weight is engine over trainer.",
          lambda fn: bind(
              fn, role="importance", options={"truncated_importance_sampling_ratio_cap": 2.0},
              variants={"truncated_importance_sampling_ratio_cap": (1.02,)}),
          per_token("importance", "importance", _weight), neutral=True),
    Entry("collate", "open_instruct", "packing",
          "The rows stay sorted by length, so they no longer belong to the advantages of their samples.",
          lambda fn: bind(
              fn, role="packing",
              args={"sequences": lambda case: case.list("logp_rollout", with_prompt=False), "width": response_width}),
          per_token("carried", "carried", lambda r, t, o: r.logp_rollout[t]), neutral=True, unusual=True),
    Entry("forward_logprobs", "open_instruct", "logp",
          "Entropies are those of temperature 1.",
          lambda fn: bind(
              fn, role="logp", view=CUT,
              args={"logits": lambda case: prompted(case).logits(),
                    "query_responses": lambda case: case.padded("token_id")},
              options={"temperature": 0.7}, variants={"temperature": (1.0,)}, temperature="temperature",
              returns={"logp": at(0, "logp"), "entropy": at(1, "entropy")}),
          together(
              per_token("logp", "logp",
                        lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
              per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          several=True, single=True, unusual=True),
    Entry("calc", "open_instruct", "kl_in_loss",
          "k3 has the sign of the other direction.",
          lambda fn: bind(
              fn, role="kl_in_loss", view=CUT, args={"loss_denominator": whole_tokens},
              options={"kl_estimator": 2, "beta": 0.05}, variants={"kl_estimator": (1,), "beta": (0.2,)},
              penalties={"beta": "logp_ref"}),
          scalar("loss", "loss", _penalty), neutral=True),
]  # fmt: skip
