"""Entries in the dialect of TRL."""

import math
from types import SimpleNamespace
from typing import Any

from tests.right import loops
from tests.right.entry import Entry
from tests.right.held.telling import slopes_differ
from tests.right.loops import Row, gap, per_row, per_token, ppo, scalar
from tests.right.second.pairing import pairs, summed
from tests.right.shapes import in_pairs, prompted, whole_tokens

from trimtab.sentinel import Case, Subject, at, bind
from trimtab.sentinel.binding.subject import Result
from trimtab.sentinel.targets.handed import ending_ids

UPDATE = gap("logp_current", "logp_old")
ARGS = {"per_token_logps": "logp_current", "old_per_token_logps": "logp_old", "advantages": "outcome",
        "completion_mask": "trainable"}  # fmt: skip


def _trainer(**settings: Any) -> Any:
    return SimpleNamespace(args=SimpleNamespace(**settings), epsilon_low=settings["epsilon"],
                           epsilon_high=settings["epsilon_high"])  # fmt: skip


def _loss(method: Any) -> Subject:
    def loss(
        per_token_logps, old_per_token_logps, advantages, completion_mask, num_items_in_batch,
        epsilon, epsilon_high, loss_type,
    ):  # fmt: skip
        inputs = {"completion_mask": completion_mask, "advantages": advantages,
                  "old_per_token_logps": old_per_token_logps, "num_items_in_batch": num_items_in_batch}  # fmt: skip
        trainer = _trainer(epsilon=epsilon, epsilon_high=epsilon_high, loss_type=loss_type)
        return method(trainer, per_token_logps, inputs)

    return bind(
        loss, role="policy_loss", name="GRPOTrainer._compute_loss", args={**ARGS, "num_items_in_batch": whole_tokens},
        options={"epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "cispo"},
        variants={"epsilon_high": (0.1,), "loss_type": ("dapo",)},
    )  # fmt: skip


def _loss_value(rows: list[Row], o: Any) -> float:
    def one(r: Row, t: int) -> float:
        if o["loss_type"] == "dapo":
            return ppo(UPDATE(r, t), r.outcome, 1 - o["epsilon"], 1 + o["epsilon_high"])
        return -min(loops.exp(UPDATE(r, t)), 1 + o["epsilon_high"]) * r.outcome * r.logp_current[t]

    return sum(r.total(one) for r in rows) / max(whole_tokens(rows[0].case), 1)


def _prepared(method: Any) -> Subject:
    def prepared(rewards, old_per_token_logps, ref_per_token_logps, completion_mask, beta):
        trainer = SimpleNamespace(beta=beta, num_generations=2)
        return method(trainer, rewards, old_per_token_logps, ref_per_token_logps, completion_mask)

    return bind(
        prepared, role="group_advantage", name="RLOOTrainer._prepare_inputs", args={"rewards": in_pairs("reward")},
        options={"beta": 0.05}, variants={"beta": (0.5,)}, penalties={"beta": "logp_ref"},
    )  # fmt: skip


def _against_the_other(rows: list[Row], o: Any) -> list[float]:
    def paid(row: Row) -> float:
        return row.reward - o["beta"] * row.total(gap("logp_old", "logp_ref"))

    return [paid(r) - loops.mean([paid(p) for p in loops.peers(rows, r) if p is not r]) for r in rows]


def _geometric(method: Any) -> Subject:
    def loss(per_token_logps, old_per_token_logps, advantages, completion_mask, epsilon, epsilon_high):
        inputs = {"completion_mask": completion_mask, "advantages": advantages,
                  "old_per_token_logps": old_per_token_logps}  # fmt: skip
        return method(_trainer(epsilon=epsilon, epsilon_high=epsilon_high), per_token_logps, inputs)

    return bind(
        loss, role="policy_loss", name="GMPOTrainer.compute_loss", args=ARGS,
        options={"epsilon": 0.1, "epsilon_high": 0.4}, variants={"epsilon": (0.02,), "epsilon_high": (0.03,)},
    )  # fmt: skip


def _geometric_value(rows: list[Row], o: Any) -> float:
    found: list[float] = []
    for row in rows:
        bounded = [min(UPDATE(row, t), o["epsilon_high"]) if row.outcome > 0 else max(UPDATE(row, t), -o["epsilon"])
                   for t in range(row.count)]  # fmt: skip
        if row.count:
            found.append(-row.outcome * math.exp(loops.mean(bounded)))
    return loops.mean(found)


def _mask(fn: Any) -> Subject:
    return bind(
        fn, role="response_mask", args={"completion_ids": lambda case: ending_ids(case, with_prompt=False)},
        options={"eos_token_ids": [1]},
    )  # fmt: skip


def _all_cells(case: Case, o: Any) -> Any:
    width = max(case.response_lengths)
    cells = [[float(t < n) for t in range(width)] for n in case.response_lengths]
    return {"mask": Result(loops.numbers([x for row in cells for x in row]).view(len(cells), width), "cell", "mask")}


def _preferred(case: Case, o: Any) -> Any:
    rows = loops.rows(case)
    found: list[float] = []
    for chosen, rejected in pairs(case):
        margin = o["beta"] * (rows[chosen].total(gap("logp_current", "logp_ref"))
                              - rows[rejected].total(gap("logp_current", "logp_ref")))  # fmt: skip
        smooth = o["label_smoothing"]
        found.append((1 - smooth) * _softplus(-margin) + smooth * _softplus(margin))
    return {"loss": Result(loops.numbers([loops.mean(found)])[0], "scalar", "loss")}


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


ENTRIES = [
    Entry("GRPOTrainer._compute_loss", "trl", "policy_loss",
          "The truncated ratio of CISPO is not detached, so its own gradient is added.", _loss,
          scalar("loss", "loss", _loss_value, detached=True), differs=slopes_differ(_loss)),
    Entry("RLOOTrainer._prepare_inputs", "trl", "group_advantage",
          "The KL of a completion is added to its reward.", _prepared,
          per_row("advantage", "advantage", _against_the_other), neutral=True),
    Entry("GMPOTrainer.compute_loss", "trl", "policy_loss",
          "The two bounds of the clip are exchanged.", _geometric, scalar("loss", "loss", _geometric_value)),
    Entry("get_completion_mask", "trl", "response_mask",
          "The EOS itself is not trained.", _mask, _all_cells),
    Entry("summarise", "trl", "entropy",
          "Probabilities are at the temperature, their logarithms are not.",
          lambda fn: bind(
              fn, role="entropy", args={"logits": lambda case: prompted(case).logits()},
              view={"with_prompt": True, "shift": True}, options={"temperature": 0.7},
              variants={"temperature": (1.0,)}, temperature="temperature"),
          per_token("entropy", "entropy", lambda r, t, o: loops.entropy(r.logits[t], o["temperature"])),
          neutral=True, single=True),
    Entry("step", "trl", "preference",
          "The log-ratio of the reference is rejected minus chosen.",
          lambda fn: bind(
              fn, role="preference",
              args={"chosen_logps": summed("logp_current", 0), "rejected_logps": summed("logp_current", 1),
                    "ref_chosen_logps": summed("logp_ref", 0), "ref_rejected_logps": summed("logp_ref", 1)},
              options={"beta": 0.1, "label_smoothing": 0.0},
              variants={"beta": (0.5,), "label_smoothing": (0.1,)}, returns={"loss": at(0, "loss")}),
          _preferred, neutral=True),
]  # fmt: skip
