"""TRL: the statements that turn rewards into advantages."""

from collections.abc import Mapping
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Call, Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.stand_in import Settings, contiguous_groups
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.trl.source import (
    FROM_REWARDS,
    GRPO,
    RLOO,
    SCORE,
    Alone,
    found_in,
)


def _advantages(boundary: Boundary, options: Mapping[str, Any], **facts: Any) -> Subject:
    """The statements between the rewards of every function and the advantages; a missing reward is NaN."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        groups = contiguous_groups(case)
        if len({len(g) for g in groups}) != 1:
            raise case.cannot("prompts must have the same number of completions")
        votes = case.sequence("votes")
        given = torch.where(votes, case.sequence("reward"), float("nan"))[:, None].clone()
        trainer = Settings(
            **{
                "reward_weights": torch.ones(1, dtype=torch.float64),
                "multi_objective_aggregation": "sum_then_normalize",
                "reward_clip_range": None,
                "beta": 0.0,
                "normalize_advantages": False,
                "num_generations": len(groups[0]),
                "reward_funcs": [None],
                "accelerator": Alone(),
                **chosen,
            }
        )
        found = boundary(
            self=trainer,
            rewards_per_func=given,
            device=torch.device("cpu"),
            num_generations=len(groups[0]),
            mode="train",
        )
        return {"advantage": Result.sequence(found["advantages"], "advantage")}

    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, **facts)


def normalized(std: str) -> Call:
    define = handed.normalised(tokens=False, mean="group", std=std, ddof=1, eps=1e-4)

    def everybody(case: Case, options: Mapping[str, Any]) -> Out:
        if not bool(case.sequences["votes"].all()):
            raise case.cannot("the plain definition needs batches in which all completions have a reward")
        return define(handed.no_lone(case), options)

    return everybody


def _grpo_advantages(boundary: Boundary) -> list[Subject]:
    others = {"group": ("none", "batch"), "batch": ("none", "group"), "none": ("group", "batch")}
    return [
        _advantages(
            boundary,
            {"scale_rewards": kind},
            couples="batch" if kind == "batch" else "group",
            definition=normalized(kind),
            variants={"scale_rewards": others[kind]},
            impossible={"scale_rewards": ("groups",), "multi_objective_aggregation": ("sum",)},
        )
        for kind in ("group", "none", "batch")
    ]


def _rloo_advantages(boundary: Boundary) -> list[Subject]:
    plain = like("normalize.leave_one_out", result="advantage")
    return [
        _advantages(
            boundary,
            {"normalize_advantages": False},
            couples="group",
            definition=lambda case, o: plain(handed.no_lone(case), o),
            variants={"normalize_advantages": (True,)},
        ),
        _advantages(boundary, {"normalize_advantages": True}, couples="batch"),
    ]


BINDINGS: tuple[Binding, ...] = (
    found_in(GRPO, f"GRPOTrainer.{SCORE}", _grpo_advantages, "GRPOTrainer advantages", **FROM_REWARDS),
    found_in(RLOO, f"RLOOTrainer.{SCORE}", _rloo_advantages, "RLOOTrainer advantages", **FROM_REWARDS),
)
