"""Stand-ins for a cluster: one process, options that are off, cases within bounds."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.definitions import DEFINITIONS, plain
from trimtab.sentinel.binding.subject import Call, Kind, Out, Result
from trimtab.sentinel.findings.alone import Alone, Lenient, OneProcess

__all__ = [
    "Alone", "OneProcess", "Settings", "answers", "bounded", "by_group", "contiguous_groups", "model_logits",
    "normalised", "row",
]  # fmt: skip

BOUND = 20.0
"""Some frameworks bound log-ratios beyond this and others do not, so definitions do not apply there."""


Settings = Lenient
"""Options as attributes. An option that the binding does not know is off."""


def bounded(definition: Call, *names: str) -> Call:
    """A definition that does not apply where policies are so far apart that implementations bound the ratio."""
    read = names or LOGPS

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        found = [case.flat(n).detach() for n in read if n in case.tokens]
        if not found[0].numel():
            return definition(case, options)
        apart = torch.stack(found)
        if float((apart.max(0).values - apart.min(0).values).max()) > BOUND - 0.1:
            raise case.cannot(f"policies are more than {BOUND:g} apart")
        return definition(case, options)

    return define


def normalised(mean: str, std: str, *, ddof: int = 1, eps: float = 1e-6) -> Call:
    """Rewards minus a mean, over a spread, where all samples vote: for functions that know no suppressed samples."""

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        if std != "none" and any(len(rows) == 1 for rows in by_group(case)):
            raise case.cannot("the spread of a single sample is not defined")
        voting = case.with_sequences(votes=torch.ones(case.num_sequences, dtype=torch.bool))
        values, _ = DEFINITIONS["normalize.mean_std"](plain(voting), mean=mean, std=std, ddof=ddof, eps=eps)
        return {"advantage": Result.sequence(values, "advantage")}

    return define


def by_group(case: Case) -> list[list[int]]:
    """The rows of each group, at any position."""
    group = cast("list[int]", case.sequence("group").tolist())
    return [[i for i, g in enumerate(group) if g == name] for name in sorted(set(group))]


def answers(case: Case, values: Tensor | Sequence[Tensor], kind: Kind, *, masked: bool = True, **facts: Any) -> Result:
    """A result over all tokens after the prompts, as a list or in one row; with `masked`, readers mask it again."""
    rows = list(values.split(case.response_lengths)) if isinstance(values, Tensor) else list(values)
    if masked:
        return Result(case.from_list(rows, with_prompt=False), "token", kind, **facts)
    return Result.token(case, rows, kind, layout="list", with_prompt=False, **facts)


def row(case: Case, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """All tokens after the prompts in one row."""
    return torch.cat(case.list(name, with_prompt=False, dtype=dtype))


def model_logits(case: Case, name: str = "logits") -> Tensor:
    """[tokens, vocabulary] over one packed row like the output of a model: position t predicts token t + 1."""
    return torch.roll(case.packed(name), -1, 0)


def contiguous_groups(case: Case) -> list[list[int]]:
    """Rows of each group, for frameworks that find groups only by position."""
    group = cast("list[int]", case.sequence("group").tolist())
    blocks: list[list[int]] = []
    for i, g in enumerate(group):
        if blocks and group[blocks[-1][-1]] == g:
            blocks[-1].append(i)
        else:
            blocks.append([i])
    if len(blocks) != len(set(group)):
        raise case.cannot("its groups are not next to each other")
    return blocks
