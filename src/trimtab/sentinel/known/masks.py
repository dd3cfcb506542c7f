"""Masks made of token ids: up to the token that ends an answer, and what people cut instead."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import build
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known

ENDED = (
    (("paa", "paaoo", "paaaa", "paaao", "paaaaa"), (1, 1, 2, 2, 0)),
    (("ppaaao", "paao", "pa", "paaaaaa", "paaaoo"), (1, 2, 1, 0, 1)),
)
"""Rows in which an answer is followed by other tokens or by padding, and the id that ends each answer; 0 for an answer
that was cut off, which fills its row."""
TURNS = ("paoaoa", "paaoaa", "paaaaa", "paoooa")
"""Rows of several turns, each of which may end with an end id."""


@functools.cache
def endings(*, several: bool) -> tuple[Case, ...]:
    """Batches whose answers end with an end id; `several` of them, or one."""
    found: list[Case] = []
    for rows, ends in ENDED:
        ids: list[int] = []
        for i, row in enumerate(rows):
            own = [3 + (i + t) % 2 for t in range(len(row))]
            if ends[i]:
                own[row.rindex("a")] = ends[i] if several else 1
            ids += own
        found.append(_with_ids(rows, ids, (1, 2) if several else (1,)))
    return tuple(found)


@functools.cache
def turns() -> tuple[Case, ...]:
    """Batches of several turns: an earlier turn ends with an end id, the last one only in some rows."""
    found: list[Case] = []
    for finished in ((0, 2), (1, 3)):
        ids: list[int] = []
        for i, row in enumerate(TURNS):
            own = [3 + (i + t) % 2 for t in range(len(row))]
            own[row.index("a")] = 1 if i != 2 else 3
            own[-1] = 1 if i in finished else 4
            ids += own
        found.append(_with_ids(TURNS, ids, (1,)))
    return tuple(found)


def _with_ids(rows: tuple[str, ...], ids: list[int], ends: tuple[int, ...]) -> Case:
    kinds = tuple(tuple(row) for row in rows)
    tokens = {"token_id": torch.tensor(ids, dtype=torch.long)}
    case = build(kinds, group=[0] * len(rows), tokens=tokens, sequences={})
    return replace(case, eos_ids=ends, pad_id=0)


def up_to_the_end() -> Iterator[Known]:
    """1 for every token of an answer up to the one that ends it."""

    def cut(c: Cells, keep: Callable[[Tensor], Tensor], ends: slice = slice(None)) -> Tensor:
        """The cells of answers that are kept, by the number of ends up to and including each cell."""
        stops = torch.isin(c["token_id"].long(), torch.tensor(c.case.eos_ids[ends]))
        return (keep(torch.stack([stops.long().cumsum(1), stops.long()])) & (c["token_id"] != c.case.pad_id)).double()

    def whole(c: Cells) -> Tensor:
        stops = torch.isin(c["token_id"].long(), torch.tensor(c.case.eos_ids))
        return (stops.long().cumsum(1) - stops.long() == 0).double()

    yield Known("mask up to the first end", lambda c: cut(c, lambda s: s[0] - s[1] == 0))
    yield Known("mask up to the first end, with what fills a row", whole)
    yield Known(
        "mask before the first end", lambda c: cut(c, lambda s: s[0] == 0),
        "the token that ends the answer does not train, so the policy never learns to stop",
    )  # fmt: skip
    yield Known(
        "mask up to the first of one end id", lambda c: cut(c, lambda s: s[0] - s[1] == 0, slice(1)),
        "only the first of several ids ends an answer",
    )  # fmt: skip
    yield Known(
        "mask up to one token after the end", lambda c: cut(c, lambda s: (s[0] - s[1]).roll(1, 1) == 0),
        "the token after the end trains as well",
    )  # fmt: skip
    yield Known(
        "mask of everything but the ends",
        lambda c: (~torch.isin(c["token_id"].long(), torch.tensor(c.case.eos_ids))).double(),
        "every end is left out, the first too, and what follows it is not",
    )  # fmt: skip
    yield Known(
        "mask up to the second end",
        lambda c: (torch.isin(c["token_id"].long(), torch.tensor(c.case.eos_ids)).long().cumsum(1) <= 1).double(),
        "what follows the first end trains as well",
    )  # fmt: skip
    yield Known(
        "mask of everything but padding", lambda c: cut(c, lambda s: s[0] >= 0),
        "what follows the end of an answer trains as well",
    )  # fmt: skip


def of_ended_rows() -> Iterator[Known]:
    """The tokens that train of answers whose last token ends them."""

    def last(c: Cells) -> Tensor:
        ids = [c.case.list("token_id")[row][-1] for row in range(c.case.num_sequences)]
        return torch.tensor([int(one) in c.case.eos_ids for one in ids], dtype=torch.float64)

    def ever(c: Cells) -> Tensor:
        return torch.isin(c["token_id"].long(), torch.tensor(c.case.eos_ids)).any(1).double()

    yield Known("answers that ended", lambda c: c.mask * c.rows(last(c)))
    yield Known(
        "answers with an end anywhere", lambda c: c.mask * c.rows(ever(c)),
        "an answer counts as ended if an earlier turn in it ended",
    )  # fmt: skip
    yield Known(
        "answers that did not end", lambda c: c.mask * c.rows(1 - last(c)),
        "answers that ended are dropped, and those that were cut off train",
    )  # fmt: skip


def of_groups_that_differ() -> Iterator[Known]:
    """The answers to prompts whose rewards are not all equal."""

    def differ(c: Cells) -> Tensor:
        found = torch.zeros_like(c.reward)
        for rows in c.groups:
            found[rows] = float(c.reward[rows].max() != c.reward[rows].min())
        return found

    yield Known("answers to prompts whose rewards differ", differ)
    yield Known(
        "answers to prompts whose rewards are equal", lambda c: 1 - differ(c),
        "prompts without a signal are kept, and the others are dropped",
    )  # fmt: skip


def with_a_constant_group(cases: Sequence[Case]) -> list[Case]:
    """The same batches, in which all answers to one prompt have one reward."""
    found: list[Case] = []
    for case in cases:
        group, reward = case.sequences["group"], case.sequences["reward"].clone()
        reward[group == int(group[-1])] = 1.0
        found.append(case.with_sequences(reward=reward))
    return found
