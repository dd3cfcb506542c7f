"""The sources of cases: shapes in which bugs hide, and random ones by hypothesis."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS

SIGNED = ("advantage", "value", "value_old", "returns", "token_reward", "token_loss")
POSITIVE = ("entropy", "kl")
VOCABULARY = 5
FLAGS = ("keep", "selected", "ended", "votes")

Number = Callable[[int], float]


def _signed(byte: int) -> float:
    """0, 1/4, -1/4, 1/2, … up to ±2: a smaller byte gives a rounder number."""
    step = (byte % 17 + 1) // 2
    return step / 4 if byte % 2 else -step / 4


TOKEN_VALUES: dict[str, Number] = {
    **dict.fromkeys(LOGPS, lambda byte: -(1 + byte % 17) / 8),
    **dict.fromkeys(SIGNED, _signed),
    **dict.fromkeys(POSITIVE, lambda byte: (byte % 9) / 4),
    "keep": lambda byte: float(byte % 3 == 0),
    "selected": lambda byte: float(byte % 3 == 1),
}
SEQUENCE_VALUES: dict[str, Number] = {
    **dict.fromkeys(("reward", "outcome", "value_after"), _signed),
    **dict.fromkeys(("ended", "votes"), lambda byte: float(byte % 3 == 0)),
}
TOKEN_FIELDS = (*TOKEN_VALUES, "token_key", "token_id", "turn", "version", "logits", "teacher_logits")
SEQUENCE_FIELDS = (*SEQUENCE_VALUES, "episode", "group", "length")


def build(
    kinds: tuple[tuple[str, ...], ...], *, group: list[int], tokens: dict[str, Tensor], sequences: dict[str, Tensor]
) -> Case:
    """A case with the fields that follow from its shape: ids, lengths, logits, and a key per token for reordering."""
    places = [(i, t) for i, row in enumerate(kinds) for t in range(len(row))]
    key = torch.tensor([(i * 7919 + t * 104729) % 99991 for i, t in places], dtype=torch.long)
    ids = torch.tensor([3 + (i + t) % 2 for i, t in places], dtype=torch.long)
    length = torch.tensor([float(len(row)) for row in kinds], dtype=torch.float64)
    grid = torch.arange(VOCABULARY).double()
    logits = torch.sin(key.double()[:, None] * 0.7 + grid * 1.3)
    teacher = torch.cos(key.double()[:, None] * 0.3 + grid * 0.9)
    derived = {"token_key": key, "token_id": ids, "logits": logits, "teacher_logits": teacher}
    # A turn begins after every observation; a sequence may have been sampled by several versions, one after the other.
    turns = [row[:t].count("o") for row in kinds for t in range(len(row))]
    versions = [(2 * i + t) // 3 for i, t in places]
    derived |= {n: torch.tensor(v, dtype=torch.long) for n, v in (("turn", turns), ("version", versions))}
    at_rest = {n: torch.full((len(places),), value(0), dtype=torch.float64) for n, value in TOKEN_VALUES.items()}
    resting = {n: torch.full((len(kinds),), value(0), dtype=torch.float64) for n, value in SEQUENCE_VALUES.items()}
    episodes = {"episode": torch.arange(len(kinds)), "group": torch.tensor(group, dtype=torch.long), "length": length}
    return Case(
        kinds,
        {**{n: _flag(n, v) for n, v in at_rest.items()}, **derived, **tokens},
        {**{n: _flag(n, v) for n, v in resting.items()}, **episodes, **sequences},
        origin=tuple(range(len(kinds))),
    )


def _flag(name: str, values: Tensor) -> Tensor:
    return values.bool() if name in FLAGS else values


def completed(data: dict[str, Any]) -> Case:
    """A case from a report or a reproduction file, with default values for missing fields."""
    told = Case.from_data(data)
    full = build(
        told.kinds, group=[int(g) for g in told.sequences["group"]],
        tokens=dict(told.tokens), sequences=dict(told.sequences),
    )  # fmt: skip
    return replace(told, tokens=full.tokens, sequences=full.sequences)


SHAPES: dict[str, tuple[tuple[str, ...], tuple[int, ...], float]] = {
    "ragged": (("paaaa", "pa", "paoa", "paa"), (0, 0, 1, 1), 1.0),
    "tool output": (("paoaa", "ppaao", "paoaoa", "paa"), (0, 0, 1, 1), 0.05),
    "lone": (("paaa", "paa", "pa"), (0, 0, 1), 0.3),
    "single tokens": (("pa", "pa", "pa", "pa"), (0, 0, 1, 1), 1.0),
    "empty rows": (("paa", "poo", "pao", "paaa"), (0, 0, 1, 1), 1.0),
    "interleaved groups": (("pppaa", "paaa", "ppaa", "paoa", "paaaa"), (1, 0, 1, 0, 1), 0.1),
    "far": (("paaaaaaa", "paoaoaoa", "pa", "paaa"), (0, 0, 1, 1), 60.0),
}
"""Rows, their groups, and the distance of the policies."""


def directed() -> Iterator[Case]:
    """Ragged rows, single samples, constants, one token, empty rows, tool output, mixed signs, zero rewards, drift.

    Fresh copies each time: foreign code may write into what it is given.
    """
    return (copied(case) for case in _directed())


def copied(case: Case) -> Case:
    own = case.with_tokens(**{n: v.clone() for n, v in case.tokens.items()})
    return own.with_sequences(**{n: v.clone() for n, v in case.sequences.items()})


@functools.cache
def _directed() -> tuple[Case, ...]:
    return tuple(_made())


def _made() -> Iterator[Case]:
    generator = torch.Generator().manual_seed(0)
    for name, shape in SHAPES.items():
        count = len(shape[0])
        reward = {"single tokens": torch.ones(count).double(), "empty rows": torch.zeros(count).double()}
        yield _drawn(generator, shape, reward.get(name))


Shape = tuple[tuple[str, ...], tuple[int, ...], float]
WIDE: Shape = (
    ("paaaaaaa", "ppaaoaaaa", "paaaaaa", "pppaaaaaaaa", "paaoooaaa", "paaaaa"), (0, 0, 0, 1, 1, 1), 5.0,
)  # fmt: skip
"""More tokens, and policies further apart: formulas that differ at few tokens differ somewhere in it."""


def _drawn(generator: torch.Generator, shape: Shape, reward: Tensor | None = None) -> Case:
    """A case of one shape with random numbers."""

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    rows, groups, drift = shape
    kinds = tuple(tuple(row) for row in rows)
    total, count = sum(map(len, kinds)), len(kinds)
    base = -0.1 - random(total)
    tokens = {n: (base + drift * (random(total) - 0.5)).clamp(max=-1e-3) for n in LOGPS}
    tokens |= {n: 4 * random(total) - 2 for n in SIGNED}
    tokens |= {n: 2 * random(total) for n in POSITIVE}
    tokens |= {"keep": random(total) > 0.3, "selected": random(total) > 0.6}
    drawn = 2 * random(count)
    sequences = {
        "reward": drawn if reward is None else reward,
        "outcome": 2 * random(count) - 1,
        "value_after": random(count),
        "ended": random(count) > 0.4,
        "votes": torch.arange(count) != count - 1,
    }
    return build(kinds, group=list(groups), tokens=tokens, sequences=sequences)


def benign() -> Case:
    """Two groups of three and a single sample, all tokens chosen by the policy, all values moderate and distinct."""
    kinds = tuple(tuple(row) for row in ("paa", "paaa", "pa", "paa", "paaa", "paa", "paa"))
    count = sum(map(len, kinds))
    ramp = torch.linspace(0, 1, count, dtype=torch.float64)
    tokens = {n: -0.5 - 0.3 * torch.sin(ramp * (7 + 3 * i)) - ramp / 4 for i, n in enumerate(LOGPS)}
    tokens |= {n: torch.cos(ramp * (5 + i)) for i, n in enumerate(("advantage", "value", "returns", "token_loss"))}
    tokens |= {n: torch.cos(ramp * (9 + i)) for i, n in enumerate(("value_old", "token_reward"))}
    tokens |= {n: 1.2 + torch.sin(ramp * (11 + i)) for i, n in enumerate(("entropy", "kl"))}
    reward = torch.tensor([1.0, 0.0, 0.25, 2.0, 0.5, 0.0, 0.75], dtype=torch.float64)
    sequences = {
        "reward": reward,
        "outcome": reward - 0.6,
        "votes": torch.ones(7).bool(),
        "ended": torch.ones(7).bool(),
    }
    return build(kinds, group=[0, 0, 0, 1, 1, 1, 2], tokens=tokens, sequences=sequences)


def many_groups() -> Case:
    """Four prompts with two answers each: what one group does to the others shows in six rows."""
    rows = ("paaa", "paa", "paaoa", "paaaa", "paa", "paoaa", "paaa", "paa")
    return _drawn(torch.Generator().manual_seed(2), (rows, (0, 0, 1, 1, 2, 2, 3, 3), 1.0))


@functools.cache
def ordinary() -> tuple[Case, ...]:
    """Batches without corners: no group of one, no empty row, policies close; with tool output and spare columns.

    Rewards of a group are far apart, so that a stabiliser beside their spread hardly shows.
    """
    by_name = dict(zip(SHAPES, directed(), strict=True))
    shapes = [by_name[name] for name in ("ragged", "tool output", "interleaved groups")]
    wide = _drawn(torch.Generator().manual_seed(1), WIDE)
    found = (benign().taken(range(6), as_part=False), *shapes, replace(shapes[1], extra_columns=2), wide)
    apart = torch.tensor([2.0, -1.0, 0.5, 3.0, -2.5, 1.25], dtype=torch.float64)
    return tuple(case.with_sequences(reward=apart[: case.num_sequences].clone()) for case in found)


@functools.lru_cache(maxsize=16)
def random_cases(reads: frozenset[str] | None, *, seed: int, examples: int) -> tuple[Case, ...]:
    """Small random batches by hypothesis. The same seed and fields give the same batches."""
    import hypothesis
    from hypothesis import HealthCheck, Phase, settings

    from trimtab.sentinel.batch.strategy import cases

    found: list[Case] = []
    if examples < 1:
        return ()

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]  typed as its metaclass
    )  # fmt: skip
    @hypothesis.given(cases(reads))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return tuple(found)
