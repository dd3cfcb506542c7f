"""Our signal on several data-parallel ranks: gather, prepare on the whole, train on your own."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.sentinel import Case, Out, Result, Subject
from trimtab.signal import ProcessGroup, SignalBatch, decide, gather, prepare, recipe, token_loss


class _Alone:
    """A reducer for one process."""

    def concat(self, local: Tensor) -> list[Tensor]:
        return [local.clone()]

    def sum(self, local: Tensor) -> Tensor:
        return local.clone()


@cache
def ranked(name: str) -> Subject:
    """A recipe whose batch lies on several ranks."""
    chosen = recipe(name)

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        together = dist.is_initialized()
        reducer: Any = ProcessGroup() if together else _Alone()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        batch = SignalBatch.from_padded(
            case.padded("trainable"), reward=case.sequence("reward"), group=case.sequence("group"),
            scored=case.sequence("votes"), ended=case.sequence("ended"),
            **{n: case.padded(n) for n in ("logp_old", "logp_rollout", "logp_ref")},
        )  # fmt: skip
        whole, mine = gather(batch, reducer, rank)
        prepared, _ = prepare(whole, chosen)
        own = decide(next(prepared.updates(1))).own(mine, ranks)
        (micro,) = own.split(num=1)
        places = [int(mine.tolist().index(int(s))) for s in micro.sequences]
        out = token_loss(micro, case.flat("logp_current")[case.token_places(places)])
        tokens = torch.isin(whole.segments.sequence_of_token, mine)
        trained = prepared.trains[whole.segments.sequence_of_token]
        total = reducer.sum(out.loss.detach().reshape(1)).reshape(()) / ranks
        return {
            "loss": Result.scalar(out.loss, "loss"),
            "advantage": Result(torch.where(trained, prepared.advantage, 0.0)[tokens], "token", "advantage"),
            "total": Result.scalar(total, "statistic"),
        }

    return Subject(f"ranked({name})", call, ranks="data", couples="batch", combine="mean over ranks")
