"""Data-parallel ranks: gather the batch, decide on the whole everywhere, train on your own share.

Flat fields are a few bytes per token, so gathering them costs little, and statistics, votes and denominators then come
out the same on every rank. A `Reducer` is what talks to other ranks; hooks inside other frameworks bring theirs.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.cell import Cells
from trimtab.signal.group import renumbered
from trimtab.signal.layout import Levels, Segments, SequenceIndex
from trimtab.signal.metrics import Metrics, as_data, from_data
from trimtab.signal.update import Update


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
SEQUENCES = ("length", "ended", "value_after", "observed")
EPISODES = ("rewards", "rewards_scored", "baseline", "role", "source")


def gather(batch: SignalBatch, reducer: Reducer, rank: int) -> tuple[SignalBatch, SequenceIndex]:
    """The batch of all ranks, the same on each, and which of its sequences are this rank's.

    Groups are joined by the caller's `group` names, so a prompt whose answers lie on two ranks is one group.
    """
    batch = _alike(batch, reducer)
    counts = reducer.concat(batch.segments.token_counts)
    episodes = reducer.concat(batch.levels.episode_of_sequence)
    rewards = reducer.concat(batch.reward)
    offsets = [sum(len(r) for r in rewards[:i]) for i in range(len(rewards))]
    joined = torch.cat([e + offset for e, offset in zip(episodes, offsets, strict=True)])
    segments = Segments.from_counts(torch.cat(counts), int(sum(int(c.sum()) for c in counts)))
    group = torch.cat(reducer.concat(batch.group))
    start = sum(len(c) for c in counts[:rank])
    names = torch.cat(reducer.concat(batch.sequence_id))
    fields: dict[str, Any] = {name: _joined(batch, name, reducer.concat) for name in (*TOKENS, *SEQUENCES, *EPISODES)}
    for name in ("rewards", "rewards_scored"):
        if fields[name] is not None:
            fields[name] = fields[name].reshape(sum(map(len, rewards)), -1)
    whole = SignalBatch(
        levels=Levels(segments, joined, *renumbered(group)),
        cells=Cells((segments.num_tokens,), device=names.device),
        reward=torch.cat(rewards),
        group=group,
        scored=torch.cat(reducer.concat(batch.scored)),
        sequence_id=_distinct(names),
        dtype=batch.dtype,
        extra={name: torch.cat(reducer.concat(values)) for name, values in sorted(batch.extra.items())},
        **fields,
    )
    return whole, torch.arange(start, start + len(counts[rank]), device=names.device)


def gather_tokens(update: Update, values: Tensor, mine: SequenceIndex, reducer: Reducer) -> Tensor:
    """What every rank's model says about its own sequences, as one field over the tokens of the whole update.

    `values`: one number per token of this rank's sequences of the update, in the update's order; `mine`: which
    sequences of the batch are this rank's, from `gather`. For `decide(update, logp_now=…)` on every rank.
    """
    own = update.sequences[torch.isin(update.sequences, mine.to(update.sequences.device))]
    counts = update.whole.segments.token_counts
    first = update.whole.segments.first_token
    place = {name: index for index, name in enumerate(cast("list[int]", update.sequences.tolist()))}
    expected = sum(int(counts[place[name]]) for name in cast("list[int]", own.tolist()))
    if values.ndim != 1 or len(values) != expected:
        raise SignalError(
            f"gather_tokens: there are {list(values.shape)} values for the {expected} tokens of this rank's {len(own)} "
            "sequences, so they have no place. Give one value per token, in the order of update.sequences."
        )
    found = torch.full((update.num_tokens,), float("nan"), dtype=values.dtype, device=values.device)
    for names, said in zip(reducer.concat(own), reducer.concat(values.detach()), strict=True):
        done = 0
        for name in cast("list[int]", names.tolist()):
            start, size = int(first[place[name]]), int(counts[place[name]])
            found[start : start + size] = said[done : done + size]
            done += size
    lost = int(found.isnan().sum())
    if lost:
        raise SignalError(
            f"gather_tokens: {lost} of {update.num_tokens} tokens are nan or belong to no rank, so nothing can be "
            "decided about them. Every sequence of the update must be one rank's own."
        )
    return found


def merge_metrics(metrics: Metrics, reducer: Reducer) -> Metrics:
    """The metrics of all ranks, on every rank: what one process with all the data would have reported."""
    mine = torch.frombuffer(bytearray(json.dumps(as_data(metrics)).encode()), dtype=torch.uint8)
    joined = Metrics.empty()
    for theirs in reducer.concat(mine):
        joined = joined.merge(from_data(json.loads(theirs.numpy().tobytes())))
    return joined


def _alike(batch: SignalBatch, reducer: Reducer) -> SignalBatch:
    """The batch, if every rank carries the same fields in the same precision: collectives pair up by order, not name.

    A rank without sequences cannot know what the others carry, so it is given their fields, empty.
    """
    mine = {name: _dtype(getattr(batch, name)) for name in (*TOKENS, *SEQUENCES, *EPISODES)}
    mine |= {f"extra.{name}": _dtype(values) for name, values in batch.extra.items()}
    told = [len(batch.segments.token_counts), _named(batch.dtype), mine]
    text = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8).to(batch.reward.device)
    said = [json.loads(piece.cpu().numpy().tobytes()) for piece in reducer.concat(text)]
    full = [(rank, theirs) for rank, (size, _, theirs) in enumerate(said) if size]
    if full and not told[0]:
        return _emptied(batch, *said[full[0][0]][1:])
    for rank, theirs in full:
        differs = [
            f"{name} ({theirs.get(name, 'absent')} there, {mine.get(name, 'absent')} here)"
            for name in sorted({*mine, *theirs})
            if mine.get(name, "absent") != theirs.get(name, "absent")
        ]
        if differs:
            raise SignalError(
                f"gather: rank {rank} differs from this one in {', '.join(differs)}, so one rank's field would be "
                "read as another's. Give every rank the same fields in one precision."
            )
    return batch


def _dtype(values: Tensor | None) -> str:
    return "absent" if values is None else _named(values.dtype)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _emptied(batch: SignalBatch, dtype: str, kinds: dict[str, str]) -> SignalBatch:
    """No sequences, with the fields that another rank told of."""
    device = batch.reward.device
    made = {
        n: None if kind == "absent" else torch.empty(0, dtype=getattr(torch, kind), device=device)
        for n, kind in kinds.items()
    }
    extra = {name.removeprefix("extra."): values for name, values in made.items() if name.startswith("extra.")}
    plain = {name: values for name, values in made.items() if not name.startswith("extra.")}
    return replace(batch, dtype=getattr(torch, dtype), extra=cast("dict[str, Tensor]", extra), **plain)


def _joined(batch: SignalBatch, name: str, concat: Callable[[Tensor], list[Tensor]]) -> Tensor | None:
    values = cast("Tensor | None", getattr(batch, name))
    return None if values is None else torch.cat(concat(values.reshape(-1)))


def _distinct(names: Tensor) -> Tensor:
    """The callers' ids where no two are alike; otherwise (each rank counted from 0) the place in the whole."""
    ordered = names.sort().values
    alike = bool((ordered[1:] == ordered[:-1]).any())
    return torch.arange(names.numel(), device=names.device) if alike else names
