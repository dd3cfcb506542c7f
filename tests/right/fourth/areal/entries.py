"""Entries in the dialect of AReaL."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar, together, walked
from tests.right.shapes import cells

from trimtab.sentinel import Case, Result, Subject, at, bind

BEHAVIOUR = gap("logp_old", "logp_rollout")


def _actor(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss",
        args={"logprobs": "logp_current", "proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout",
              "advantages": "advantage", "loss_mask": cells("trainable", dtype=torch.bool)},
        options={"eps_clip": 0.2, "eps_clip_higher": 0.28, "c_clip": 3.0, "behav_imp_weight_cap": 5.0},
        variants={"eps_clip": (0.05,), "eps_clip_higher": (None,), "c_clip": (None,), "behav_imp_weight_cap": (1.2,)},
        returns={"loss": at(0, "loss"), "weight": at((1, "behave_imp_weight"), "importance")},
    )  # fmt: skip


def _behaviour(r: Row, t: int, o: Any) -> float:
    weight = loops.exp(BEHAVIOUR(r, t))
    return weight if weight <= o["behav_imp_weight_cap"] else 0.0


def _actor_value(rows: list[Row], o: Any) -> float:
    high = 1 + (o["eps_clip"] if o["eps_clip_higher"] is None else o["eps_clip_higher"])

    def one(r: Row, t: int) -> float:
        log_ratio = r.logp_current[t] - r.logp_old[t]
        return ppo(log_ratio, r.advantage[t], 1 - o["eps_clip"], high, o["c_clip"]) * _behaviour(r, t, o)

    return loops.token_mean(rows, one)


def _normalization(method: Any) -> Subject:
    def normalize(x, loss_mask, mean_level, std_level, std_unbiased, eps):
        norm = SimpleNamespace(mean_level=mean_level, std_level=std_level, std_unbiased=std_unbiased, eps=eps)
        return method(norm, x, loss_mask)

    return bind(
        normalize, role="whitening", name="Normalization.__call__",
        args={"x": "advantage", "loss_mask": cells("trainable", dtype=torch.bool)},
        options={"mean_level": "batch", "std_level": "batch", "std_unbiased": True, "eps": 1e-5},
        variants={"std_unbiased": (False,), "eps": (0.1,)},
    )  # fmt: skip


def _normalized(row: Row, o: Any) -> list[float]:
    every = [x for other in loops.rows(row.case) for x in other.advantage]
    centre = loops.mean(every)
    scale = loops.spread(every, 1 if o["std_unbiased"] else 0) + o["eps"]
    return [(x - centre) / scale for x in row.advantage]


def _one_more(case: Case) -> torch.Tensor:
    """The values of the trained tokens, and after each sequence the value of what would follow."""
    after = case.sequence("value_after")
    taken = zip(case.list("value"), case.list("trainable"), strict=True)
    return torch.cat([one for i, (v, m) in enumerate(taken) for one in (v[m.bool()], after[i : i + 1])])


def _starts(case: Case) -> torch.Tensor:
    counts = [int(m.sum()) for m in case.list("trainable")]
    return torch.tensor([0, *counts]).cumsum(0)


def _scan(fn: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        cut_off = ~case.sequence("ended").bool()
        found, returns = fn(case.flat("token_reward"), _one_more(case), _starts(case), cut_off, **options)
        return {"advantage": Result.token(case, found, "advantage", layout="flat"),
                "returns": Result.token(case, returns, "return", layout="flat")}  # fmt: skip

    return Subject(
        "scan_packed", call, role="returns", options={"gamma": 0.9, "lam": 0.8},
        variants={"gamma": (1.0,), "lam": (1.0, 0.3)},
    )  # fmt: skip


def _scanned(row: Row, o: Any) -> list[float]:
    found = [0.0] * row.count
    after, running = 0.0 if row.ended else row.value_after, 0.0
    for t in reversed(range(row.count)):
        running = row.token_reward[t] + o["gamma"] * after - row.value[t] + o["gamma"] * o["lam"] * running
        found[t], after = running, row.value[t]
    return found


def _gather(fn: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        logprobs, entropy = fn(case.packed("logits"), case.packed("token_id").long(), **options)
        return {"logp": Result.token(case, logprobs, "logp", layout="packed"),
                "entropy": Result.token(case, entropy, "entropy", layout="packed")}  # fmt: skip

    return Subject(
        "gather_logprobs_entropy", call, role="logp", options={"temperature": 0.7}, variants={"temperature": (1.0,)},
        temperature="temperature",
    )  # fmt: skip


def _screen(fn: Any) -> Subject:
    def call(case: Case, options: Any) -> Any:
        left = fn(
            case.packed("logp_old"), case.packed("logp_rollout"), case.packed("trainable").bool(), case.cu_seqlens,
            SimpleNamespace(**options),
        )  # fmt: skip
        pair = ("logp_old", "logp_rollout")
        return {"keep": Result.token(case, left, "keep", layout="packed", scope="sequence", pair=pair)}

    return Subject(
        "screen", call, role="keep", options={"metric": "ratio", "upper": 1.37, "lower": 0.71},
        variants={"metric": ("kl_k2",), "upper": (1.09,), "lower": (None,)},
    )  # fmt: skip


def _screened(rows: list[Row], o: Any) -> list[float]:
    def one(row: Row) -> float:
        if o["metric"] == "ratio":
            told = loops.exp(row.mean(BEHAVIOUR))
        else:
            told = row.mean(lambda r, t: 0.5 * BEHAVIOUR(r, t) ** 2)
        return float((o["lower"] is None or told >= o["lower"]) and told <= o["upper"])

    return [one(row) for row in rows]


def _assemble(method: Any) -> Subject:
    def assemble(logprobs, ref_logp, rewards, loss_mask, attention_mask, kl_ctl, scaling, bias, clip):
        actor = SimpleNamespace(kl_ctl=kl_ctl, reward_scaling=scaling, reward_bias=bias, reward_clip=clip)
        data = {"logprobs": logprobs, "ref_logp": ref_logp, "rewards": rewards, "loss_mask": loss_mask,
                "attention_mask": attention_mask}  # fmt: skip
        return method(actor, data)

    return bind(
        assemble, role="kl_in_reward", name="PPOActor.assemble", view={"with_prompt": True},
        args={"logprobs": "logp_old", "ref_logp": "logp_ref", "rewards": "reward", "loss_mask": "trainable",
              "attention_mask": "attention"},
        options={"kl_ctl": 0.1, "scaling": 2.0, "bias": -0.5, "clip": 5.0},
        variants={"kl_ctl": (0.5,), "scaling": (1.0,), "bias": (0.0,), "clip": (0.6,)},
    )  # fmt: skip


def _assembled(row: Row, o: Any) -> list[float]:
    score = loops.clamp((row.reward + o["bias"]) * o["scaling"], -o["clip"], o["clip"])
    charged = [-o["kl_ctl"] * (row.logp_old[t] - row.logp_ref[t]) for t in range(row.count)]
    return [x + (score if t == row.count - 1 else 0.0) for t, x in enumerate(charged)]


ENTRIES = [
    Entry("ppo_actor_loss_fn", "areal", "policy_loss",
          "The weight for the policy that sampled compares it with the current policy instead of the proximal one.",
          _actor, together(scalar("loss", "loss", _actor_value), per_token("weight", "importance", _behaviour)),
          several=True),
    Entry("Normalization.__call__", "areal", "whitening",
          "Padding is 0 when the mean is taken off, so every padded cell adds the squared mean to the variance.",
          _normalization, walked("advantage", "advantage", _normalized)),
    Entry("scan_packed", "areal", "returns",
          "The running sum is not reset between packed sequences, so a sequence is paid for the one that follows it.",
          _scan,
          together(walked("advantage", "advantage", _scanned),
                   walked("returns", "return",
                          lambda row, o: [a + v for a, v in zip(_scanned(row, o), row.value, strict=True)])),
          neutral=True, several=True),
    Entry("gather_logprobs_entropy", "areal", "logp",
          "The entropy is that of the logits before they are divided by the temperature.", _gather,
          together(per_token("logp", "logp",
                             lambda r, t, o: loops.log_softmax(r.logits[t], o["temperature"])[r.token_id[t]]),
                   per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"]))),
          several=True, single=True),
    Entry("screen", "areal", "keep",
          "The mean over a sequence divides by its packed length, with its prompt, not by its trained tokens.",
          _screen, per_row("keep", "keep", _screened, level="token"), neutral=True, unusual=True, single=True),
    Entry("PPOActor.assemble", "areal", "kl_in_reward",
          "The score is put on the last token of the row, which does not train where tool output comes last.",
          _assemble, walked("reward", "reward", _assembled), neutral=True),
]  # fmt: skip
