"""Inputs that are not fields of a case: rewards on a token, names of groups, counts, settings, records.

The only place that knows their layout in the callers of a target. A target chooses which of them its caller uses.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import groups_of
from trimtab.sentinel.binding.definitions import DEFINITIONS, plain
from trimtab.sentinel.binding.subject import Call, Out, Result
from trimtab.sentinel.findings.alone import Record, Settings
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.target import CouldNotBind

__all__ = [
    "Record", "Settings", "accepted", "counts", "ending_ids", "group_names", "groups_of", "lone_keeps_reward", "named",
    "no_lone", "normalised", "one_per_sequence", "parameters", "reward_on_last", "simply", "whitened",
]  # fmt: skip


def reward_on_last(case: Case, *, reward: str = "reward", trained: bool = False, **view: Any) -> Tensor:
    """[rows, width]: the reward of each sequence on its last trainable token (or last token, if none trains), else 0.

    trained  leave out cases in which some sequence has no trainable token
    """
    view = {"with_prompt": False, **view}
    trains, answer = (case.padded(name, dtype=torch.bool, **view) for name in ("trainable", "response"))
    flags = torch.where(trains.any(1, keepdim=True), trains, answer)
    if not bool((trains if trained else flags).any(1).all()):
        raise case.cannot("a sequence without tokens has no cell for its reward")
    spot = torch.zeros_like(flags)
    if flags.numel():
        spot[torch.arange(len(flags)), flags.shape[1] - 1 - flags.int().flip(1).argmax(1)] = True
    return torch.where(spot & flags, case.sequence(reward)[:, None], torch.zeros((), dtype=torch.float64))


def ending_ids(case: Case, *, tools: bool = False, ended: bool = False, **view: Any) -> Tensor:
    """Token ids with an end id at the end of every sequence, for functions that build masks from it.

    tools  take cases with tool output: the function is also told which tokens are tool output
    ended  only sequences that ended have an end id: the function is also told which these are
    """
    if not tools and any("o" in row for row in case.kinds):
        raise case.cannot("ids alone do not separate tool output from answers")
    stops = case.sequence("ended").bool().tolist() if ended else [True] * case.num_sequences
    ids = case.padded("token_id", with_prompt=True, side="right").clone()
    for row, kinds in enumerate(case.kinds):
        if stops[row] and kinds and int(ids[row, len(kinds) - 1]) not in case.eos_ids:
            ids[row, len(kinds) - 1] = case.eos_ids[row % len(case.eos_ids)]
    flat = torch.cat([ids[row, : len(kinds)] for row, kinds in enumerate(case.kinds)])
    shown: dict[str, Any] = {"with_prompt": False, **view}
    return case.with_tokens(token_id=flat).padded("token_id", **shown)


def no_lone(case: Case) -> Case:
    """The case, unless a sequence is alone in its group, which some estimators refuse."""
    groups = case.sequences["group"]
    if any(int((groups == g).sum()) < 2 for g in groups):
        raise case.cannot("a sequence is alone in its group, which it refuses")
    return case


def group_names(case: Case) -> Any:
    """One text per sequence, the same within a group, as an object array."""
    return case.sequence("group").numpy().astype(str).astype(object)


def counts(case: Case) -> tuple[int, int]:
    """Trainable tokens and sequences of the whole batch, which a trainer counts before it splits the batch."""
    return case.whole.segments.num_tokens, case.whole.num_sequences


def parameters(boundary: Boundary) -> list[str]:
    """The names of a function's arguments."""
    return list(inspect.signature(boundary.function).parameters)


def named(boundary: Boundary, *choices: str) -> str:
    """The spelling this version uses for one argument."""
    found = [name for name in choices if name in parameters(boundary)]
    if not found:
        raise CouldNotBind(
            f"{boundary.spec.name} takes none of {', '.join(choices)}; it takes {', '.join(parameters(boundary))}"
        )
    return found[0]


def accepted(boundary: Boundary, **values: Any) -> dict[str, Any]:
    """The values that this version accepts."""
    return {name: value for name, value in values.items() if name in parameters(boundary)}


def simply(define: Call) -> Call:
    """A definition where all samples vote and ended, none is rejected, and the reward is on the last token."""

    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        yes = torch.ones(case.num_sequences, dtype=torch.bool)
        kept = torch.ones_like(case.tokens["keep"])
        paid = torch.zeros_like(case.tokens["token_reward"])
        for row in range(case.num_sequences):
            own = ((case.owner == row) & case.trainable).nonzero().squeeze(1)
            if own.numel():
                paid[own[-1]] = case.sequences["reward"][row]
        plain = case.with_sequences(votes=yes, ended=yes).with_tokens(keep=kept, selected=~kept, token_reward=paid)
        return define(plain, options)

    return defined


def normalised(*, tokens: bool = True, lone_over: float | None = None, **settings: Any) -> Call:
    """Rewards minus a mean, over a spread, as advantages. `lone_over` divides the reward of a group of one."""

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        chosen = {n: s(options) if callable(s) else s for n, s in settings.items()}
        values = torch.tensor(DEFINITIONS["normalize.mean_std"](plain(case), **chosen)[0], dtype=torch.float64)
        if tokens:
            return {"advantage": Result(values[case.segments.sequence_of_token], "token", "advantage")}
        return {"advantage": Result(values, "sequence", "advantage")}

    return simply(lone_keeps_reward(define, lone_over) if lone_over is not None else define)


def lone_keeps_reward(define: Call, over: float = 1.0) -> Call:
    """A definition in which the sequence of a group of one keeps its reward. Other frameworks have other rules."""

    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        groups = case.sequences["group"]
        lone = torch.stack([(groups == g).sum() == 1 for g in groups])
        reward = case.sequences["reward"] / over
        out: dict[str, Result] = {}
        for name, result in define(case, options).items():
            owner = case.segments.sequence_of_token
            by_token = result.level == "token"
            alone, own = (lone[owner], reward[owner]) if by_token else (lone, reward)
            out[name] = Result(torch.where(alone, own.double(), result.value), result.level, result.kind)
        return out

    return defined


def whitened(
    define: Call, *, eps: float, ddof: int = 1, inside_root: bool = True, counted: float = 0.0, keep_mean: bool = False
) -> Call:
    """The advantage of a definition, with mean 0 and spread 1 over all trainable tokens of the batch.

    eps      added to the variance, or to its root
    counted  a stabiliser added to each count, as in masked means that divide by n + 1e-8
    """

    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        before = define(case, options)["advantage"].value.double()
        many = before.numel()
        if many < 2:
            raise case.cannot("one token has no spread")
        mean = before.sum() / (many + counted)
        variance = ((before - mean) ** 2).sum() / (many + counted) * many / (many - ddof)
        spread = (variance + eps).sqrt() if inside_root else variance.sqrt() + eps
        return {"advantage": Result((before - mean) / spread + (mean if keep_mean else 0.0), "token", "advantage")}

    return defined


def one_per_sequence(field: str) -> Callable[[Case], Case]:
    """Advantages that are constant in each sequence, as with an outcome reward."""
    return lambda case: case.with_tokens(**{field: case.sequences["outcome"][case.owner]})
