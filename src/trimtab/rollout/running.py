"""The only place that says when answers enter and leave a batch that runs: by their order, as places become free.

It lives as long as its engine. Whoever asks submits; every step draws one token of every answer in the batch, and gives
back those that ended. It does not know who asked, nor how a forward pass is computed.
"""

import heapq
import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor

from trimtab.rollout.decode import LEAVE_SHARE, Batch, Forward, draw, read, supports
from trimtab.rollout.engine import Finish, Greedy, Request, Sample, Sampling
from trimtab.rollout.sheet import Sheet


class Asked(NamedTuple):
    """One request: who asked, in which order, and how to draw."""

    key: int
    request: Request
    how: Sampling | Greedy

    @property
    def kind(self) -> Sampling | Greedy:
        """How to draw, whatever the length. Answers of one kind can be in one batch."""
        return _kind(self.how)


@lru_cache(maxsize=1024)
def _kind(how: Sampling | Greedy) -> Sampling | Greedy:
    return replace(how, max_new_tokens=0)


class Running:
    """The batch while it runs, and the requests that wait for a place in it.

    `slots` answers are in it at most (0: any number). Requests enter in the order of `Request.order`, several at a
    time, because each entry is a pass of its own and copies the keys and values of the others: when a quarter of the
    slots is free, or, without a number of slots, when those that wait are a quarter of those that run. One kind of
    sampling runs at a time.
    """

    def __init__(self, *, device: torch.device, pad_id: int, eos_ids: Sequence[int], slots: int) -> None:
        self._device: torch.device = device
        self._pad_id: int = pad_id
        self._eos_ids: frozenset[int] = frozenset(eos_ids)
        self._ends: Tensor = torch.tensor(sorted(self._eos_ids), device=device)
        self._slots: int = slots
        self._waiting: list[tuple[tuple[int, ...], int, Asked]] = []
        self._numbers: itertools.count[int] = itertools.count()
        self._batch: Batch | None = None
        self._sheet: Sheet | None = None
        self._asked: dict[int, Asked] = {}
        """By place on the sheet."""
        self._support: dict[int, list[tuple[int, ...]]] = {}

    def __len__(self) -> int:
        """Requests that are being answered or wait."""
        return len(self._waiting) + len(self._asked)

    @property
    def started(self) -> set[int]:
        """The names of the requests in the batch."""
        return {one.key for one in self._asked.values()}

    def submit(self, key: int, request: Request, how: Sampling | Greedy) -> None:
        """Ask for an answer under a name that no other request in flight has."""
        heapq.heappush(self._waiting, (request.order, next(self._numbers), Asked(key, request, how)))

    def step(self, forward: Forward, version: int) -> list[tuple[int, Sample]]:
        """Let requests enter, draw one token of every answer, and return those that ended, by their names."""
        with torch.inference_mode():
            entering = self._next()
            if self._batch is None and not entering:
                return []
            before = self._read(forward, entering)
            assert self._sheet is not None
            how = next(iter(self._asked.values())).how
            self._batch, drawn = draw(before, how, self._sheet, self._ends)
            if self._support and drawn.left is not None:
                for place, left in zip(_numbers(before.place), supports(drawn.left), strict=True):
                    self._support[place].append(left)
            ended = None if bool(drawn.stays.all()) else before.place[~drawn.stays]
            counts = None if ended is None else before.count[~drawn.stays] + 1
        # Outside of inference mode, so that autograd can use the log-probs.
        return [] if ended is None or counts is None else self._leave(ended, counts, version)

    def abort(self, version: int, keys: Collection[int] | None = None) -> list[tuple[int, Sample]]:
        """Stop these answers, or all: what they have so far, each with finish "abort"."""
        stopped = [one for _, _, one in self._waiting if keys is None or one.key in keys]
        self._waiting = [] if keys is None else [item for item in self._waiting if item[2].key not in keys]
        heapq.heapify(self._waiting)
        found = [(one.key, Sample((), torch.zeros(0), (), "abort")) for one in stopped]
        batch = self._batch
        if batch is None:
            return found
        stays = [keys is not None and self._asked[place].key not in keys for place in _numbers(batch.place)]
        leaves = ~torch.tensor(stays, device=self._device)
        self._batch = batch.keep_answers(~leaves) if any(stays) else None
        return found + self._leave(batch.place[leaves], batch.count[leaves], version, "abort")

    def _next(self) -> list[Asked]:
        """Those that enter now. All of them are of the kind that runs, or of the first one's if nothing runs."""
        running, waiting = len(self._asked), len(self._waiting)
        room = self._slots - running if self._slots else waiting
        wanted = LEAVE_SHARE * (self._slots or running)
        if not waiting or (running and room < wanted):
            return []
        kind = next(iter(self._asked.values())).kind if running else self._waiting[0][2].kind
        entering: list[Asked] = []
        while self._waiting and len(entering) < room and self._waiting[0][2].kind == kind:
            entering.append(heapq.heappop(self._waiting)[2])
        return entering

    def _read(self, forward: Forward, entering: Sequence[Asked]) -> Batch:
        """Read what was drawn last and the prompts that enter. Equal ones become neighbours, who share a row."""
        if not entering:
            return read(forward, self._batch, [], self._ends, self._pad_id)
        first = {one.request.ids: place for place, one in reversed(list(enumerate(entering)))}
        entering = sorted(entering, key=lambda one: first[one.request.ids])
        taken = sorted(set(range(len(self._asked) + len(entering))) - set(self._asked))[: len(entering)]
        places = torch.tensor(taken, device=self._device)
        seeds, limits = [one.request.seed for one in entering], [one.how.max_new_tokens for one in entering]
        new = Sheet.of(seeds, limits, self._device)
        self._sheet = new if self._sheet is None else self._sheet.put(places, new)
        self._asked |= dict(zip(taken, entering, strict=True))
        how = entering[0].how
        if isinstance(how, Sampling) and how.record_support and how.truncates:
            self._support |= {place: [] for place in taken}
        return read(forward, self._batch, [one.request for one in entering], places, self._pad_id)

    def _leave(
        self, places: Tensor, counts: Tensor, version: int, finish: Finish | None = None
    ) -> list[tuple[int, Sample]]:
        """Take these answers off the sheet, which ends with its last answer."""
        sheet = self._sheet
        if sheet is None or not len(places):
            return []
        lengths = _numbers(counts)
        rows = cast("list[list[int]]", sheet.ids[places].tolist())
        written = torch.arange(sheet.logp.shape[1]) < counts.cpu()[:, None]
        logp = sheet.logp[places].cpu()[written].split(lengths)
        found: list[tuple[int, Sample]] = []
        for row, (place, length) in enumerate(zip(_numbers(places), lengths, strict=True)):
            ids, support = tuple(rows[row][:length]), self._support.pop(place, None)
            why = finish or ("eos" if ids[-1] in self._eos_ids else "length")
            sample = Sample(ids, logp[row], (version,) * length, why, None if support is None else tuple(support))
            found.append((self._asked.pop(place).key, sample))
        if not self._asked:
            self._batch = self._sheet = None
        return found


def _numbers(values: Tensor) -> list[int]:
    return cast("list[int]", values.tolist())
