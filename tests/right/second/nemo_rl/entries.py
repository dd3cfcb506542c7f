"""Entries in the dialect of NeMo-RL."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together
from tests.right.second.pairing import one_after_the_other, pairs
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result

UPDATE = gap("logp_current", "logp_old")


def whole(name: str) -> Any:
    return lambda case: prompted(case).padded(name)


def _next(case: Case) -> Any:
    return prompted(case).padded("logp_current", drop_first=True)


def _sample_mask(case: Case) -> Any:
    return case.sequence("votes").double()


def _valid_toks(case: Case) -> float:
    votes = case.whole.sequences["votes"].tolist()
    return float(sum(kinds.count("a") for kinds, vote in zip(case.whole.kinds, votes, strict=True) if vote))


def _valid_seqs(case: Case) -> float:
    return float(case.whole.sequences["votes"].sum())


def _clipped(method: Any) -> Subject:
    def loss(
        next_token_logprobs, token_mask, sample_mask, advantages, prev_logprobs, reference_policy_logprobs,
        global_valid_toks, ratio_clip_min, ratio_clip_max, reference_policy_kl_penalty,
    ):  # fmt: skip
        settings = SimpleNamespace(ratio_clip_min=ratio_clip_min, ratio_clip_max=ratio_clip_max,
                                   reference_policy_kl_penalty=reference_policy_kl_penalty)  # fmt: skip
        data = {"token_mask": token_mask, "sample_mask": sample_mask, "advantages": advantages,
                "prev_logprobs": prev_logprobs, "reference_policy_logprobs": reference_policy_logprobs}  # fmt: skip
        return method(settings, next_token_logprobs, data, global_valid_toks)

    return bind(
        loss, role="policy_loss", name="ClippedPGLossFn",
        args={"next_token_logprobs": _next, "token_mask": whole("trainable"), "sample_mask": _sample_mask,
              "advantages": whole("advantage"), "prev_logprobs": whole("logp_old"),
              "reference_policy_logprobs": whole("logp_ref"), "global_valid_toks": _valid_toks},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "reference_policy_kl_penalty": 0.01},
        variants={"ratio_clip_min": (0.02,), "ratio_clip_max": (0.03,), "reference_policy_kl_penalty": (0.2,)},
        penalties={"reference_policy_kl_penalty": "logp_ref"},
        returns={"loss": at(0, "loss"), "ratio": at((1, "probs_ratio"), "metric")},
    )  # fmt: skip


def _voted(rows: list[Row], value: Any) -> float:
    count = _valid_toks(rows[0].case)
    return sum(r.total(value) for r in rows if r.votes) / (count + 1e-8)


def _clipped_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        clipped = ppo(UPDATE(r, t), r.advantage[t], 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"])
        return clipped + o["reference_policy_kl_penalty"] * loops.k3(r.logp_current[t] - r.logp_ref[t])

    return _voted(rows, one)


def _estimator(method: Any) -> Subject:
    def advantage(prompt_ids, rewards, mask, use_leave_one_out_baseline, normalize_rewards):
        settings = SimpleNamespace(use_leave_one_out_baseline=use_leave_one_out_baseline,
                                   normalize_rewards=normalize_rewards)  # fmt: skip
        return method(settings, prompt_ids, rewards, mask)

    return bind(
        advantage, role="group_advantage", name="GRPOAdvantageEstimator",
        args={"prompt_ids": lambda case: case.sequence("group").unsqueeze(1).expand(-1, 3)},
        options={"use_leave_one_out_baseline": True, "normalize_rewards": False},
        variants={"use_leave_one_out_baseline": (False,), "normalize_rewards": (True,)},
    )  # fmt: skip


def _advantage(rows: list[Row], o: Any) -> list[float]:
    found: list[float] = []
    for row in rows:
        group = loops.peers(rows, row)
        others = [p.reward for p in group if p is not row or not o["use_leave_one_out_baseline"]]
        plain = row.reward - loops.mean(others) if len(group) > 1 else 0.0
        size = loops.spread([p.reward for p in group], 1)
        found.append(plain / (size + 1e-6) if o["normalize_rewards"] and size > 0 else plain)
    return found


def _reduced(rows: list[Row], o: Any) -> float:
    if o["level"] == "token":
        return _voted(rows, lambda r, t: r.token_loss[t])
    of_rows = [sum(r.token_loss) / (r.count + 1e-8) for r in rows if r.votes]
    return sum(of_rows) / (_valid_seqs(rows[0].case) + 1e-8)


def _preference(method: Any) -> Subject:
    def loss(next_token_logprobs, token_mask, reference_policy_logprobs, beta, average):
        data = {"token_mask": token_mask, "reference_policy_logprobs": reference_policy_logprobs}
        return method(SimpleNamespace(beta=beta, average_log_probs=average), next_token_logprobs, data)

    return bind(
        loss, role="preference", name="DPOLossFn",
        args={"next_token_logprobs": one_after_the_other("logp_current", drop_first=True),
              "token_mask": one_after_the_other("trainable"),
              "reference_policy_logprobs": one_after_the_other("logp_ref")},
        options={"beta": 0.1, "average": False}, variants={"beta": (0.5,), "average": (True,)},
    )  # fmt: skip


def _preferred(case: Case, o: Any) -> Any:
    rows = loops.rows(case)

    def score(row: Row) -> float:
        total = row.total(gap("logp_current", "logp_ref"))
        return o["beta"] * (total / max(row.count, 1) if o["average"] else total)

    margins = [score(rows[chosen]) - score(rows[rejected]) for chosen, rejected in pairs(case)]
    found = [max(-m, 0.0) + math.log1p(math.exp(-abs(m))) for m in margins]
    return {"loss": Result(loops.numbers([loops.mean(found)])[0], "scalar", "loss")}


def _shaping(fn: Any) -> Subject:
    def shaped(rewards, response_lengths, overlong_buffer_length, overlong_buffer_penalty, max_response_length):
        cfg = SimpleNamespace(overlong_buffer_length=overlong_buffer_length, max_response_length=max_response_length,
                              overlong_buffer_penalty=overlong_buffer_penalty)  # fmt: skip
        return fn({"total_reward": rewards, "response_lengths": response_lengths}, cfg)

    return bind(
        shaped, name="apply_shaping", couples="sequence",
        args={"response_lengths": lambda case: torch.tensor(case.response_lengths).double()},
        options={"overlong_buffer_length": 2, "overlong_buffer_penalty": 1.0, "max_response_length": 4},
        variants={"overlong_buffer_length": (3,), "overlong_buffer_penalty": (0.5,), "max_response_length": (6,)},
        returns={"reward": at("total_reward", "reward", level="sequence")},
    )  # fmt: skip


def _shaped(rows: list[Row], o: Any) -> list[float]:
    def penalty(row: Row) -> float:
        over = row.case.response_lengths[row.index] - (o["max_response_length"] - o["overlong_buffer_length"])
        return min(-over / o["overlong_buffer_length"] * o["overlong_buffer_penalty"], 0.0)

    return [row.reward + penalty(row) for row in rows]


def _weight(row: Row, t: int, o: Any) -> float:
    weight = loops.exp(row.logp_old[t] - row.logp_rollout[t])
    if o["kind"] == "tis":
        return min(weight, o["ratio_max"])
    return weight if o["ratio_min"] <= weight <= o["ratio_max"] else 0.0


ENTRIES = [
    Entry("ClippedPGLossFn.__call__", "nemo_rl", "policy_loss",
          "The old log-probs lose their last column instead of their first, so tokens meet their predecessor's.",
          _clipped,
          together(scalar("loss", "loss", _clipped_value),
                   scalar("ratio", "metric", lambda rows, o: _voted(rows, lambda r, t: loops.exp(UPDATE(r, t))))),
          several=True),
    Entry("GRPOAdvantageEstimator.compute_advantage", "nemo_rl", "group_advantage",
          "The sum of the others is divided by all samples of the prompt.", _estimator,
          per_row("advantage", "advantage", _advantage, level="token")),
    Entry("reduce", "nemo_rl", "aggregation",
          "The sequence level divides a sum over sequences by the number of tokens.",
          lambda fn: bind(
              fn, role="aggregation",
              args={"values": "token_loss", "sample_mask": _sample_mask, "global_valid_seqs": _valid_seqs,
                    "global_valid_toks": _valid_toks},
              options={"level": "sequence"}, variants={"level": ("token",)}),
          scalar("loss", "loss", _reduced), neutral=True),
    Entry("DPOLossFn.__call__", "nemo_rl", "preference",
          "The rows are cut in halves, although chosen and rejected alternate.", _preference, _preferred),
    Entry("apply_shaping", "nemo_rl", None,
          "The penalty is not cut off at 0, so that short responses are paid for being short.", _shaping,
          per_row("reward", "reward", _shaped), neutral=True),
    Entry("process_logprobs", "nemo_rl", "importance",
          "The two sides of the band are joined by `or`, so every weight passes.",
          lambda fn: bind(
              fn, role="importance", view={"with_prompt": True, "drop_first": True},
              args={"prev_logprobs": whole("logp_old"), "generation_logprobs": whole("logp_rollout"),
                    "token_mask": whole("trainable")},
              options={"ratio_min": 0.5, "ratio_max": 2.0, "kind": "icepop"},
              variants={"ratio_min": (0.95,), "ratio_max": (1.05,), "kind": ("tis",)}),
          per_token("importance", "importance", _weight), neutral=True),
]  # fmt: skip
