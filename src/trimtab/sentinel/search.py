"""The search for a counter-example: directed cases first, then hypothesis, which also shrinks what it finds.

Deterministic from the seed. A counter-example comes back with the fewest sequences and tokens and the roundest numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from trimtab.errors import TrimtabError
from trimtab.sentinel.case import CannotRepresent, Case
from trimtab.sentinel.invariants import INVARIANTS, Violation
from trimtab.sentinel.subject import Subject

Status = Literal["holds", "bug", "waived", "could not exercise"]

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
    """Hold a subject to one invariant."""
    if name in subject.waived:
        return Verdict(subject.label, name, "waived", 0, reason=subject.waived[name])
    taken = 0
    worst: tuple[Case, Violation] | None = None
    why = ""

    def attempt(case: Case) -> Violation | None:
        nonlocal taken, why
        try:
            found = INVARIANTS[name].check(subject, subject.adapt(case))
        except (CannotRepresent, TrimtabError) as error:
            why = str(error)
            return None
        taken += 1
        return found

    for case in directed():
        violation = attempt(case)
        if violation is not None:
            worst = worst or (case, violation)

    @hypothesis.seed(seed)
    @settings(max_examples=examples, database=None, deadline=None, phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck))
    @hypothesis.given(cases(subject.reads))
    def probe(case: Case) -> None:
        nonlocal worst
        violation = attempt(case)
        if violation is not None:
            worst = (case, violation)
            raise _Found

    try:
        probe()
    except _Found:
        pass
    if worst is not None:
        return Verdict(subject.label, name, "bug", taken, worst[1], worst[0])
    return Verdict(subject.label, name, "holds" if taken >= ENOUGH else "could not exercise", taken, reason=why if taken < ENOUGH else "")


@st.composite
def cases(draw: st.DrawFn, reads: frozenset[str] | None = None) -> Case:
    """Small batches: one to three groups of two or three sequences, up to five tokens each, values on a coarse grid.

    Only fields in `reads` vary; one byte a value, so that shrinking ends at few tokens and round numbers.
    """
    sizes = [2 + byte % 2 for byte in draw(st.binary(min_size=1, max_size=3))]
    shapes = [draw(st.binary(max_size=5)) for _ in range(sum(sizes))]
    kinds = tuple(("p", *("aao"[byte % 3] for byte in shape)) if shape else ("p", "a") for shape in shapes)
    total, rows = sum(len(k) for k in kinds), len(kinds)

    def column(name: str, size: int, value: Callable[[int], float]) -> torch.Tensor:
        drawn = draw(st.binary(min_size=size, max_size=size)) if reads is None or name in reads else bytes(size)
        return torch.tensor([value(byte) for byte in drawn], dtype=torch.float64)

    tokens = {name: column(name, total, lambda byte: -(1 + byte % 17) / 8) for name in LOGPS}
    tokens |= {name: column(name, total, _signed) for name in SIGNED}
    tokens |= {name: column(name, total, lambda byte: byte % 3).bool() for name in ("keep", "selected")}
    sequences = {name: column(name, rows, _signed) for name in ("reward", "outcome", "value_after")}
    sequences |= {name: column(name, rows, lambda byte: byte % 3) == 0 for name in ("ended", "votes")}
    tokens["keep"] = ~tokens["keep"] if reads is None or "keep" in reads else torch.ones(total, dtype=torch.bool)
    group = [g for g, size in enumerate(sizes) for _ in range(size)]
    return build(kinds, group=group, tokens=tokens, sequences=sequences)


def _signed(byte: int) -> float:
    """0, 1/4, -1/4, 1/2, … up to ±2: the smaller the byte, the rounder the number."""
    step = (byte % 17 + 1) // 2
    return step / 4 if byte % 2 else -step / 4


def build(
    kinds: tuple[tuple[str, ...], ...], *, group: list[int], tokens: dict[str, torch.Tensor], sequences: dict[str, torch.Tensor]
) -> Case:
    """A case with what follows from its shape: lengths, and a key a token that survives reordering."""
    key = torch.tensor([(i * 7919 + t * 104729) % 99991 for i, k in enumerate(kinds) for t in range(len(k))])
    length = torch.tensor([float(len(k)) for k in kinds], dtype=torch.float64)
    return Case(kinds, {**tokens, "token_key": key}, {**sequences, "group": torch.tensor(group), "length": length}, origin=tuple(range(len(kinds))))


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
    for name, drift in [(name, drift) for name in shapes for drift in drifts[name]]:
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
