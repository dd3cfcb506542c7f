"""The only place that runs the forward passes of sampling: which rows are in the batch, and what the cache holds.

Rows are aligned to the right edge of the cache, so that every row's next token is in the same column. The columns
to the left of a short row are hidden from it. Finished rows leave, waiting ones enter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from trimtab.rollout.draw import choose, uniforms
from trimtab.rollout.engine import Greedy, Request, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trimtab.rollout.cache import RowCache

LEAVE_SHARE = 0.25
"""Finished rows leave when they are this share of the batch: each time, the cache of the other rows is copied."""


@dataclass(frozen=True)
class Answers:
    """What was drawn, `[requests, tokens]`. Values after a row's length mean nothing."""

    ids: Tensor
    logp: Tensor
    length: Tensor
    support: list[list[tuple[int, ...]]]


@dataclass(frozen=True)
class Batch:
    """The rows in flight, in the order of the cache."""

    request: Tensor
    """Which request each row answers."""
    count: Tensor
    """Tokens drawn so far."""
    hidden: Tensor
    """Columns left of the row's first token, which it must not see."""
    finished: Tensor
    logits: Tensor
    """Of each row's next token, float32 `[rows, vocabulary]`."""
    cache: "RowCache"

    @property
    def width(self) -> int:
        """Columns of the cache."""
        return int(self.cache.get_seq_length())

    def keep_rows(self, rows: Tensor) -> "Batch":
        """Keep these rows, and drop the columns that none of them sees."""
        hidden = self.hidden.index_select(0, rows)
        unseen = int(hidden.min())
        self.cache.take(rows, unseen)
        return replace(
            self,
            request=self.request.index_select(0, rows),
            count=self.count.index_select(0, rows),
            hidden=hidden - unseen,
            finished=self.finished.index_select(0, rows),
        )

    def join(self, other: "Batch") -> "Batch":
        """Add the rows of `other`. Rows of the narrower cache see nothing in the columns that it lacked."""
        narrower = self.width - other.width
        self.cache.join(other.cache)
        return Batch(
            request=torch.cat([self.request, other.request]),
            count=torch.cat([self.count, other.count]),
            hidden=torch.cat([self.hidden + max(-narrower, 0), other.hidden + max(narrower, 0)]),
            finished=torch.cat([self.finished, other.finished]),
            logits=torch.cat([self.logits, other.logits]),
            cache=self.cache,
        )


def decode(
    model: "PreTrainedModel",
    requests: Sequence[Request],
    how: Sampling | Greedy,
    *,
    pad_id: int,
    eos_id: int,
    max_rows: int,
) -> Answers:
    """Answer each request. At most `max_rows` of them are in the batch at once (0: any number)."""
    slots = min(max_rows or len(requests), len(requests))
    answers = _blank(len(requests), how, model.device)
    random = uniforms([request.seed for request in requests], how.max_new_tokens + 1).to(model.device)
    entered = 0
    batch: Batch | None = None
    while True:
        free = slots - (0 if batch is None else len(batch.request))
        if entered < len(requests) and free >= slots * LEAVE_SHARE:
            new = _prefill(model, requests[entered : entered + free], entered, pad_id)
            entered += len(new.request)
            batch = new if batch is None else batch.join(new)
        assert batch is not None
        chosen, batch = _draw(batch, how, random, answers, eos_id)
        finished = int(batch.finished.sum())
        if finished == len(batch.request):
            batch = None
            if entered == len(requests):
                return answers
            continue
        if finished >= len(batch.request) * LEAVE_SHARE:
            stays = (~batch.finished).nonzero()[:, 0]
            chosen, batch = chosen.index_select(0, stays), batch.keep_rows(stays)
        batch = _advance(model, batch, chosen)


def _blank(rows: int, how: Sampling | Greedy, device: torch.device) -> Answers:
    """Empty answers. The last column takes what finished rows still produce."""
    width = how.max_new_tokens + 1
    return Answers(
        ids=torch.zeros(rows, width, dtype=torch.int64, device=device),
        logp=torch.zeros(rows, width, device=device),
        length=torch.full((rows,), how.max_new_tokens, device=device),
        support=[[] for _ in range(rows)] if isinstance(how, Sampling) and how.record_support else [],
    )


def _prefill(model: "PreTrainedModel", requests: Sequence[Request], first: int, pad_id: int) -> Batch:
    """Run the prompts as new rows. Neighbours with equal prompts share one pass over the prompt."""
    runs = [(ids, len(list(same))) for ids, same in groupby(request.ids for request in requests)]
    width = max(len(ids) for ids, _ in runs)
    hidden = torch.tensor([width - len(ids) for ids, _ in runs], device=model.device)
    padded = torch.tensor([[pad_id] * (width - len(ids)) + list(ids) for ids, _ in runs], device=model.device)
    position = (torch.arange(width, device=model.device) - hidden[:, None]).clamp_min(0)
    logits, cache = _forward(model, padded, hidden, position, None)
    if len(runs) < len(requests):
        of_run = torch.repeat_interleave(torch.tensor([count for _, count in runs], device=model.device))
        cache.take(of_run)
        logits, hidden = logits.index_select(0, of_run), hidden.index_select(0, of_run)
    count = torch.zeros(len(requests), dtype=torch.int64, device=model.device)
    return Batch(
        request=torch.arange(first, first + len(requests), device=model.device),
        count=count,
        hidden=hidden,
        finished=count.bool(),
        logits=logits,
        cache=cache,
    )


def _draw(batch: Batch, how: Sampling | Greedy, random: Tensor, answers: Answers, eos_id: int) -> tuple[Tensor, Batch]:
    """Draw the next token of every row and write it down. Tokens of finished rows are not used."""
    place = (batch.request, batch.count)
    chosen, logp, left = choose(batch.logits, how, random[place])
    answers.ids[place] = chosen
    answers.logp[place] = logp
    if answers.support and left is not None:
        _write_support(batch, left, answers.support)
    ends = (chosen == eos_id) & ~batch.finished
    answers.length[batch.request[ends]] = batch.count[ends] + 1
    finished = batch.finished | ends | (batch.count + 1 >= how.max_new_tokens)
    return chosen, replace(batch, count=(batch.count + 1).clamp_max(how.max_new_tokens), finished=finished)


def _write_support(batch: Batch, left: Tensor, support: list[list[tuple[int, ...]]]) -> None:
    """Write down the ids that a cut left, for every row that has not finished."""
    row, token = left.nonzero(as_tuple=True)
    ids = token.split(torch.bincount(row, minlength=len(left)).tolist())
    for request, finished, own in zip(batch.request.tolist(), batch.finished.tolist(), ids, strict=True):
        if not finished:
            support[request].append(tuple(own.tolist()))


def _advance(model: "PreTrainedModel", batch: Batch, chosen: Tensor) -> Batch:
    """Run the model on the chosen tokens: one more column of the cache."""
    # A finished row that has not left yet must not run past the end of a position table. Its logits are not used.
    position = (batch.width - batch.hidden).masked_fill(batch.finished, 0)[:, None]
    logits, cache = _forward(model, chosen[:, None], batch.hidden, position, batch.cache)
    return replace(batch, logits=logits, cache=cache)


def _forward(
    model: "PreTrainedModel", ids: Tensor, hidden: Tensor, position: Tensor, cache: "RowCache | None"
) -> tuple[Tensor, "RowCache"]:
    """Logits of each row's next token, float32 `[rows, vocabulary]`, and the cache that now holds these ids."""
    cache = _new_cache() if cache is None else cache
    width = int(cache.get_seq_length()) + ids.shape[1]
    attends = None
    if bool(hidden.any()):
        attends = (torch.arange(width, device=ids.device) >= hidden[:, None]).long()
    out = model(
        input_ids=ids,
        attention_mask=attends,
        position_ids=position,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cast(Tensor, out.logits)[:, -1].float(), cache


def _new_cache() -> "RowCache":
    from trimtab.rollout.cache import RowCache

    return RowCache()
