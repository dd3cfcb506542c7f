"""The only place that makes `Rollouts`: from the episodes of one prompt, and from several of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.episode import STATUSES, Episode
from trimtab.rollout.rollouts import FINISHES, OPTIONAL, SUPPORT, WHOLE, Level, Rollouts


def gather(ticket: int, prompt: str, episodes: Sequence[Episode]) -> Rollouts:
    """One group: the episodes of one prompt.

    An episode without a reward does not train. A log-prob in it that is not finite must not end the run: then none of
    its tokens is trainable.
    """
    readable = [e.status == "ok" or bool(e.logp.isfinite().all()) for e in episodes]
    kept = [e for e, is_readable in zip(episodes, readable, strict=True) if is_readable]
    supports = [e.support for e in kept if e.support is not None]
    has_support = len(supports) == len(kept) > 0
    prompts = [int(e.trainable.int().argmax()) if bool(e.trainable.any()) else len(e.ids) for e in episodes]
    columns = {
        "ids": [e.ids for e in episodes],
        "trainable": [e.trainable & ok for e, ok in zip(episodes, readable, strict=True)],
        "logp_rollout": [e.logp for e in kept],
        "version": [e.version for e in kept],
        "turn": [e.turn for e in kept],
    }
    numbers: dict[str, list[Any]] = {
        "length": [len(e.ids) for e in episodes],
        "prompt_length": prompts,
        "finish": [FINISHES.index("eos" if e.ended else "length") for e in episodes],
        "episode": list(range(len(episodes))),
        "reward": [e.reward if e.status == "ok" else float("nan") for e in episodes],
        "status": [STATUSES.index(e.status) for e in episodes],
        "ticket": [ticket] * len(episodes),
        "sample": list(range(len(episodes))),
    }
    held: dict[str, Any] = {name: _joined(parts, WHOLE[name][1]) for name, parts in columns.items()}
    held |= {name: torch.tensor(values, dtype=WHOLE[name][1]) for name, values in numbers.items()}
    return Rollouts(
        **held,
        prompts={ticket: prompt},
        messages={place: e.message for place, e in enumerate(episodes) if e.message},
        support_ids=_joined([ids for ids, _ in supports], torch.int32) if has_support else None,
        support_counts=_joined([counts for _, counts in supports], torch.int32) if has_support else None,
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


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(parts)).to(dtype) if parts else torch.zeros(0, dtype=dtype)
