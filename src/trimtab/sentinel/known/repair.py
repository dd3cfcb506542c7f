"""Which one small change to a function's source makes it a published formula, number for number.

A function that equals no known formula may be a new one. If `min` for `max` in one line makes it a published one on
every batch, it is more likely that this was meant. The only place that asks so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.settings import others, with_setting
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.edits import Edit
from trimtab.sentinel.known.fit import Held, Path, Seen, answers, opened
from trimtab.sentinel.known.offered import candidates
from trimtab.sentinel.known.rewrite import Ran, functions_of
from trimtab.sentinel.known.shaped import as_shaped
from trimtab.sentinel.known.token import Known

MOST = 500
"""How many changes are tried."""
LEAST = 3
"""How many ordinary batches a function must take."""
KINDS = (
    frozenset({*LOGPS} - {"logp_rollout"}), frozenset({"value", "value_old", "returns"}),
    frozenset({"reward", "token_reward"}), frozenset({"trainable", "attention", "response"}),
)  # fmt: skip
"""Fields that are taken for one another."""
SETTINGS = 12
"""How many other settings are asked for."""


@dataclass(frozen=True)
class Repair:
    """A change, and the formula that the function then is."""

    result: str
    formula: str
    change: str
    place: str
    case: Case
    observed: object
    said: str = ""
    """The setting under which it is, where that is not the default."""


@dataclass
class Table:
    """The published formulas of one result as numbers on the first case, for thousands of look-ups."""

    formulas: list[Known]
    numbers: Tensor
    """[formulas, numbers per result]"""
    held: Held

    @classmethod
    def of(cls, offered: Iterable[Known], held: Held) -> "Table | None":
        formulas: list[Known] = []
        rows: list[Tensor] = []
        cells, first = held[0]
        for known in offered:
            if known.mistake or known.partial:
                continue
            expected = as_shaped(known, cells, first)
            if expected is not None and bool(torch.isfinite(expected).all()) and bool(expected.abs().max() > 1e-6):
                formulas.append(known)
                rows.append(expected.reshape(-1))
        return cls(formulas, torch.stack(rows), held) if rows else None

    def equal_to(self, value: Tensor) -> Iterator[Known]:
        """The formulas with these numbers on the first case."""
        seen = value.detach().double().reshape(1, -1)
        if seen.shape[1] != self.numbers.shape[1] or not bool(torch.isfinite(seen).all()):
            return
        size = self.numbers.abs().amax(1).clamp(min=1.0)
        tolerance = 1e-6 if value.dtype == torch.float64 else 1e-4
        near = (self.numbers - seen).abs().amax(1) <= tolerance * size
        yield from (self.formulas[i] for i in near.nonzero().flatten().tolist()[:4])


Unknown = tuple[Table, frozenset[str]]
"""The formulas that a result could be, and the fields and settings that it follows."""


def repaired(subject: Subject, cases: Sequence[Case], walked: Sequence[Path]) -> list[Repair]:
    """For each result that equals no published formula: the first change with which it does.

    Looked for on every path where some result is not known.
    """
    found: dict[str, Repair] = {}
    left = MOST
    at_first = {fit.result for fit in walked[0].fits}
    for path in walked:
        known = {*found, *(fit.result for fit in path.fits)}
        # Another number opens no other lines, but it shows what two equal defaults hide.
        asked = None if path.is_other else at_first - known
        walking = replace(opened(subject) if path.said else subject, options=path.options)
        there, tried = _on_path(walking, cases, known, left, asked)
        found |= {one.result: replace(one, said=path.said) for one in there}
        left -= tried
    return list(found.values())


def _on_path(
    subject: Subject, cases: Sequence[Case], known: Collection[str], most: int, asked: Collection[str] | None
) -> tuple[list[Repair], int]:
    """Repairs of unknown results (only of those asked for) under the options of a subject, and how many were tried."""
    if asked is not None and not asked:
        return [], 0
    seen = answers(subject, subject.options, cases)
    known = known if asked is None else {name for _, out in seen for name in out if name not in asked}
    unknown = _unknown(subject, seen, known) if len(seen) >= LEAST else {}
    found: dict[str, Repair] = {}
    tried = 0
    for ran in _functions(subject, seen[0][0]) if unknown else ():
        for edit in ran.edits():
            if tried >= most or len(found) == len(unknown):
                return list(found.values()), tried
            tried += 1
            with ran.with_edit(edit) as is_code:
                place = f"{ran.made.__qualname__}, line {edit.line}"
                became = list(_became(subject, unknown, seen, found, edit)) if is_code else []
            if became and ran.freezes(edit, lambda: _called(subject, seen[0][0])):
                continue  # it switches something off
            for name, formula in became:
                value = seen[0][1][name].value.tolist()
                found[name] = Repair(name, formula.name, edit.text(), place, seen[0][0], value)
    return list(found.values()), tried


def _became(
    subject: Subject, unknown: Mapping[str, Unknown], seen: Seen, found: Collection[str], edit: Edit
) -> Iterator[tuple[str, Known]]:
    """The unknown results that are published formulas now, while a change is in."""
    out = _called(subject, seen[0][0])
    for name, (table, follows) in unknown.items():
        if name in found or name not in out or same(out[name].value, seen[0][1][name].value):
            continue
        formula = next((k for k in table.equal_to(out[name].value) if _holds(subject, name, k, seen)), None)
        if formula is None:
            continue
        now = _followed(subject, seen).get(name, frozenset())
        # A change that makes it simpler does not make it right: it must use everything that it used, but for a
        # variable that stood in for another one.
        may_be_another = edit.renames and out[name].kind not in ("metric", "statistic")
        if follows <= now or (may_be_another and _stood_in(follows - now, now - follows)):
            yield name, formula


def _stood_in(lost: Collection[str], gained: Collection[str]) -> bool:
    """Whether one field took the place of another of its kind."""
    return len(lost) == 1 and len(gained) == 1 and any({*lost, *gained} <= kind for kind in KINDS)


def _functions(subject: Subject, case: Case) -> list[Ran]:
    with suppress(Exception), torch.no_grad():
        return functions_of(lambda: call_subject(subject, case))
    return []


def _called(subject: Subject, case: Case) -> Mapping[str, Result]:
    with suppress(Exception), torch.no_grad():  # most changes raise
        return call_subject(subject, case)
    return {}


def _unknown(subject: Subject, seen: Seen, known: Collection[str]) -> dict[str, Unknown]:
    """The formulas that each unknown result could be, and what that result follows."""
    found: dict[str, Unknown] = {}
    followed: dict[str, frozenset[str]] = {}
    for name, result in seen[0][1].items():
        if subject.normalises and result.kind in ("loss", "term"):
            continue  # the formulas take advantages as they are
        if name in known or result.kind in ("count", "carried") or not all(name in out for _, out in seen):
            continue
        held: Held = [(Cells(case, by_token=not subject.reading("reward")), out[name]) for case, out in seen]
        if len({float(one.value.double().abs().sum()) for _, one in held}) == 1:
            continue  # a number that never changes is no formula
        followed = followed or _followed(subject, seen)
        table = Table.of(candidates(subject, result), held) if name in followed else None
        if table is not None:
            found[name] = table, followed[name]
    return found


def _followed(subject: Subject, seen: Seen) -> dict[str, frozenset[str]]:
    """The fields and the settings whose numbers each result follows on some case."""
    found: dict[str, set[str]] = {}
    for case, _ in (seen[0], seen[-1]):
        before = _called(subject, case)
        for what, after, base in _changed(subject, case, before):
            for name, result in after.items():
                if name in base and not same(base[name].value, result.value):
                    found.setdefault(name, set()).add(what)
    return {name: frozenset(what) for name, what in found.items()}


def _changed(
    subject: Subject, case: Case, before: Mapping[str, Result]
) -> Iterator[tuple[str, Mapping[str, Result], Mapping[str, Result]]]:
    """What was changed, the results with that change, and those without it."""
    own = [(n, 0.7 * v) for n, v in subject.options.items() if isinstance(v, float) and v]
    for option, value in [*own, *others(subject)][:SETTINGS]:
        there = replace(subject, options=with_setting(subject, option, value))
        yield f"{option}={value}", _called(there, case), before
    half = range((case.num_sequences + 1) // 2)
    part, alone = (_called(subject, case.taken(half, as_part=is_part)) for is_part in (True, False))
    yield "whole", part, alone
    for field in sorted(subject.inputs):
        for moved in _moved(case, field):
            yield field, _called(subject, moved), before


def _moved(case: Case, field: str) -> Iterator[Case]:
    """The case with other numbers in one field."""
    if field in case.tokens and case.tokens[field].dtype.is_floating_point:
        values = case.tokens[field]
        wave = torch.sin(torch.arange(values.numel(), dtype=torch.float64) * 1.7).reshape(values.shape)
        yield case.with_tokens(**{field: values - 0.3 * (1 + wave)})
    elif field in case.sequences and case.sequences[field].dtype.is_floating_point:
        values = case.sequences[field]
        yield case.with_sequences(**{field: values + torch.sin(torch.arange(values.numel(), dtype=torch.float64) + 1)})
    elif field == "group":
        yield case.with_sequences(group=case.sequences["group"].roll(1))


def _holds(subject: Subject, name: str, known: Known, seen: Seen) -> bool:
    """Whether the changed function equals the formula on every case; it runs with its change here."""
    values: list[Tensor] = []
    for case, _ in seen:
        out: Mapping[str, Any] = _called(subject, case)
        if name not in out:
            return False
        expected = as_shaped(known, Cells(case, by_token=not subject.reading("reward")), out[name])
        value = out[name].value.detach().double()
        if expected is None or expected.shape != value.shape:
            return False
        tolerance = 1e-6 if out[name].value.dtype == torch.float64 else 1e-4
        size = max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
        if not bool(((expected - value).abs() <= tolerance * size).all()):
            return False
        values.append(value.reshape(-1))
    return len({float(value.sum()) for value in values}) > 1
