"""Definitions to compare a foreign function with: our formulas by name, averages by name, and log-probs from logits.

definition=like("policy_loss.clipped", mean="token_mean", band=lambda o: (1 - o["eps"], 1 + o["eps"]))
definition=average(lambda o: o["mode"].replace("-", "_"))
definition=scored(temperature="temperature")
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import TrimtabError, unknown_name
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.definitions import DEFINITIONS, plain
from trimtab.sentinel.binding.subject import Call, Kind, Out, Result
from trimtab.sentinel.invariants.scale import candidates

_KINDS: dict[str, tuple[str, Kind]] = {
    "reward": ("sequence", "reward"), "normalize": ("sequence", "advantage"), "kl": ("token", "kl"),
    "advantage": ("token", "advantage"), "importance": ("token", "importance"), "keep": ("token", "keep"),
    "select": ("token", "weight"), "policy_loss": ("token", "term"), "value_loss": ("token", "term"),
    "weighting": ("token", "weight"),
}  # fmt: skip

STOPS_GRADIENT = (
    "policy_loss.clipped_importance", "policy_loss.geometric_clipped_token", "policy_loss.gamma_weighted",
    "policy_loss.tapered", "policy_loss.turn_clipped", "kl.k2_gradient", "kl.importance_weighted_k2_gradient",
)  # fmt: skip
"""Formulas that contain a stop-gradient, so the slopes of their values are not their gradients."""

Setting = Any | Callable[[Mapping[str, Any]], Any]


def like(
    formula: str,
    *,
    result: str | None = None,
    mean: str | Callable[[Mapping[str, Any]], str] | None = None,
    fields: Mapping[str, str] | None = None,
    scale: float = 1.0,
    tokens: bool = False,
    **settings: Setting,
) -> Call:
    """A formula of the catalogue as a definition.

    result    the name of the subject's result it defines; its kind unless given
    mean      turn a per-token term into a scalar loss by a named average
    fields    read other fields instead of ours: {"logp_old": "logp_rollout"}
    scale     a factor, such as 0.5 in front of a squared error
    tokens    copy a per-sequence result to its tokens
    settings  the formula's settings, or functions of the subject's options
    """
    if formula not in DEFINITIONS:
        raise TrimtabError(unknown_name("definition", formula, sorted(DEFINITIONS)))
    level, kind = _KINDS[formula.split(".")[0]]
    if (
        level == "sequence" and mean is not None
    ):  # here `mean` is a setting of the formula itself: the mean it subtracts
        settings, mean = {**settings, "mean": mean}, None

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        renamed = {ours: case.tokens[theirs] for ours, theirs in (fields or {}).items()}
        own = case.with_tokens(**renamed)
        chosen = {n: s(options) if callable(s) else s for n, s in settings.items()}
        values = torch.tensor(DEFINITIONS[formula](plain(own), **chosen)[0], dtype=torch.float64) * scale
        if mean is not None:
            name = mean(options) if callable(mean) else mean
            return {result or "loss": Result((values * _shares(case, name)).sum(), "scalar", "loss")}
        if tokens and level == "sequence":
            return {result or kind: Result(values[case.segments.sequence_of_token], "token", kind)}
        found = Result(values, "token" if level == "token" else "sequence", kind)
        return {result or kind: found}

    define.stops_gradient = formula in STOPS_GRADIENT  # type: ignore[attr-defined]
    return define


def _shares(case: Case, name: str) -> Tensor:
    known = candidates(case)
    if name not in known:
        raise TrimtabError(unknown_name("average", name, sorted(known)))
    empty = bool((case.whole.segments.token_counts == 0).any())
    if empty and f"{name} over all rows" in known:
        raise case.cannot(f"rows without a token may or may not count in {name}")
    return known[name]


def average(
    name: str | Callable[[Mapping[str, Any]], str],
    *,
    of: str = "token_loss",
    result: str = "loss",
    divisor: float = 1.0,
) -> Call:
    """A named average of a field over trainable tokens: token_mean, token_sum, sequence_mean_token_sum, …"""

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        chosen = name(options) if callable(name) else name
        total = sum(
            (float(v) * float(w) for v, w in zip(case.flat(of).detach(), _shares(case, chosen), strict=True)), 0.0
        )
        return {result: Result(torch.tensor(total / divisor, dtype=torch.float64), "scalar", "loss")}

    return define


def scored(
    *, temperature: str | None = None, logits: str = "logits", names: tuple[str, ...] = ("logp", "entropy")
) -> Call:
    """Log-prob and entropy per token, from logits divided by a temperature."""

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        heat = float(options.get(temperature, 1.0)) if temperature else 1.0
        scores = torch.log_softmax(case.flat(logits).detach().double() / heat, -1)
        chosen = scores.gather(-1, case.flat("token_id")[:, None]).squeeze(-1)
        entropy = -(scores.exp() * scores).sum(-1)
        found = {"logp": Result(chosen, "token", "logp"), "entropy": Result(entropy, "token", "entropy")}
        return {name: found[name] for name in names}

    return define


def divergence(kind: str, *, result: str = "kl", temperature: float = 1.0, weight: float = 0.5) -> Call:
    """A divergence over the whole vocabulary between student `logits` and `teacher_logits`: forward, reverse or jsd."""

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        student, teacher = (
            torch.log_softmax(case.flat(n).detach().double() / temperature, -1) for n in ("logits", "teacher_logits")
        )
        mixed = torch.log(weight * teacher.exp() + (1 - weight) * student.exp())
        value = {
            "forward": (teacher.exp() * (teacher - student)).sum(-1),
            "reverse": (student.exp() * (student - teacher)).sum(-1),
            "jsd": weight * (teacher.exp() * (teacher - mixed)).sum(-1)
            + (1 - weight) * (student.exp() * (student - mixed)).sum(-1),
        }[kind]
        return {result: Result(value, "token", "kl")}

    return define


def reward_at_end(*, result: str = "reward") -> Call:
    """The reward of the sequence on its last trainable token, and 0 on all others."""

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        value = torch.zeros(case.segments.num_tokens, dtype=torch.float64)
        for i, (first, count) in enumerate(zip(case.segments.first_token, case.segments.token_counts, strict=True)):
            if int(count):
                value[int(first) + int(count) - 1] = case.sequences["reward"][i]
        return {result: Result(value, "token", "reward")}

    return define
