"""Entries in the dialect of open-instruct."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, gap, peers, per_row, per_token, ppo, scalar, together, walked
from tests.right.shapes import as_array, cells, in_pairs, whole_tokens

from trimtab.sentinel import Case, Result, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")
TO_REF = gap("logp_current", "logp_ref")


def _grpo(fn: Any) -> Subject:
    def terms(new_logprobs, old_logprobs, ref_logprobs, advantages, **settings):
        return fn(new_logprobs, old_logprobs, ref_logprobs, advantages, SimpleNamespace(**settings))

    return bind(
        terms, role="policy_loss", name="compute_grpo_loss", options={"clip_lower": 0.2, "clip_higher": 0.28},
        variants={"clip_lower": (0.5,), "clip_higher": (0.9,)},
        returns={"term": at(2, "term"), "kl": at(3, "kl")},
    )  # fmt: skip


def _scores(fn: Any) -> Subject:
    def advantages(scores, **settings):
        return torch.as_tensor(fn(scores.numpy(), **settings))

    return bind(
        advantages, role="reward_normalisation", name="process", args={"scores": in_pairs("reward")},
        options={"num_samples_per_prompt_rollout": 2, "advantage_normalization_type": "standard"},
        variants={"advantage_normalization_type": ("centered",)},
    )  # fmt: skip


def _normed(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        own = [other.reward for other in peers(rows, row)]
        scale = loops.spread(own, 0) + 1e-8 if o["advantage_normalization_type"] == "standard" else 1.0
        found.append((row.reward - loops.mean(own)) / scale)
    return found


def _step(fn: Any) -> Subject:
    def loss(local_logprobs, vllm_logprobs, advantages, response_masks, total, **settings):
        trainer = SimpleNamespace(args=SimpleNamespace(**settings), accumulation_token_count=total)
        return fn(trainer, local_logprobs, vllm_logprobs, advantages, response_masks)

    return bind(
        loss, role="policy_loss", name="step_fn", args={"local_logprobs": "logp_current", "total": whole_tokens},
        options={"drop_above": 2.0}, variants={"drop_above": (1.1,)}, combine="sum",
    )  # fmt: skip


def _step_loss(case: Case, o: Any) -> Any:
    def one(r: Row, t: int) -> float:
        ratio = loops.exp(r.logp_current[t] - r.logp_rollout[t])
        return -r.advantage[t] * ratio if ratio <= o["drop_above"] else 0.0

    total = sum(row.total(one) for row in loops.rows(case)) / max(whole_tokens(case), 1)
    return {"loss": Result(loops.numbers([total])[0], "scalar", "loss")}


def _overflows(right: Any, wrong: Any) -> bool:
    """Whether a dropped token with a log-ratio of 100 gives a loss that is not finite."""
    trainer = SimpleNamespace(args=SimpleNamespace(drop_above=2.0), accumulation_token_count=2)
    far = torch.tensor([[-100.0, -1.0]]).double()
    ones = torch.ones(1, 2).double()
    return not bool(wrong(trainer, torch.zeros(1, 2).double(), far, ones, ones).isfinite())


def _packed(fn: Any) -> Subject:
    def dones(case: Case) -> Any:
        ends = torch.zeros(case.trainable.numel())
        ends[case.cu_seqlens[1:] - 1] = 1
        return ends.numpy()

    def call(values, rewards, dones, response_masks, **settings):
        found = fn(
            as_array(values), as_array(rewards), dones=dones, response_masks=as_array(response_masks), **settings
        )
        return tuple(torch.as_tensor(one) for one in found)

    return bind(
        call, role="returns", name="compute", layout="packed", options={"gamma": 0.95, "lam": 0.9},
        variants={"gamma": (1.0,), "lam": (0.5,)},
        args={"values": "value_old", "rewards": "token_reward", "dones": dones},
        returns={"advantage": at(0, "advantage"), "returns": at(1, "return")},
    )  # fmt: skip


def _gae(row: Row, o: Any) -> list[float]:
    return loops.gae(row, row.token_reward, row.value_old, o["gamma"], o["lam"])


def _estimates(fn: Any) -> Subject:
    return bind(
        fn, role="kl",
        args={"ref_logprobs_diff": lambda c: cells("logp_current")(c) - cells("logp_ref")(c),
              "ratio": lambda c: torch.exp(cells("logp_current")(c) - cells("logp_old")(c))},
        returns={f"k{i + 1}": at(i, "kl") for i in range(4)},
    )  # fmt: skip


def _clipfrac(fn: Any) -> Subject:
    def surrogates(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        ratio = torch.exp(cells("logp_current")(case) - cells("logp_old")(case))
        credit = cells("advantage")(case)
        return -credit * ratio, -credit * ratio.clamp(0.8, 1.2)

    return bind(
        fn, role="metric", returns={"clipfrac": at((), "metric", range=(0, 1), agreed=0.0, reduction="mean")},
        args={"pg_losses": lambda c: surrogates(c)[0], "pg_losses2": lambda c: surrogates(c)[1]},
    )  # fmt: skip


def _is_clipped(r: Row, t: int) -> float:
    ratio, credit = loops.exp(UPDATE(r, t)), r.advantage[t]
    return float(clamp(ratio, 0.8, 1.2) * credit < ratio * credit)


ENTRIES = [
    Entry("masked_mean", "open_instruct", "aggregation",
          "With axis=1 each row is divided by the count of the whole batch.",
          lambda fn: bind(fn, role="aggregation", args={"values": "token_loss"}, options={"axis": 1},
                          variants={"axis": (None,)}),
          scalar("loss", "loss", lambda rows, o: loops.row_mean(rows, lambda r, t: r.token_loss[t], empty=True)
                 if o["axis"] == 1 else loops.token_mean(rows, lambda r, t: r.token_loss[t]))),
    Entry("compute_grpo_loss", "open_instruct", "policy_loss", "The smaller of the two losses is taken.", _grpo,
          together(per_token("term", "term", lambda r, t, o: ppo(
                       UPDATE(r, t), r.advantage[t], 1 - o["clip_lower"], 1 + o["clip_higher"])),
                   per_token("kl", "kl", lambda r, t, o: loops.k3(clamp(TO_REF(r, t), -40, 40)))),
          several=True),
    Entry("process", "open_instruct", "reward_normalisation", "The mean is that of the batch, not of the prompt.",
          _scores, per_row("advantage", "advantage", _normed), neutral=True),
    Entry("PolicyTrainer.step_fn", "open_instruct", "policy_loss",
          "The ratio of a dropped token overflows in float32, and inf * 0 is NaN (open-instruct e6c3044aa).", _step,
          _step_loss, neutral=True, single=True, differs=_overflows),
    Entry("compute", "open_instruct", "returns",
          "The running advantage is not reset at the end of a packed sequence.", _packed,
          together(walked("advantage", "advantage", _gae),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_gae(row, o), row.value_old, strict=True)])),
          neutral=True, several=True, pads_finite=True),
    Entry("stacked", "open_instruct", "kl", "The second estimate lacks its factor 1/2.", _estimates,
          together(per_token("k1", "kl", lambda r, t, o: TO_REF(r, t)),
                   per_token("k2", "kl", lambda r, t, o: TO_REF(r, t) ** 2 / 2),
                   per_token("k3", "kl", lambda r, t, o: loops.k3(TO_REF(r, t))),
                   per_token("k4", "kl", lambda r, t, o: loops.exp(UPDATE(r, t)) * TO_REF(r, t))),
          unusual=True, several=True, neutral=True),
    Entry("reduce_it", "open_instruct", "metric", "It counts tokens on which the clip does not bind.", _clipfrac,
          scalar("clipfrac", "metric", lambda rows, o: loops.token_mean(rows, _is_clipped)),
          neutral=True, unusual=True),
]  # fmt: skip
