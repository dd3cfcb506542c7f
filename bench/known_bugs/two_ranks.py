"""Two context-parallel ranks that own the halves of every sequence: how slime and miles whiten advantages there."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.stand_in import Alone, OneProcess, Settings

HERE = {"world": 1, "rank": 0}
"""The rank of this process, set before each call."""
_OWN: list[Any] = []


def own_group() -> Any:
    """A group of this rank alone, as the data-parallel group without context parallel is; every rank makes them all."""
    if HERE["world"] == 1:
        return None
    if not _OWN:
        _OWN.extend(distributed.new_group([rank]) for rank in range(HERE["world"]))
    return _OWN[HERE["rank"]]


class Megatron(OneProcess):
    """Megatron's parallel state with two context-parallel ranks and one data-parallel one."""

    def get_context_parallel_world_size(self) -> int:
        return HERE["world"]

    def get_context_parallel_rank(self) -> int:
        return HERE["rank"]

    def get_data_parallel_group(self, with_context_parallel: bool = False) -> Any:
        return None if with_context_parallel else own_group()


class State:
    """miles' parallel state, the same."""

    is_pp_last_stage = True

    def __getattr__(self, name: str) -> Any:
        if name == "cp":
            return SimpleNamespace(size=HERE["world"], rank=HERE["rank"], group=None)
        everybody = name in ("intra_dp_cp", "effective_dp_cp")
        return SimpleNamespace(size=1, rank=0, group=None if everybody else own_group())


class Communicating(Alone):
    """torch.distributed where processes communicate, and one process where none were started."""

    def all_reduce(self, tensor: Tensor, **told: Any) -> None:
        if distributed.is_initialized():
            distributed.all_reduce(tensor, **told)


def stand_ins() -> dict[str, object]:
    return {"mpu": Megatron(), "get_parallel_state": State, "dist": Communicating()}


Whiten = Callable[[Boundary, Case, list[Tensor]], list[Tensor]]


def subject(fn: Boundary, whiten: Whiten, offsets: Callable[[int, int], Any]) -> Subject:
    """Each rank whitens its own tokens; all others are NaN."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        HERE.update(world=case.world, rank=case.rank)
        if any(kinds[:1] != ("p",) or "a" not in kinds for kinds in case.kinds):
            raise case.cannot("every sequence has a prompt and an answer")
        full = case.list("advantage", with_prompt=False)
        places = [_owned(offsets, n, r) for n, r in zip(case.lengths, case.response_lengths, strict=True)]
        found = whiten(fn, case, [v[p].detach().float() for v, p in zip(full, places, strict=True)])
        back = [torch.full((r,), float("nan")) for r in case.response_lengths]
        for row, place, values in zip(back, places, found, strict=True):
            row[place] = values
        return {"advantage": Result(case.from_list(back, with_prompt=False), "token", "advantage")}

    return Subject(fn.spec.name, call, couples="batch", ranks="context", role="whitening")


def _owned(offsets: Callable[[int, int], Any], total: int, response: int) -> Tensor:
    if HERE["world"] == 1:
        return torch.arange(response)
    prompt = total - response
    pieces = [torch.arange(max(0, s - prompt), max(0, e - prompt)) for s, e in offsets(total, response)[3]]
    return torch.cat(pieces)


def slime(fn: Boundary) -> Subject:
    """The whitening statements of compute_advantages_and_returns, with advantages as they come in."""

    def whiten(fn: Boundary, case: Case, local: list[Tensor]) -> list[Tensor]:
        found = fn(
            args=Settings(normalize_advantages=True), advantages=local, total_lengths=case.lengths,
            loss_masks=[m.float() for m in case.list("trainable", with_prompt=False)],
            response_lengths=case.response_lengths,
        )  # fmt: skip
        return found["advantages"]

    return subject(fn, whiten, lambda n, r: fn.get("get_logits_and_tokens_offset_with_cp")(n, r))


def miles(fn: Boundary) -> Subject:
    """normalize_advantages."""

    def whiten(fn: Boundary, case: Case, local: list[Tensor]) -> list[Tensor]:
        masks = [m.float() for m in case.list("trainable", with_prompt=False)]
        return fn(Settings(qkv_format="thd"), local, masks, case.lengths, case.response_lengths)

    return subject(fn, whiten, lambda n, r: fn.get("get_logits_and_tokens_offset_with_cp")(n, r, "thd", None))
