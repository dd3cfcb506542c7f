"""Entries in the dialect of slime and miles."""

from types import SimpleNamespace
from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, clamp, gap, peers, per_row, per_token, ppo, together, walked

from trimtab.sentinel import Case, Result, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _policy(fn: Any) -> Subject:
    return bind(
        fn, role="policy_loss", layout="flat",
        args={"ppo_kl": lambda c: c.flat("logp_old") - c.flat("logp_current")},
        options={"eps_clip": 0.2, "eps_clip_high": 0.28, "eps_clip_c": 3.0},
        variants={"eps_clip": (0.5,), "eps_clip_high": (0.9,), "eps_clip_c": (1.5, None)},
        returns={"term": at(0, "term"), "clipped": at(1, "observation")},
    )  # fmt: skip


def _term(r: Row, t: int, o: Any) -> float:
    return ppo(UPDATE(r, t), r.advantage[t], 1 - o["eps_clip"], 1 + o["eps_clip_high"], cap=o["eps_clip_c"])


def _is_clipped(r: Row, t: int, o: Any) -> float:
    ratio, credit = loops.exp(UPDATE(r, t)), r.advantage[t]
    return float(clamp(ratio, 1 - o["eps_clip"], 1 + o["eps_clip_high"]) * credit < ratio * credit)


def _sample_mean(fn: Any) -> Subject:
    return bind(
        fn, role="aggregation", layout="list", combine="sum",
        args={"x": lambda c: torch.cat(c.list("token_loss", with_prompt=False)),
              "response_lengths": lambda c: c.response_lengths},
    )  # fmt: skip


def _sum_of_means(case: Case, o: Any) -> Any:
    total = sum(row.mean(lambda r, t: r.token_loss[t]) for row in loops.rows(case))
    return {"loss": Result(loops.numbers([total])[0], "scalar", "loss")}


def _returns(row: Row, o: Any) -> list[float]:
    paid = [-o["kl_coef"] * row.kl[t] + (row.reward if t == row.count - 1 else 0.0) for t in range(row.count)]
    return loops.to_go(paid, o["gamma"])


def _rewards(fn: Any) -> Subject:
    def normed(samples, **settings):
        return fn(SimpleNamespace(**settings), samples)[1]

    def samples(case: Case) -> list[Any]:
        told = zip(case.sequence("reward").tolist(), case.sequence("group").tolist(), strict=True)
        return [SimpleNamespace(reward=reward, group_index=group) for reward, group in told]

    return bind(normed, role="reward_normalisation", name="post_process_rewards", args={"samples": samples},
                options={"grpo_std_normalization": True}, variants={"grpo_std_normalization": (False,)})  # fmt: skip


def _normed(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        own = [other.reward for other in peers(rows, row)]
        wide = loops.spread(own, 0) + 1e-6 if o["grpo_std_normalization"] else 1.0
        found.append((row.reward - loops.mean(own)) / wide)
    return found


def _tis(fn: Any) -> Subject:
    def weights(train_log_probs, rollout_log_probs, **settings):
        return fn(SimpleNamespace(**settings), train_log_probs, rollout_log_probs)

    return bind(weights, role="importance", name="f", layout="list", args={"train_log_probs": "logp_old"},
                options={"tis_clip": 2.0, "tis_clip_low": 0.1},
                variants={"tis_clip": (1.1,), "tis_clip_low": (0.9,)})  # fmt: skip


def _opsm(fn: Any) -> Subject:
    def keep(log_probs, old_log_probs, advantages, loss_masks, **settings):
        return fn(SimpleNamespace(**settings), log_probs, old_log_probs, advantages, loss_masks)

    return bind(keep, role="keep", name="compute_opsm_mask", layout="list", options={"opsm_delta": 0.05},
                variants={"opsm_delta": (0.5,)},
                returns={"keep": at((), "keep", scope="sequence")})  # fmt: skip


def _kept(rows: list[Row], o: Any) -> list[float]:
    found = []
    for row in rows:
        dropped = row.mean(lambda r, t: r.advantage[t]) < 0 and row.mean(lambda r, t: -UPDATE(r, t)) > o["opsm_delta"]
        found.append(float(not dropped))
    return found


def _whiten(fn: Any) -> Subject:
    def whitened(advantages, loss_masks, eps):
        return fn(SimpleNamespace(eps=eps), advantages, loss_masks)

    return bind(whitened, role="whitening", name="whiten", layout="list", options={"eps": 1e-8})


def _whitened(case: Case, o: Any) -> Any:
    values = [v for row in loops.rows(case) for v in row.advantage]
    wide = (loops.spread(values, 0) ** 2 + o["eps"]) ** 0.5
    found = [(v - loops.mean(values)) / wide for v in values]
    return {"advantage": Result(loops.numbers(found), "token", "advantage")}


def _kl(r: Row, t: int, o: Any) -> float:
    x = r.logp_current[t] - r.logp_ref[t]
    return {"k1": x, "k2": x * x / 2, "low_var_kl": loops.k3(x)}[o["how"]]


ENTRIES = [
    Entry("compute_policy_loss", "slime", "policy_loss",
          "The dual clip bounds positive advantages instead of negative ones (slime e7a118711).", _policy,
          together(per_token("term", "term", _term), per_token("clipped", "observation", _is_clipped)), several=True),
    Entry("sum_of_sample_mean", "slime", "aggregation",
          "Each sample is divided by its whole length, tool output included (SkyRL 6f20d29b8).", _sample_mean,
          _sum_of_means, unusual=True),
    Entry("process", "slime", "returns", "The KL of tool output enters the returns (slime 60bfe04fe).",
          lambda fn: bind(fn, role="returns", layout="list", options={"kl_coef": 0.1, "gamma": 0.9},
                          variants={"gamma": (0.5,)}),
          walked("return", "return", _returns), neutral=True),
    Entry("post_process_rewards", "slime", "reward_normalisation",
          "Groups of unequal size turn the normalisation per prompt into one over the batch (slime#1918).", _rewards,
          per_row("advantage", "advantage", _normed)),
    Entry("f", "slime", "importance", "The ratio is turned around: sampler over trainer.", _tis,
          per_token("importance", "importance", lambda r, t, o: clamp(
              loops.exp(r.logp_old[t] - r.logp_rollout[t]), o["tis_clip_low"], o["tis_clip"])),
          neutral=True, single=True),
    Entry("compute_opsm_mask", "slime", "keep",
          "The decision about a sequence is taken token by token (slime#1917).", _opsm,
          per_row("keep", "keep", _kept, level="token")),
    Entry("step_fn", "slime", "kl", "The current policy is detached, so the KL term trains nothing.",
          lambda fn: bind(fn, role="kl", layout="flat", args={"lp": "logp_current", "lp_ref": "logp_ref"},
                          options={"how": "low_var_kl"}, variants={"how": ("k1", "k2")}),
          per_token("kl", "kl", _kl), neutral=True, unusual=True),
    Entry("whiten", "slime", "whitening", "Mean and spread are divided by all tokens, tool output included.", _whiten,
          _whitened),
]  # fmt: skip
