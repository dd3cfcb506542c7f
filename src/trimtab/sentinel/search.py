"""The search for a counter-example: directed cases first, then hypothesis, which also shrinks what it finds.

Deterministic from the seed. A counter-example comes back with the fewest sequences and tokens and the roundest numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from trimtab.errors import TrimtabError, unknown_name
from trimtab.sentinel.case import CannotRepresent, Case
from trimtab.sentinel.invariants import INVARIANTS, Violation
from trimtab.sentinel.subject import Subject

Status = Literal["holds", "bug", "waived", "could not exercise", "could not run"]

LOGPS = ("logp_current", "logp_old", "logp_rollout", "logp_ref")
SIGNED = ("advantage", "value", "value_old", "returns", "token_reward")

ENOUGH = 3
"""Cases a subject must have taken before an invariant counts as exercised."""


@dataclass(frozen=True)
class Verdict:
    """One invariant held against one subject."""

    subject: str
    invariant: str
    status: Status
    exercised: int
    violation: Violation | None = None
    case: Case | None = None
    reason: str = ""


class _Found(Exception):
    pass


def check(subject: Subject, name: str, *, seed: int = 0, examples: int = 25) -> Verdict:
    """Hold a subject to one invariant, on the directed cases and on `examples` random ones."""
    if name not in INVARIANTS:
        raise TrimtabError(unknown_name("invariant", name, sorted(INVARIANTS)))
    if name in subject.waived:
        return Verdict(subject.label, name, "waived", 0, reason=subject.waived[name])
    taken = 0
    worst: tuple[Case, Violation] | None = None
    why = crash = ""

    def attempt(case: Case) -> Violation | None:
        nonlocal taken, why, crash
        try:
            found = INVARIANTS[name].check(subject, subject.adapt(case))
        except (CannotRepresent, TrimtabError) as error:
            why = str(error)
            return None
        except Exception as error:  # foreign code may raise anything; its first error is the verdict
            crash = crash or f"{type(error).__name__}: {error}"
            return None
        taken += 1
        return found

    for case in directed():
        violation = attempt(case)
        if violation is not None:
            worst = worst or (case, violation)

    @hypothesis.seed(seed)
    @settings(
        max_examples=max(examples, 1),
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]  typed as its metaclass
    )
    @hypothesis.given(cases(subject.reads))
    def probe(case: Case) -> None:
        nonlocal worst
        violation = attempt(case)
        if violation is not None:
            worst = (case, violation)
            raise _Found

    if examples:
        with suppress(_Found):
            probe()
    if worst is not None:
        worst = _fewest(worst, attempt)
        return Verdict(subject.label, name, "bug", taken, worst[1], worst[0])
    if crash:
        return Verdict(subject.label, name, "could not run", taken, reason=crash)
    return Verdict(
        subject.label,
        name,
        "holds" if taken >= ENOUGH else "could not exercise",
        taken,
        reason=why if taken < ENOUGH else "",
    )


def _fewest(found: tuple[Case, Violation], attempt: Callable[[Case], Violation | None]) -> tuple[Case, Violation]:
    """Leave out sequences, one at a time, as long as the violation stays."""
    for leave in reversed(range(found[0].num_sequences)):
        rest = [i for i in range(found[0].num_sequences) if i != leave]
        smaller = replace(found[0].taken(rest, as_part=False), origin=tuple(range(len(rest))))
        violation = attempt(smaller) if rest else None
        found = (smaller, violation) if violation is not None else found
    return found


TOKEN_VALUES: dict[str, Callable[[int], float]] = {
    **dict.fromkeys(LOGPS, lambda byte: -(1 + byte % 17) / 8),
    **dict.fromkeys(SIGNED, lambda byte: _signed(byte)),
    "keep": lambda byte: float(byte % 3 == 0),
    "selected": lambda byte: float(byte % 3 == 1),
}
SEQUENCE_VALUES: dict[str, Callable[[int], float]] = {
    **dict.fromkeys(("reward", "outcome", "value_after"), lambda byte: _signed(byte)),
    **dict.fromkeys(("ended", "votes"), lambda byte: float(byte % 3 == 0)),
}
FLAGS = ("keep", "selected", "ended", "votes")


@st.composite
def _sequences(draw: st.DrawFn, reads: frozenset[str] | None) -> tuple[bytes, dict[str, bytes]]:
    """One sequence: its shape, and a byte for every value that is read. A sequence is dropped whole when shrinking."""
    shape = draw(st.binary(max_size=5)) or bytes(1)
    sizes = {name: len(shape) + 1 for name in TOKEN_VALUES} | dict.fromkeys(SEQUENCE_VALUES, 1)
    read = {name: size for name, size in sizes.items() if reads is None or name in reads}
    return shape, {name: draw(st.binary(min_size=size, max_size=size)) for name, size in read.items()}


@st.composite
def cases(draw: st.DrawFn, reads: frozenset[str] | None = None) -> Case:
    """Small batches: one to three groups of two or three sequences, up to five tokens each, values on a coarse grid.

    Only fields in `reads` vary. The smaller a byte, the rounder its number, so shrinking ends at few and round ones.
    """
    groups = draw(st.lists(st.lists(_sequences(reads), min_size=2, max_size=3), min_size=1, max_size=3))
    rows = [row for group in groups for row in group]
    kinds = tuple(("p", *("aao"[byte % 3] for byte in shape)) for shape, _ in rows)

    def column(name: str, value: Callable[[int], float], sizes: list[int]) -> torch.Tensor:
        drawn = [byte for (_, found), size in zip(rows, sizes, strict=True) for byte in found.get(name, bytes(size))]
        numbers = torch.tensor([value(byte) for byte in drawn], dtype=torch.float64)
        return numbers.bool() if name in FLAGS else numbers

    return build(
        kinds,
        group=[g for g, group in enumerate(groups) for _ in group],
        tokens={name: column(name, value, [len(k) for k in kinds]) for name, value in TOKEN_VALUES.items()},
        sequences={name: column(name, value, [1] * len(kinds)) for name, value in SEQUENCE_VALUES.items()},
    )


def _signed(byte: int) -> float:
    """0, 1/4, -1/4, 1/2, … up to ±2: the smaller the byte, the rounder the number."""
    step = (byte % 17 + 1) // 2
    return step / 4 if byte % 2 else -step / 4


def build(
    kinds: tuple[tuple[str, ...], ...],
    *,
    group: list[int],
    tokens: dict[str, torch.Tensor],
    sequences: dict[str, torch.Tensor],
) -> Case:
    """A case with what follows from its shape: lengths, and a key a token that survives reordering."""
    key = torch.tensor([(i * 7919 + t * 104729) % 99991 for i, k in enumerate(kinds) for t in range(len(k))])
    length = torch.tensor([float(len(k)) for k in kinds], dtype=torch.float64)
    return Case(
        kinds,
        {**tokens, "token_key": key},
        {**sequences, "group": torch.tensor(group), "length": length},
        origin=tuple(range(len(kinds))),
    )


def directed() -> Iterator[Case]:
    """Shapes in which bugs hide: ragged, single tokens, constant rewards, extreme drift, mixed signs, empty rows."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    shapes = {
        "ragged": ("paaaa", "pa", "paoa", "paa"),
        "single": ("pa", "pa", "pa", "pa"),
        "empty": ("paa", "poo", "pao", "paaa"),
        "long": ("paaaaaaa", "paoaoaoa", "pa", "paaa"),
    }
    drifts = {"ragged": (0.05, 1.0), "single": (1.0,), "empty": (1.0,), "long": (0.3, 60.0)}
    for name, drift in [(shape, size) for shape in shapes for size in drifts[shape]]:
        kinds = tuple(tuple(row) for row in shapes[name])
        total, count = sum(map(len, kinds)), len(kinds)
        base = -0.1 - random(total)
        tokens = {n: (base + drift * (random(total) - 0.5)).clamp(max=-1e-3) for n in LOGPS}
        tokens |= {n: 4 * random(total) - 2 for n in SIGNED}
        tokens |= {"keep": random(total) > 0.3, "selected": random(total) > 0.6}
        sequences = {
            "reward": torch.ones(count, dtype=torch.float64) if name == "single" else 2 * random(count),
            "outcome": 2 * random(count) - 1,
            "value_after": random(count),
            "ended": random(count) > 0.4,
            "votes": torch.tensor([True, True, True, False]),
        }
        yield build(kinds, group=[0, 0, 1, 1], tokens=tokens, sequences=sequences)
