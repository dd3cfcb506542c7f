"""Which part of the signal a function most likely is, from what it reads and what its first result is like."""

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed
from trimtab.sentinel.binding.callable import CannotCall, Found
from trimtab.sentinel.binding.guess import Plan
from trimtab.sentinel.binding.look import Look, looks_of
from trimtab.sentinel.binding.words import words_of


def role_of(
    fields: frozenset[str], looks: list[Look], found: Found, plan: Plan, probe: Case, *, by_size: bool
) -> str | None:
    """The most likely part of the signal, from what it reads and what its first result is like."""
    main = next((look for look in looks if look.level is not None), None)
    if main is None:
        raise CannotCall("no result has a shape that is known")
    policies = {f for f in fields if f in LOGPS}
    if fields & {"ratio", "log_ratio", "minus_log_ratio"}:
        policies |= {"logp_current", "logp_old"}
    if "gap_to_ref" in fields:
        policies = {"logp_current", "logp_ref"}
    if "teacher_logits" in fields:
        return "distillation"
    if fields & {"eos_id", "stop_ids"} and "token_id" in fields:
        return None if not main.is_flag else "keep" if "trainable" in fields else "response_mask"
    if "logits" in fields:
        if main.level == "scalar" and "token_id" in fields and main.has_gradient:
            return "kl_in_loss"  # a likelihood: a term of a loss
        return "logp" if "token_id" in fields else "entropy" if main.level == "token" else "statistic"
    if "value" in fields and "returns" in fields and not policies:
        return "value_loss" if main.has_gradient else "metric"
    if "advantage" in fields and policies:
        if "logp_ref" in fields and not main.has_gradient and main.level == "token" and not main.is_flag:
            return "kl_in_reward"  # advantages that were paid or charged for a distance
        return "keep" if main.is_flag else "policy_loss" if main.has_gradient else _numeric(main)
    if fields & {"reward", "token_reward"} and "logp_current" in policies and main.level != "token":
        return "policy_loss" if main.has_gradient else _numeric(main)
    if fields & {"reward", "token_reward"}:
        if (len(policies) > 1 or "kl" in fields) and main.level == "token" and "value" not in fields:
            return "returns" if _discounted(found) else "kl_in_reward"
        if main.is_flag and main.level == "sequence":
            return "keep"
        if ("group" in fields or by_size) and main.level == "scalar":
            return "metric"
        if "group" in fields or by_size:
            return "group_advantage" if main.level == "token" else "reward_normalisation"
        if main.level == "sequence":
            return "reward_normalisation"
        return "returns" if main.level == "token" else "metric"
    if len(policies) > 1:
        return _of_two_policies(main, found, plan, probe)
    if fields & {"token_loss", "advantage", "entropy", "kl", "returns"}:
        if main.is_flag:
            return "keep"
        return "whitening" if main.level == "token" else "aggregation" if main.has_gradient else "statistic"
    return None


def _discounted(found: Found) -> bool:
    return any(set(words_of(name)) & {"gamma", "discount"} for name in found.options)


def _numeric(main: Look) -> str | None:
    return "metric" if main.level == "scalar" else None


def _of_two_policies(main: Look, found: Found, plan: Plan, probe: Case) -> str | None:
    if main.is_flag:
        return "keep"
    if main.level == "scalar":
        counted = {one.field for one in plan.fillings} & {"count", "rows"}  # only a loss is divided by those
        return "kl_in_loss" if main.has_gradient or counted else "metric"
    same = next((look for look in looks_of(found, plan, agreed(probe)) if look.name == main.name), None)
    held = same.value if same is not None else None
    numbers = torch.cat([one.reshape(-1) for one in held]) if isinstance(held, list) else held
    if not isinstance(numbers, Tensor) or not numbers.numel():
        return None
    values = numbers.double()
    if float(values.abs().max()) < 1e-6:
        return "kl"
    # A factor is 1 where policies agree; one that is another constant there is a factor with a mistake.
    some = values[values != 0]  # a mask may have made others 0
    even = bool(some.numel()) and float((some - some.max()).abs().max()) < 1e-6
    is_factor = float((values - 1).abs().min()) < 1e-6 or (even and not main.has_gradient and float(values.max()) > 0)
    return "importance" if is_factor else None
