"""Entries as in tutorials and single-file implementations."""

from typing import Any

import torch
from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.tutorials.right import Experience
from tests.right.loops import Row, exp, gap, ppo, scalar, together
from tests.right.shapes import as_array

from trimtab.sentinel import Case, Subject, at, bind

UPDATE = gap("logp_current", "logp_old")


def _some(field: str) -> Any:
    def taken(case: Case) -> torch.Tensor:
        found = case.flat(field)
        if not found.numel():
            raise case.cannot("a minibatch has at least one token")
        return found

    return taken


def _update(cls: Any) -> Subject:
    def loss(newlogprob, newvalue, entropy, b_logprobs, b_advantages, b_returns, **settings):
        return cls(**settings)(newlogprob, newvalue, entropy, b_logprobs, b_advantages, b_returns)

    return bind(
        loss, role="policy_loss", name="PPOUpdate", layout="flat",
        args={"newlogprob": _some("logp_current"), "newvalue": "value", "entropy": "entropy",
              "b_logprobs": "logp_old", "b_advantages": "advantage", "b_returns": "returns"},
        options={"clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5},
        variants={"clip_coef": (0.4,), "ent_coef": (0.2,), "vf_coef": (1.0,)}, penalties={"ent_coef": "entropy"},
        returns={"loss": at(0, "loss"), "pg_loss": at(1, "metric", reduction="mean"),
                 "v_loss": at(2, "metric", reduction="mean")},
    )  # fmt: skip


def _pg(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: ppo(
        UPDATE(r, t), r.advantage[t], 1 - o["clip_coef"], 1 + o["clip_coef"]))  # fmt: skip


def _v(rows: list[Row], o: Any) -> float:
    return loops.token_mean(rows, lambda r, t: (r.value[t] - r.returns[t]) ** 2 / 2)


def _total(rows: list[Row], o: Any) -> float:
    bonus = o["ent_coef"] * loops.token_mean(rows, lambda r, t: r.entropy[t])
    return _pg(rows, o) - bonus + o["vf_coef"] * _v(rows, o)


def _episode(fn: Any) -> Subject:
    def loss(log_probs, rewards, mask, gamma):
        every = zip(log_probs, rewards, mask, strict=True)
        return torch.stack([fn(lp[m.bool()], r[m.bool()].detach(), gamma) for lp, r, m in every]).sum()

    return bind(
        loss, role="policy_loss", name="f", layout="list",
        args={"log_probs": "logp_current", "rewards": "token_reward", "mask": "trainable"},
        options={"gamma": 0.9}, variants={"gamma": (0.5,)}, returns={"loss": at((), "loss")},
    )  # fmt: skip


def _reinforce(rows: list[Row], o: Any) -> float:
    return -sum(
        lp * g for r in rows for lp, g in zip(r.logp_current, loops.to_go(r.token_reward, o["gamma"]), strict=True)
    )


def _grpo(cls: Any) -> Subject:
    def loss(log_probs, action_log_probs, log_probs_ref, advantages, action_mask, **settings):
        return cls(**settings)(log_probs, Experience(action_log_probs, log_probs_ref, advantages, action_mask))

    return bind(
        loss, role="policy_loss", name="GRPOLoss",
        args={"log_probs": "logp_current", "action_log_probs": "logp_old", "log_probs_ref": "logp_ref",
              "advantages": lambda case: case.sequence("outcome").unsqueeze(1), "action_mask": "trainable"},
        options={"clip_eps": 0.2, "kl_weight": 0.05}, variants={"clip_eps": (0.4,), "kl_weight": (0.2,)},
        penalties={"kl_weight": "logp_ref"},
        returns={"loss": at(0, "loss"), "kl": at(1, "metric", agreed=0.0, reduction="mean")},
    )  # fmt: skip


def _k3(r: Row, t: int) -> float:
    return loops.k3(r.logp_current[t] - r.logp_ref[t])


def _grpo_loss(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        return ppo(UPDATE(r, t), r.outcome, 1 - o["clip_eps"], 1 + o["clip_eps"]) + o["kl_weight"] * _k3(r, t)

    return loops.row_mean(rows, one, empty=True)


def _groups(fn: Any) -> Subject:
    def advantages(returns, group):
        found = torch.zeros_like(returns)
        for g in group.unique():
            found[group == g] = fn(returns[group == g])
        return found

    return bind(advantages, role="group_advantage", name="group_advantages",
                args={"returns": "reward", "group": "group"})  # fmt: skip


def _advantages(rows: list[Row], o: Any) -> list[float]:
    groups = [[p.reward for p in loops.peers(rows, row)] for row in rows]
    return [(r.reward - loops.mean(g)) / (loops.spread(g, 0) + 1e-8) for r, g in zip(rows, groups, strict=True)]


def _explained(rows: list[Row], o: Any) -> float:
    truth = [x for r in rows for x in r.returns]
    missed = [x - v for r in rows for x, v in zip(r.returns, r.value_old, strict=True)]
    size = loops.spread(truth, 0) ** 2
    return 1 - loops.spread(missed, 0) ** 2 / size if len(truth) > 1 and size else 0.0


ENTRIES = [
    Entry("PPOUpdate", "tutorials", "policy_loss", "The entropy is punished instead of rewarded.", _update,
          together(scalar("loss", "loss", _total), scalar("pg_loss", "metric", _pg), scalar("v_loss", "metric", _v)),
          several=True),
    Entry("f", "tutorials", "policy_loss", "Returns are summed from the first action on instead of to the last.",
          _episode, scalar("loss", "loss", _reinforce), neutral=True),
    Entry("GRPOLoss", "tutorials", "policy_loss", "The optimistic of the two objectives is taken.", _grpo,
          together(scalar("loss", "loss", _grpo_loss),
                   scalar("kl", "metric", lambda rows, o: loops.token_mean(rows, _k3))),
          several=True, pads_finite=True),
    Entry("group_advantages", "tutorials", "group_advantage",
          "Only the mean is divided by the deviation (prime-rl 37341fc8f).", _groups,
          loops.per_row("advantage", "advantage", _advantages)),
    Entry("evaluate", "tutorials", "metric", "The variance of the predictions is the denominator.",
          lambda fn: bind(
              fn, role="metric", args={"b_values": lambda case: as_array(_some("value_old")(case)),
                                       "b_returns": lambda case: as_array(case.flat("returns"))},
              returns={"explained": at((), "metric")}),
          scalar("explained", "metric", _explained), neutral=True, unusual=True),
    Entry("diagnose", "tutorials", "metric", "The k3 estimate adds the log-ratio.",
          lambda fn: bind(
              fn, role="metric", layout="flat",
              args={"newlogprob": _some("logp_current"), "b_logprobs": "logp_old", "b_advantages": "advantage"},
              options={"clip_coef": 0.2}, variants={"clip_coef": (0.05,)},
              returns={"k1": at("old_approx_kl", "metric", agreed=0.0, reduction="mean"),
                       "k3": at("approx_kl", "metric", agreed=0.0, reduction="mean"),
                       "clipfrac": at("clipfrac", "metric", range=(0, 1), agreed=0.0, reduction="mean")}),
          together(scalar("k1", "metric", lambda rows, o: loops.token_mean(rows, lambda r, t: -UPDATE(r, t))),
                   scalar("k3", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: exp(UPDATE(r, t)) - 1 - UPDATE(r, t))),
                   scalar("clipfrac", "metric", lambda rows, o: loops.token_mean(
                       rows, lambda r, t: float(abs(exp(UPDATE(r, t)) - 1) > o["clip_coef"])))),
          neutral=True, several=True, unusual=True),
]  # fmt: skip
