"""AReaL: rewards to advantages, normalisation, KL and the penalty on length."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Call, Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.areal.source import (
    ACTOR,
    DATA,
    OWN,
    SHIFTED,
    functional,
    places_of,
)
from trimtab.sentinel.targets.stand_in import Settings, bounded, contiguous_groups
from trimtab.sentinel.targets.target import Binding


def _longest_did_not_end(case: Case) -> Case:
    """A sequence that fills its row counts as not ended. With the option on, it gets no task reward."""
    width = max((len(row) for row in case.kinds), default=0) + case.extra_columns
    shorter = torch.tensor([len(row) < width for row in case.kinds], dtype=torch.bool)
    return case.with_sequences(votes=shorter, ended=shorter)


def _norm(boundary: Boundary, case: Case, mean: str | None, std: str | None) -> Any:
    if mean is None and std is None:
        return None
    size = max((len(rows) for rows in contiguous_groups(case)), default=1)
    settings = Settings(
        mean_level=mean, std_level=std, mean_leave1out=False, std_unbiased=True, group_size=size, eps=1e-5
    )
    return boundary.get("Normalization")(settings)


def _actor(boundary: Boundary, case: Case, chosen: Mapping[str, Any]) -> Any:
    """An actor in the state after its constructor, without an engine."""
    config = Settings(use_decoupled_loss=True, recompute_logprob=True, overlong_reward_penalty=False)
    made: dict[str, Any] = {
        "config": config,
        "reward_bias": 0.0,
        "reward_scaling": 1.0,
        "reward_clip": 1000.0,
        "kl_ctl": chosen["kl_ctl"],
        "kl_estimator": boundary.get("KLEstimator")("k1"),
        "adv_norm": _norm(boundary, case, chosen.get("adv_norm"), chosen.get("adv_norm")),
        "reward_norm": _norm(boundary, case, chosen.get("reward_mean"), chosen.get("reward_std")),
        "discount": chosen["discount"],
        "gae_lambda": chosen["gae_lambda"],
        "gae_timestep_unit": "token",
        "_gae_lambda_is_custom": False,
        "mask_no_eos_with_zero": chosen["mask_no_eos_with_zero"],
    }
    return boundary.made(**made)


def _batch(case: Case, *, values: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {"side": "right"}
    found = {
        "input_ids": case.padded("token_id", **plain),
        "attention_mask": case.padded("attention", dtype=torch.long, **plain),
        "loss_mask": case.padded("trainable", **plain),
        "rewards": case.sequence("reward").float(),
        "logprobs": case.padded("logp_rollout", **plain).float(),
        "prox_logp": case.padded("logp_old", **SHIFTED).float(),
        "ref_logp": case.padded("logp_ref", **SHIFTED).float(),
    }
    return found | ({"values": _values(case)} if values else {})


def _values(case: Case) -> Tensor:
    """The output of a critic: at each token the value of the next state, at the last one that of the final state."""
    found = case.padded("value_old", **SHIFTED).float()
    rows = torch.arange(case.num_sequences)
    ends = torch.tensor([len(row) - 1 for row in case.kinds])
    return found.index_put((rows, ends), case.sequence("value_after").float())


def _advantages(boundary: Boundary) -> list[Subject]:
    def subject(options: Mapping[str, Any], **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            if any(len(row) < 2 or row[0] != "p" or row[-1] != "a" for row in case.kinds) or not case.kinds:
                raise case.cannot("a sequence must have a prompt and end with a token of the policy")
            if chosen["mask_no_eos_with_zero"]:
                case.sequence("votes")
            groups = contiguous_groups(case)
            data = _batch(case, values=bool(chosen.get("critic")))
            told = {"meta": Settings(traj_group_sizes=[len(g) for g in groups])}
            kept = handed.accepted(boundary, **told)
            done = boundary(_actor(boundary, case, chosen), data, **kept)
            return {
                "advantage": Result.token(case, done["advantages"], "advantage", **SHIFTED),
                "returns": Result(case.from_padded(done["returns"], **SHIFTED), "token", "return"),
            }

        base = {"kl_ctl": 0.0, "discount": 1.0, "gae_lambda": 1.0, "mask_no_eos_with_zero": False}
        return Subject(
            boundary.spec.name,
            call,
            options={**base, **options},
            boundary=boundary,
            adapt=_longest_did_not_end,
            waived=OWN,
            **facts,
        )

    suppressed = {"reward_mean": "batch", "mask_no_eos_with_zero": True}
    return [
        subject({"kl_ctl": 0.1}, couples="sequence", penalties={"kl_ctl": "logp_ref"}, variants={"kl_ctl": (0.5,)}),
        subject(
            {"critic": True, "discount": 0.9, "gae_lambda": 0.8},
            couples="sequence",
            variants={"discount": (1.0,), "gae_lambda": (1.0,), "mask_no_eos_with_zero": (True,)},
        ),
        subject({"reward_mean": "group", "reward_std": "group"}, couples="group", variants={"reward_std": (None,)}),
        subject(suppressed, couples="batch", variants={"reward_mean": ("group",), "mask_no_eos_with_zero": (False,)}),
        subject({"adv_norm": "batch"}, couples="batch", variants={"adv_norm": (None,)}),
    ]


def _normalization(boundary: Boundary) -> list[Subject]:
    """Reward normalisation by its own class, with group sizes for versions that take them."""
    from inspect import signature

    def subject(mean: str | None, std: str | None, *, leave_one_out: bool = False, **facts: Any) -> Subject:
        def call(case: Case, chosen: Mapping[str, Any]) -> Out:
            sizes = [len(rows) for rows in contiguous_groups(case)]
            config = Settings(group_size=max(sizes, default=1), eps=1e-5, std_unbiased=True, **chosen)
            norm = boundary.made(boundary.owner)
            boundary.get("Normalization.__init__")(norm, config)
            takes = signature(boundary.function).parameters
            extra = {"group_sizes": sizes} if "group_sizes" in takes else {}
            return {"advantage": Result.sequence(boundary(norm, case.sequence("reward").float(), **extra), "advantage")}

        options = {"mean_level": mean, "std_level": std, "mean_leave1out": leave_one_out}
        couples = "batch" if "batch" in (mean, std) else "group"
        return Subject(boundary.spec.name, call, options=options, couples=couples, boundary=boundary, **facts)

    by_group = handed.normalised(tokens=False, mean="group", std="group", ddof=1, eps=1e-5)
    centred = handed.normalised(tokens=False, mean="group", std="none", ddof=1, eps=0.0)
    return [
        subject("group", "group", definition=_no_lone(by_group), variants={"std_level": (None,)}),
        subject("group", None, definition=_no_lone(centred), variants={"mean_leave1out": (True,)}),
        subject(
            "group",
            None,
            leave_one_out=True,
            definition=_no_lone(handed.simply(like("normalize.leave_one_out", result="advantage"))),
        ),
        subject(
            "batch",
            "batch",
            definition=_no_lone(handed.normalised(tokens=False, mean="batch", std="batch", ddof=1, eps=1e-5)),
        ),
    ]


def _no_lone(define: Call) -> Call:
    """A group of one sequence has a separate rule, which changed between releases."""
    return lambda case, options: define(handed.no_lone(case), options)


def _kl(boundary: Boundary) -> list[Subject]:
    no_mask = "it takes no mask: its inputs were already multiplied by the loss mask"
    waived = {"mask_content": no_mask, "nonfinite_isolation": no_mask}
    return [
        bind(
            boundary,
            role="kl",
            name=boundary.spec.name,
            args={"log_probs": "logp_old", "log_probs_base": "logp_ref"},
            options={"kl_estimator": kind, "apply_clamp": False},
            waived=waived,
            definition=bounded(like(f"kl.{kind}", fields={"logp_current": "logp_old"}), "logp_old", "logp_ref"),
            variants={"kl_estimator": tuple({"k1", "k2", "k3"} - {kind})},
        )
        for kind in ("k1", "k2", "k3")
    ]


def _overlong(boundary: Boundary) -> Subject:
    def shaped(case: Case, **chosen: Any) -> Tensor:
        data = {
            "rewards": case.sequence("reward"),
            "input_ids": case.padded("token_id", side="right"),
            "loss_mask": case.padded("trainable", side="right"),
        }
        return boundary(data, **chosen)["rewards"]

    return bind(
        shaped,
        name=boundary.spec.name,
        args={"case": lambda c: c},
        options={"overlong_tokens": 2, "overlong_penalty_factor": 1.0, "max_response_length": 4},
        returns={"reward": at((), "reward", level="sequence")},
        variants={"overlong_tokens": (3,), "overlong_penalty_factor": (0.5,), "max_response_length": (3,)},
        waived={"credit_over_trainable": "the length counts all generated tokens"},
    )


BINDINGS: tuple[Binding, ...] = (
    Binding(
        "_compute_advantages",
        (*places_of("PPOActor._compute_advantages", ACTOR), *places_of("PPOActor.compute_advantages", ACTOR)),
        _advantages,
    ),
    Binding("Normalization", (Spec("Normalization.__call__", file=DATA),), _normalization),
    Binding("KLEstimator", (Spec("KLEstimator._compute_approx_kl", file=DATA),), _kl),
    functional("reward_overlong_penalty", _overlong),
)
