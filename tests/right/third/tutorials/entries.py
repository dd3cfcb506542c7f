"""Entries in the dialect of tutorials."""

from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.loops import Row, gap, ppo, scalar, together, walked

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Out, Result
from trimtab.sentinel.targets.handed import ending_ids

UPDATE = gap("logp_current", "logp_old")


def _all_parts(cls: Any) -> Subject:
    def loss(newlogprob, oldlogprob, advantages, newvalue, returns, entropy, mask, clip_coef, vf_coef, ent_coef):
        made = cls(clip_coef=clip_coef, vf_coef=vf_coef, ent_coef=ent_coef)
        return made(newlogprob, oldlogprob, advantages, newvalue, returns, entropy, mask)

    return bind(
        loss, role="policy_loss", name="ActorCriticLoss",
        args={"newlogprob": "logp_current", "oldlogprob": "logp_old", "advantages": "advantage", "newvalue": "value",
              "returns": "returns", "entropy": "entropy", "mask": "trainable"},
        options={"clip_coef": 0.2, "vf_coef": 0.5, "ent_coef": 0.01},
        variants={"clip_coef": (0.1,), "vf_coef": (0.1,), "ent_coef": (0.1,)},
        returns={"loss": at("loss", "loss"), "approx_kl": at("approx_kl", "metric")},
    )  # fmt: skip


def _all_parts_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        policy = ppo(UPDATE(r, t), r.advantage[t], 1 - o["clip_coef"], 1 + o["clip_coef"])
        value = 0.5 * (r.value[t] - r.returns[t]) ** 2
        return policy + o["vf_coef"] * value - o["ent_coef"] * r.entropy[t]

    return loops.token_mean(rows, one)


def _objective_value(rows: list[Row], o: Any) -> float:
    return loops.row_mean(rows, lambda r, t: ppo(UPDATE(r, t), r.outcome, 1 - o["eps"], 1 + o["eps"]), empty=True)


def _all_cells(case: Case, o: Any) -> Out:
    width = max(case.response_lengths)
    cells = [[float(t < n) for t in range(width)] for n in case.response_lengths]
    return {"mask": Result(loops.numbers([x for row in cells for x in row]).view(len(cells), width), "cell", "mask")}


ENTRIES = [
    Entry("ActorCriticLoss", "tutorials", "policy_loss",
          "The entropy is added to the loss, so that training makes it small.", _all_parts,
          together(scalar("loss", "loss", _all_parts_value),
                   scalar("approx_kl", "metric",
                          lambda rows, o: loops.token_mean(rows, lambda r, t: loops.k3(-UPDATE(r, t))))),
          several=True, pads_finite=True),
    Entry("scan", "tutorials", "returns",
          "The value of the next column is used, also where that is tool output or padding.",
          lambda fn: bind(
              fn, role="returns", args={"r": "token_reward", "v": "value", "m": "trainable"},
              options={"g": 0.95, "lam": 0.9}, variants={"g": (1.0,), "lam": (0.5,)},
              returns={"advantages": at((), "advantage")}),
          walked("advantages", "advantage",
                 lambda row, o: loops.gae(row, row.token_reward, row.value, o["g"], o["lam"])),
          neutral=True, unusual=True),
    Entry("objective", "tutorials", "policy_loss",
          "The larger of the two surrogates is maximised.",
          lambda fn: bind(
              fn, role="policy_loss",
              args={"lp": "logp_current", "lp_beh": "logp_old", "A": "outcome", "w": "trainable"},
              options={"eps": 0.2}, variants={"eps": (0.05,)}),
          scalar("loss", "loss", _objective_value), neutral=True, unusual=True),
    Entry("upto", "tutorials", "response_mask",
          "Ids after the first stop are still trained.",
          lambda fn: bind(
              fn, role="response_mask", args={"ids": lambda case: ending_ids(case, with_prompt=False)},
              options={"stop": 1}),
          _all_cells, neutral=True, unusual=True),
]  # fmt: skip
