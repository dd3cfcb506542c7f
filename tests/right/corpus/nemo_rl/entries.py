"""Entries in the dialect of NeMo-RL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, peers, per_row, per_token, ppo, scalar, together
from tests.right.shapes import prompted

from trimtab.sentinel import Case, Result, Subject, at, bind


def _clipped(cls: Any) -> Subject:
    def loss(next_token_logprobs, data, global_valid_toks, **cfg):
        return cls(cfg)(next_token_logprobs, data, global_valid_toks)

    def data(case: Case) -> dict[str, torch.Tensor]:
        names = {"token_mask": "trainable", "advantages": "advantage", "prev_logprobs": "logp_old"}
        return {**{n: case.padded(f) for n, f in names.items()}, "sample_mask": case.sequence("votes").double()}

    return bind(
        loss, role="policy_loss", name="ClippedPGLossFn", combine="sum",
        args={"next_token_logprobs": lambda c: prompted(c).padded("logp_current", drop_first=True), "data": data,
              "global_valid_toks": _valid},
        options={"ratio_clip_min": 0.2, "ratio_clip_max": 0.28},
        variants={"ratio_clip_min": (0.5,), "ratio_clip_max": (0.9,)},
        returns={"loss": at(0, "loss"), "probs_ratio": at((1, "probs_ratio"), "metric"),
                 "num_valid_samples": at((1, "num_valid_samples"), "statistic")},
    )  # fmt: skip


def _valid(case: Case) -> torch.Tensor:
    """Trained tokens of the samples that count, over the whole step."""
    counts = [row.count * bool(row.votes) for row in loops.rows(case.whole)]
    return torch.tensor(float(sum(counts)), dtype=torch.float64)


def _voting(value: Any) -> Any:
    def define(case: Case, o: Any) -> Any:
        voters = [row for row in loops.rows(case) if row.votes]
        total = sum(row.total(lambda r, t: value(r, t, o)) for row in voters) / (float(_valid(case)) + 1e-12)
        return loops.numbers([total])[0]

    return define


def _ratio(r: Row, t: int) -> float:
    return r.logp_current[t] - r.logp_old[t]


def _clipped_results(case: Case, o: Any) -> Any:
    low, high = 1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"]
    loss = _voting(lambda r, t, _: ppo(_ratio(r, t), r.advantage[t], low, high))(case, o)
    ratio = _voting(lambda r, t, _: loops.exp(_ratio(r, t)))(case, o)
    count = loops.numbers([sum(bool(row.votes) for row in loops.rows(case))])[0]
    return {"loss": Result(loss, "scalar", "loss"), "probs_ratio": Result(ratio, "scalar", "metric"),
            "num_valid_samples": Result(count, "scalar", "statistic")}  # fmt: skip


def _prompts(case: Case) -> torch.Tensor:
    return case.sequence("group").unsqueeze(1).expand(-1, 3)


def _used(rows: list[Row], row: Row, leave: bool) -> list[float]:
    return [other.reward for other in peers(rows, row) if other is not row or not leave]


def _baseline(fn: Any) -> Subject:
    return bind(
        fn, role="reward_normalisation", args={"prompts": _prompts}, options={"leave_one_out_baseline": True},
        variants={"leave_one_out_baseline": (False,)},
        returns={"baseline": at(0, "statistic", level="sequence"), "std": at(1, "statistic", level="sequence")},
    )  # fmt: skip


def _scaled(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        others = _used(rows, row, leave=True)
        wide = loops.spread(others, 0)
        centred = row.reward - loops.mean(others) if others else 0.0
        found.append(centred / (wide + 1e-6) if wide > 0 else centred)
    return found


def _kl(r: Row, t: int, o: Any) -> float:
    x = clamp(r.logp_current[t] - r.logp_ref[t], -o["input_clamp_value"], o["input_clamp_value"])
    return {"k1": x, "k2": x * x / 2, "k3": loops.k3(x)}[o["kl_type"]]


def _logps(fn: Any) -> Subject:
    def logps(logits, input_ids, temperature):
        return fn(SimpleNamespace(cfg={"generation": {"temperature": temperature}}), logits, input_ids)

    return bind(
        logps, role="logp", name="step_fn", view={"with_prompt": True}, options={"temperature": 0.7},
        temperature="temperature",
        args={"logits": lambda c: prompted(c).logits(), "input_ids": "token_id"},
    )  # fmt: skip


def _metrics(fn: Any) -> Subject:
    def data(case: Case) -> dict[str, torch.Tensor]:
        return {"advantages": case.padded("advantage"), "token_mask": case.padded("trainable")}

    facts = {n: {"of": "advantage", "reduction": n} for n in ("mean", "max", "min")}
    return bind(fn, role="metric", args={"data": data},
                returns={n: at(f"advantages/{n}", "metric", **facts[n]) for n in facts})  # fmt: skip


def _extreme(name: str) -> Any:
    pick = {"mean": loops.mean, "max": max, "min": min}[name]
    return scalar(name, "metric", lambda rows, o: pick([v for row in rows for v in row.advantage]))


ENTRIES = [
    Entry("reduce_it", "nemo_rl", "statistic", "The mean counts masked cells (SkyRL 6f20d29b8).",
          lambda fn: bind(fn, role="statistic", args={"values": "advantage"}),
          scalar("statistic", "statistic", lambda rows, o: loops.token_mean(rows, lambda r, t: r.advantage[t])),
          neutral=True),
    Entry("ClippedPGLossFn", "nemo_rl", "policy_loss",
          "The sample mask is forgotten: rejected samples train while the denominator leaves them out.", _clipped,
          _clipped_results, several=True),
    Entry("calculate_baseline_and_std_per_prompt", "nemo_rl", "reward_normalisation",
          "The leave-one-out mean is divided by n instead of n - 1.", _baseline,
          together(per_row("baseline", "statistic", lambda rows, o: [
                       loops.mean(_used(rows, row, o["leave_one_out_baseline"])) for row in rows]),
                   per_row("std", "statistic", lambda rows, o: [
                       loops.spread(_used(rows, row, o["leave_one_out_baseline"]), 0) for row in rows])),
          several=True),
    Entry("process", "nemo_rl", "reward_normalisation",
          "Where the other rewards are equal, the advantage is divided by epsilon (NeMo-RL 74b9b1789).",
          lambda fn: bind(fn, role="reward_normalisation", args={"prompts": _prompts}),
          per_row("advantage", "advantage", _scaled), neutral=True),
    Entry("calculate_kl", "nemo_rl", "kl", "k2 lacks its factor 1/2.",
          lambda fn: bind(fn, role="kl", args={"logprobs_reference": "logp_ref"},
                          options={"kl_type": "k3", "input_clamp_value": 20.0}, variants={"kl_type": ("k1", "k2")}),
          per_token("kl", "kl", _kl), unusual=True),
    Entry("PolicyWorker.step_fn", "nemo_rl", "logp",
          "The zero is appended behind, so every log-prob belongs to the token before (prime-rl c42574bbc).", _logps,
          per_token("logp", "logp", lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
          neutral=True, single=True),
    Entry("compute", "nemo_rl", "metric",
          "An integer mask is used as an index, so the mask is not applied (verl 99d2c19b0).", _metrics,
          together(_extreme("mean"), _extreme("max"), _extreme("min")), neutral=True, several=True),
]  # fmt: skip
