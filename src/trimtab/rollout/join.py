"""The only place that makes `Rollouts`: from the episodes of one prompt, and from several of them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.episode import STATUSES, Episode, Numbers
from trimtab.rollout.rollouts import FINISHES, OPTIONAL, SUPPORT, WHOLE, Level, Rollouts
from trimtab.rollout.seal import FIELD as SEAL


def gather(ticket: int, prompt: str, episodes: Sequence[Episode]) -> Rollouts:
    """One group: the episodes of one prompt."""
    return gather_groups([ticket], [prompt], episodes)


def gather_groups(tickets: Sequence[int], prompts: Sequence[str], episodes: Sequence[Episode]) -> Rollouts:
    """One group for each prompt: as many episodes for each of them, one group after the other.

    An episode without a reward does not train. A log-prob in it that is not finite must not end the run: then none of
    its tokens is trainable.
    """
    size = len(episodes) // max(1, len(tickets))
    assert size * len(tickets) == len(episodes), "groups of one size"
    readable = [e.status == "ok" or bool(e.logp.isfinite().all()) for e in episodes]
    kept = [e for e, is_readable in zip(episodes, readable, strict=True) if is_readable]
    columns: dict[str, Iterable[Any]] = {
        "ids": _chained(e.ids for e in episodes),
        "trainable": _chained(
            e.trainable if ok else [False] * len(e.ids) for e, ok in zip(episodes, readable, strict=True)
        ),
        "version": _chained(e.version for e in kept),
        "turn": _chained(e.turn for e in kept),
        "length": (len(e.ids) for e in episodes),
        "prompt_length": (_prompt_length(e.trainable) for e in episodes),
        "finish": (FINISHES.index("eos" if e.ended else "length") for e in episodes),
        "episode": range(len(episodes)),
        "reward": (e.reward if e.status == "ok" else float("nan") for e in episodes),
        "status": (STATUSES.index(e.status) for e in episodes),
        "ticket": (ticket for ticket in tickets for _ in range(size)),
        "sample": (number for _ in tickets for number in range(size)),
    }
    held: dict[str, Any] = {name: _column(values, WHOLE[name][1]) for name, values in columns.items()}
    held["logp_rollout"] = _joined([e.logp for e in kept], WHOLE["logp_rollout"][1])
    if kept and all(e.support is not None for e in kept):
        for place, name in enumerate(SUPPORT):
            held[name] = _column(_chained((e.support or ((), ()))[place] for e in kept), torch.int32)
    return Rollouts(
        **held,
        prompts=dict(zip(tickets, prompts, strict=True)),
        messages={place: e.message for place, e in enumerate(episodes) if e.message},
        extra={"sequence": {SEAL: _column((e.seal for e in episodes), torch.int64)}},
    )


def join(parts: Sequence[Rollouts]) -> Rollouts:
    """All of them, one after the other. What only some of them recorded is nan for the others; a support is lost."""
    if not parts:
        raise SignalError("Rollouts: there are no episodes, so there is no batch. Sample at least one prompt.")
    if len(parts) == 1:
        return parts[0]
    episodes = [0, *torch.tensor([len(part.reward) for part in parts]).cumsum(0).tolist()]
    whole = {name: torch.cat([getattr(part, name) for part in parts]) for name in WHOLE}
    whole["episode"] = torch.cat([part.episode + first for part, first in zip(parts, episodes, strict=False)])
    optional = {
        name: torch.cat([_or_nan(getattr(part, name), part) for part in parts])
        for name in OPTIONAL
        if any(getattr(part, name) is not None for part in parts)
    }
    supported = all(part.support_ids is not None for part in parts)
    extra: dict[Level, Mapping[str, Tensor]] = {
        level: {name: torch.cat([part.extra[level][name] for part in parts]) for name in named}
        for level, named in parts[0].extra.items()
    }
    held: dict[str, Any] = {**whole, **optional}
    held |= {name: torch.cat([getattr(part, name) for part in parts]) for name in SUPPORT if supported}
    return Rollouts(
        **held,
        prompts={ticket: text for part in parts for ticket, text in part.prompts.items()},
        messages={
            first + place: text
            for part, first in zip(parts, episodes, strict=False)
            for place, text in part.messages.items()
        },
        extra=extra,
    )


def _or_nan(values: Tensor | None, part: Rollouts) -> Tensor:
    return torch.full((part.num_tokens,), float("nan")) if values is None else values


def _chained(parts: Iterable[Iterable[Any]]) -> Iterable[Any]:
    return chain.from_iterable(parts)


@cache
def _numpy_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _column(values: Iterable[Any], dtype: torch.dtype) -> Tensor:
    """Numbers as one tensor, without a tensor or an array for each of its parts."""
    return torch.from_numpy(np.fromiter(values, dtype=_numpy_name(dtype)))


def _prompt_length(trainable: Numbers) -> int:
    """Tokens before the first trainable one; all of them where none is."""
    return next((place for place, trains in enumerate(trainable) if trains), len(trainable))


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(parts)).to(dtype).cpu() if parts else torch.zeros(0, dtype=dtype)
