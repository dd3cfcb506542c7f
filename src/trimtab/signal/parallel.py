"""Data-parallel ranks: gather the batch, decide on the whole everywhere, train on your own share.

Flat fields are a few bytes per token, so gathering them costs little, and statistics, votes and denominators then come
out the same on every rank. A `Reducer` is what talks to other ranks; hooks inside other frameworks bring theirs.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.layout import Cells, Levels, Segments, SequenceIndex, renumbered


@runtime_checkable
class Reducer(Protocol):
    """How ranks talk: every rank's tensor in rank order, and their sum."""

    def concat(self, local: Tensor) -> list[Tensor]:
        """Every rank's 1-D tensor, in rank order; lengths may differ."""
        ...

    def sum(self, local: Tensor) -> Tensor:
        """The sum over ranks, on every rank."""
        ...


@dataclass(frozen=True)
class ProcessGroup:
    """A reducer over torch.distributed; None is the default group."""

    group: "dist.ProcessGroup | None" = None

    def concat(self, local: Tensor) -> list[Tensor]:
        ranks = dist.get_world_size(self.group)
        sizes = [torch.zeros(1, dtype=torch.long, device=local.device) for _ in range(ranks)]
        dist.all_gather(sizes, torch.tensor([local.shape[0]], device=local.device), group=self.group)
        widest = max(int(size) for size in sizes)
        # Backends gather no booleans and no tensors of unequal length.
        carried = local.to(torch.uint8) if local.dtype == torch.bool else local
        padded = torch.cat([carried, carried.new_zeros(widest - carried.shape[0])])
        found = [torch.zeros_like(padded) for _ in range(ranks)]
        dist.all_gather(found, padded, group=self.group)
        return [piece[: int(size)].to(local.dtype) for piece, size in zip(found, sizes, strict=True)]

    def sum(self, local: Tensor) -> Tensor:
        total = local.clone()
        dist.all_reduce(total, group=self.group)
        return total


TOKENS = ("logp_old", "logp_rollout", "logp_ref", "value_old", "token_reward", "position", "turn", "version")
SEQUENCES = ("length", "ended", "value_after")


def gather(batch: SignalBatch, reducer: Reducer, rank: int) -> tuple[SignalBatch, SequenceIndex]:
    """The batch of all ranks, the same on each, and which of its sequences are this rank's.

    Groups are joined by the caller's `group` names, so a prompt whose answers lie on two ranks is one group.
    """
    _check_alike(batch, reducer)
    counts = reducer.concat(batch.segments.token_counts)
    episodes = reducer.concat(batch.levels.episode_of_sequence)
    rewards = reducer.concat(batch.reward)
    offsets = [sum(len(r) for r in rewards[:i]) for i in range(len(rewards))]
    joined = torch.cat([e + offset for e, offset in zip(episodes, offsets, strict=True)])
    segments = Segments.from_counts(torch.cat(counts), int(sum(int(c.sum()) for c in counts)))
    group = torch.cat(reducer.concat(batch.group))
    start = sum(len(c) for c in counts[:rank])
    names = torch.cat(reducer.concat(batch.sequence_id))
    fields: dict[str, Any] = {name: _joined(batch, name, reducer.concat) for name in (*TOKENS, *SEQUENCES)}
    whole = SignalBatch(
        levels=Levels(segments, joined, *renumbered(group)),
        cells=Cells((segments.num_tokens,), torch.arange(segments.num_tokens, device=names.device)),
        reward=torch.cat(rewards),
        group=group,
        scored=torch.cat(reducer.concat(batch.scored)),
        sequence_id=_distinct(names),
        dtype=batch.dtype,
        extra={name: torch.cat(reducer.concat(values)) for name, values in sorted(batch.extra.items())},
        **fields,
    )
    return whole, torch.arange(start, start + len(counts[rank]), device=names.device)


def _check_alike(batch: SignalBatch, reducer: Reducer) -> None:
    """Every rank carries the same fields in the same precision: collectives pair up by order, not by name."""
    names = (*TOKENS, *SEQUENCES)
    carried = [getattr(batch, name) is None for name in names]
    word = int.from_bytes(hashlib.sha256("|".join(sorted(batch.extra)).encode()).digest()[:7])
    mine = torch.tensor([*carried, batch.dtype.itemsize, word], device=batch.reward.device)
    for rank, theirs in enumerate(reducer.concat(mine)):
        if not torch.equal(theirs, mine):
            differs = [
                name for name, a, b in zip((*names, "dtype", "extra"), theirs, mine, strict=True) if bool(a != b)
            ]
            raise SignalError(
                f"gather: rank {rank} differs from this one in {', '.join(differs)}, so one rank's field would be "
                "read as another's. Give every rank the same fields in one precision, also a rank without sequences."
            )


def _joined(batch: SignalBatch, name: str, concat: Callable[[Tensor], list[Tensor]]) -> Tensor | None:
    values = cast("Tensor | None", getattr(batch, name))
    return None if values is None else torch.cat(concat(values))


def _distinct(names: Tensor) -> Tensor:
    """The callers' ids where no two are alike; otherwise (each rank counted from 0) the place in the whole."""
    ordered = names.sort().values
    alike = bool((ordered[1:] == ordered[:-1]).any())
    return torch.arange(names.numel(), device=names.device) if alike else names
