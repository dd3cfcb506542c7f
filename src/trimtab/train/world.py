"""The only place that talks to other ranks: how many there are is a value, and one process is a world of one.

Every rank runs the same code. Rank 0 decides and writes; what it decided, the others are told. Everything that ranks
must agree on goes through here: numbers of micro-batches, whether to stop, parameters, metrics.
"""

import contextlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from trimtab.errors import RankError
from trimtab.signal import Metrics
from trimtab.signal.parallel import ProcessGroup, merge_metrics


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Rank 0: it samples, decides and writes."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether it is true on some rank."""
        return self.agree(int(flag)) > 0

    def agree(self, count: int) -> int:
        """The largest of all ranks' counts."""
        if self.size == 1:
            return count
        told = torch.tensor([count])
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return int(told)

    def broadcast(
        self, head: Mapping[str, Any] | None, tensors: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What rank 0 gives, on every rank: JSON and named tensors, in one order. The others give nothing."""
        if self.size == 1:
            return dict(head or {}), dict(tensors or {})
        from safetensors.torch import load, save

        text = json.dumps(head).encode() if self.is_first else b""
        held = {name: value.detach().cpu().contiguous() for name, value in (tensors or {}).items()}
        body = save(held) if self.is_first else b""
        sizes = torch.tensor([len(text), len(body)])
        dist.broadcast(sizes, 0)
        first, second = cast("list[int]", sizes.tolist())
        told = torch.empty(first + second, dtype=torch.uint8)
        if self.is_first:
            told = torch.frombuffer(bytearray(text + body), dtype=torch.uint8)
        dist.broadcast(told, 0)
        whole = told.numpy().tobytes()
        return cast("dict[str, Any]", json.loads(whole[:first])), dict(sorted(load(whole[first:]).items()))

    def lead(self, work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Let rank 0 do what only it can, and tell all ranks the result. If it fails there, no rank goes on."""
        if not self.is_first:
            told, _ = self.broadcast(None)
            if "failed" in told:
                raise RankError(f"train: rank 0 ended with an error, so rank {self.rank} ended too. Rank 0 says which.")
            return told
        try:
            result = dict(work())
        except BaseException:
            if self.size > 1:
                _ = self.broadcast({"failed": True})
            raise
        return self.broadcast(result)[0]

    def gather(self, fields: Mapping[str, Tensor], places: Tensor, size: int) -> dict[str, Tensor]:
        """Flat fields whose values each rank knows at `places` of its own, whole on every rank; nan elsewhere.

        One sum carries all of them: a place is known to one rank, and the others add zero.
        """
        if self.size == 1:
            held = {name: values.new_full((size,), float("nan")) for name, values in fields.items()}
            for name, values in fields.items():
                held[name][places] = values
            return held
        known = torch.zeros(len(fields) + 1, size, dtype=torch.float64)
        known[0, places] = 1.0
        for row, values in enumerate(fields.values(), start=1):
            known[row, places] = values.double()
        dist.all_reduce(known)
        nobody = known[0] == 0
        return {
            name: known[row].masked_fill(nobody, float("nan")).to(values.dtype)
            for row, (name, values) in enumerate(fields.items(), start=1)
        }

    def reduce(self, metrics: Metrics) -> Metrics:
        """The metrics of all ranks: what one process would have reported."""
        return metrics if self.size == 1 else merge_metrics(metrics, ProcessGroup())

    def sum(self, value: float) -> float:
        """The sum over ranks, in float64."""
        if self.size == 1:
            return value
        return float(ProcessGroup().sum(torch.tensor([value], dtype=torch.float64)))

    def share(self, sizes: Tensor) -> Tensor:
        """The places of this rank's items, where each rank gets about the same total size.

        The largest items are dealt first, each to the rank that has least. With fewer items than ranks, some get none.

        >>> [World(rank, 2).share(torch.tensor([5, 1, 3, 2])).tolist() for rank in (0, 1)]
        [[0, 1], [2, 3]]
        """
        if self.size == 1:
            return torch.arange(len(sizes))
        held, mine = [0] * self.size, list[int]()
        for place in cast("list[int]", sizes.argsort(descending=True, stable=True).tolist()):
            rank = held.index(min(held))
            held[rank] += int(sizes[place])
            if rank == self.rank:
                mine.append(place)
        return torch.tensor(sorted(mine), dtype=torch.int64)


alone = World()


def whole(tensor: Tensor) -> Tensor:
    """A parameter with all its shards, as a plain tensor; every rank must ask for it."""
    held = tensor.detach()
    return held.full_tensor() if isinstance(held, DTensor) else held


def local(tensor: Tensor) -> Tensor:
    """The part of a parameter that lies on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def place(full: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, laid out like another; rank 0's values count."""
    if not isinstance(like, DTensor):
        return full.to(like.device, like.dtype)
    return distribute_tensor(full.to(like.device, like.dtype), like.device_mesh, like.placements)


def shard(module: torch.nn.Module, layers: Sequence[torch.nn.Module], world: World) -> None:
    """Shard parameters, gradients and optimiser state over the ranks (FSDP2): each layer, and the rest as one unit.

    The head belongs to the root unit: in a unit of its own, ranks with unequal numbers of chunks would wait for ever.
    """
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kind = next(module.parameters()).device.type
    mesh = init_device_mesh(kind, (world.size,))
    half = next(module.parameters()).dtype in (torch.bfloat16, torch.float16)
    sums = MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None)
    for layer in layers:
        _ = fully_shard(layer, mesh=mesh, mp_policy=sums)
    _ = fully_shard(module, mesh=mesh, mp_policy=sums)


@contextmanager
def open_world(*, timeout: float) -> Generator[World]:
    """The world that torchrun started this process in; alone where there is none."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or size == 1 or dist.is_initialized():
        yield _current()
        return
    rank = int(os.environ["RANK"])
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        yield World(rank, size)
        dist.barrier()  # rank 0 may still be writing; nobody leaves before it is done
    except (RuntimeError, dist.DistError) as error:
        if not _is_lost(error):
            raise
        raise RankError(
            f"train: rank {rank} lost another of the {size} ranks (they wait {timeout:g} s for each other), so the run "
            "ended here. What the others say tells why; the run can be resumed from its last checkpoint, on any number "
            f"of ranks. ({str(error).splitlines()[0][:120]})"
        ) from error
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _current() -> World:
    """Where a caller has made a process group of their own, that one."""
    return World(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else alone


LOST = ("connection closed", "timed out", "connection reset", "broken pipe", "connection refused", "nccl")


def _is_lost(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone or silent."""
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in LOST)
