"""Entries in the dialect of open-instruct."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_token, ppo, scalar, together, walked
from tests.right.shapes import prompted, whole_tokens
from torch import Tensor

from trimtab.sentinel import Case, Subject, at, bind

CUT = {"with_prompt": True, "drop_first": True}
UPDATE = gap("logp_current", "logp_old")
MISMATCH = gap("logp_old", "logp_rollout")


# --- compute_rho_correction ---------------------------------------------------------------------------------------


def _rho(fn: Any) -> Subject:
    def rho(old_logprob, vllm_logprobs, response_mask, lower, upper, clamp, sequence_level):
        config = SimpleNamespace(
            rho_mask_lower_bound=lower,
            rho_mask_upper_bound=upper,
            rho_clamp_upper_bound=clamp,
            rho_mask_sequence_level=sequence_level,
        )
        return fn(old_logprob, vllm_logprobs, response_mask.bool(), config)

    return bind(
        rho, role="importance", name="compute_rho_correction", view=CUT,
        args={"old_logprob": "logp_old", "vllm_logprobs": "logp_rollout", "response_mask": "trainable"},
        options={"lower": 0.5, "upper": 2.0, "clamp": 1.5, "sequence_level": True},
        variants={"lower": (0.9,), "upper": (1.2,), "clamp": (1.1,), "sequence_level": (False,)},
        returns={"weights": at(0, "importance"), "low": at((1, "val/rho_drop_low_frac"), "metric"),
                 "high": at((1, "val/rho_drop_high_frac"), "metric")},
    )  # fmt: skip


def _rho_of(r: Row, t: int, o: Any) -> float:
    def apart(row: Row, u: int) -> float:
        return loops.clamp(MISMATCH(row, u), -10.0, 10.0)

    return math.exp(r.mean(apart) if o["sequence_level"] else apart(r, t))


def _rho_weight(r: Row, t: int, o: Any) -> float:
    rho = _rho_of(r, t, o)
    return min(rho, o["clamp"]) if o["lower"] <= rho <= o["upper"] else 0.0


# --- GRPOTrainModule.process --------------------------------------------------------------------------------------


def _process(method: Any) -> Subject:
    def process(
        new_logprobs, old_logprobs, ref_logprobs, advantages, response_masks, denominator,
        beta, clip_lower, clip_higher, kl_estimator,
    ):  # fmt: skip
        args = SimpleNamespace(beta=beta, clip_lower=clip_lower, clip_higher=clip_higher, kl_estimator=kl_estimator)
        data = {"response_masks": response_masks, "advantages": advantages,
                "old_logprobs": old_logprobs, "ref_logprobs": ref_logprobs}  # fmt: skip
        return method(SimpleNamespace(args=args), new_logprobs, data, denominator)

    return bind(
        process, role="policy_loss", name="GRPOTrainModule.process", view=CUT, combine="sum",
        args={"new_logprobs": "logp_current", "old_logprobs": "logp_old", "ref_logprobs": "logp_ref",
              "advantages": lambda case: case.padded("advantage"),
              "response_masks": lambda case: case.padded("trainable"), "denominator": whole_tokens},
        options={"beta": 0.05, "clip_lower": 0.2, "clip_higher": 0.28, "kl_estimator": 2},
        variants={"beta": (0.5,), "clip_lower": (0.1,), "clip_higher": (0.4,), "kl_estimator": (0, 1, 3)},
        returns={"loss": at(0, "loss"), "clipfrac": at((1, "policy/clipfrac_avg"), "metric"),
                 "ratio": at((1, "val/ratio"), "metric")},
    )  # fmt: skip


def _process_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        d = loops.clamp(r.logp_current[t] - r.logp_ref[t], -40.0, 40.0)
        kl = [d, d * d / 2, loops.k3(d), loops.exp(UPDATE(r, t)) * d][o["kl_estimator"]]
        return ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_lower"], 1 + o["clip_higher"]) + o["beta"] * kl

    return sum(row.total(one) for row in rows) / whole_tokens(rows[0].case)


def _process_clipped(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        ratio, a = loops.exp(UPDATE(r, t)), r.advantage[t]
        return float(-a * loops.clamp(ratio, 1 - o["clip_lower"], 1 + o["clip_higher"]) > -a * ratio)

    return loops.token_mean(rows, one)


# --- calculate_advantages_packed ----------------------------------------------------------------------------------


def _packed(name: str) -> Callable[[Case], Any]:
    return lambda case: case.packed(name).detach().double().reshape(1, -1).numpy()


def _ends(case: Case) -> Any:
    """The number of each sequence at its last token."""
    ends = torch.zeros(int(case.cu_seqlens[-1]), dtype=torch.long)
    for i, stop in enumerate(case.cu_seqlens.tolist()[1:]):
        ends[stop - 1] = i + 1
    return ends.reshape(1, -1).numpy()


def _numbered(case: Case) -> Any:
    """The number of each sequence at its trained tokens."""
    starts = case.cu_seqlens.tolist()
    mask = case.packed("trainable").reshape(-1).long().clone()
    for i in range(len(starts) - 1):
        mask[starts[i] : starts[i + 1]] *= i + 1
    return mask.reshape(1, -1).numpy()


def _advantages(fn: Any) -> Subject:
    def packed(values, rewards, dones, response_masks, gamma, lam):
        advantages, returns = fn(values, rewards, gamma, lam, dones, response_masks)
        return advantages[0], returns[0]

    return bind(
        packed, role="returns", name="calculate_advantages_packed", layout="packed",
        args={"values": _packed("value"), "rewards": _packed("token_reward"), "dones": _ends,
              "response_masks": _numbered},
        options={"gamma": 0.95, "lam": 0.9}, variants={"gamma": (1.0,), "lam": (0.5,)},
        returns={"advantages": at(0, "advantage"), "returns": at(1, "return")},
    )  # fmt: skip


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value, o["gamma"], o["lam"])


# --- wpo_loss -----------------------------------------------------------------------------------------------------


def _side(name: str, which: int) -> Callable[[Case], Tensor]:
    def taken(case: Case) -> Tensor:
        if not case.pairs:
            raise case.cannot("it has no pair")
        return case.padded(name, with_prompt=False)[[pair[which] for pair in case.pairs]]

    return taken


def _wpo(fn: Any) -> Subject:
    return bind(
        fn, role="preference",
        args={"policy_chosen_logps": _side("logp_current", 0), "policy_rejected_logps": _side("logp_current", 1),
              "reference_chosen_logps": _side("logp_ref", 0), "reference_rejected_logps": _side("logp_ref", 1),
              "chosen_loss_mask": _side("trainable", 0), "rejected_loss_mask": _side("trainable", 1)},
        options={"beta": 0.1, "label_smoothing": 0.0}, variants={"beta": (0.5,), "label_smoothing": (0.1,)},
        returns={"loss": at(0, "loss"), "chosen": at(1, "metric"), "rejected": at(2, "metric")},
        stops_gradient=True,
    )  # fmt: skip


def _in_pairs(value: Callable[[Row, Row, Any], float]) -> Callable[[list[Row], Any], float]:
    return lambda rows, o: loops.mean([value(rows[a], rows[b], o) for a, b in rows[0].case.pairs])


def _apart(r: Row) -> float:
    return r.total(gap("logp_current", "logp_ref"))


def _wpo_pair(chosen: Row, rejected: Row, o: Any) -> float:
    def likely(r: Row) -> float:
        return r.mean(lambda row, t: row.logp_current[t])

    z = o["beta"] * (_apart(chosen) - _apart(rejected))
    s = o["label_smoothing"]
    weight = min(1.0, loops.exp(likely(chosen) + likely(rejected)))
    return weight * ((1 - s) * math.log1p(loops.exp(-z)) + s * math.log1p(loops.exp(z)))


def _pulls(right: Any, wrong: Any) -> bool:
    """Whether two versions have other gradients on one pair."""
    found = []
    for fn in (right, wrong):
        chosen = torch.tensor([[-0.5, -1.0]], dtype=torch.float64, requires_grad=True)
        rejected, mask = torch.tensor([[-2.0, -0.1]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
        fn(chosen, rejected, chosen.detach() + 0.2, rejected, mask, mask, 0.1)[0].backward()
        found.append(chosen.grad)
    return not torch.allclose(found[0], found[1])


# --- OutputHead and collapse --------------------------------------------------------------------------------------


def _head(cls: Any) -> Subject:
    def head(logits, input_ids, temperature):
        return cls(temperature)(logits, input_ids)

    return bind(
        head, role="logp", name="OutputHead", view=CUT, temperature="temperature",
        args={"logits": lambda case: prompted(case).logits(), "input_ids": lambda case: case.padded("token_id")},
        options={"temperature": 0.7}, variants={"temperature": (1.0, 1.5)},
        returns={"logprobs": at(0, "logp"), "entropy": at(1, "entropy")},
    )  # fmt: skip


def _collapse(fn: Any) -> Subject:
    return bind(
        fn, role="metric",
        args={"readings_B": lambda case: case.list("entropy", with_prompt=False),
              "flags_B": lambda case: case.list("trainable", with_prompt=False)},
        returns={"avg": at("avg", "metric"), "var": at("var", "metric")},
    )  # fmt: skip


def _average(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: r.entropy[t])


def _variance(rows: list[Row], o: Any) -> float:
    centre = _average(rows, o)
    return loops.token_mean(rows, lambda r, t: (loops.mean(r.entropy) - centre) ** 2)


ENTRIES = [
    Entry("compute_rho_correction", "open_instruct", "importance",
          "The mean log-ratio of a sequence is taken over the padded width, so short sequences look on-policy.", _rho,
          together(per_token("weights", "importance", _rho_weight),
                   scalar("low", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(_rho_of(r, t, o) < o["lower"]))),
                   scalar("high", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(_rho_of(r, t, o) > o["upper"])))), several=True),
    Entry("GRPOTrainModule.process", "open_instruct", "policy_loss",
          "The mask is cut at the wrong end, so it is one token off: the first token of an answer is never trained.",
          _process,
          together(scalar("loss", "loss", _process_loss), scalar("clipfrac", "metric", _process_clipped),
                   scalar("ratio", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: loops.exp(UPDATE(r, t))))),
          neutral=True, several=True),
    Entry("calculate_advantages_packed", "open_instruct", "returns",
          "The running advantage is not reset where a sequence ends, so it flows into the one packed before it.",
          _advantages,
          together(walked("advantages", "advantage", _gae),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_gae(row, o), row.value, strict=True)])),
          several=True),
    Entry("wpo_loss", "open_instruct", "preference",
          "The weights of the pairs are not detached, so unlikely answers lower the loss.",
          _wpo,
          together(scalar("loss", "loss", _in_pairs(_wpo_pair), detached=True),
                   scalar("chosen", "metric", _in_pairs(lambda c, r, o: o["beta"] * _apart(c))),
                   scalar("rejected", "metric", _in_pairs(lambda c, r, o: o["beta"] * _apart(r)))),
          several=True, pads_finite=True, differs=_pulls),
    Entry("OutputHead", "open_instruct", "logp",
          "The entropy is that of the logits before they are divided by the temperature.", _head,
          together(per_token("logprobs", "logp",
                             lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          neutral=True, several=True, single=True),
    Entry("collapse", "open_instruct", "metric",
          "Samples count by all their tokens after the prompt, tool output included, instead of those in the mask.",
          _collapse, together(scalar("avg", "metric", _average), scalar("var", "metric", _variance)),
          neutral=True, unusual=True, several=True),
]  # fmt: skip
