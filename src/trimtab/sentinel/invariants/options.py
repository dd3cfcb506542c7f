"""Options take effect, and impossible values are refused."""

from dataclasses import replace
from typing import Any

import torch

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.batch.perturb import doubled, drifted, louder
from trimtab.sentinel.binding.calling import Seen, run
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.settings import modes, setting, settled, with_setting
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant


@invariant(
    family="I21",
    statement="Every option takes effect: another value gives another result on some batch. "
    "The same holds for the counts of the whole batch that a summed loss receives.",
    why="If an option is accepted and never read, people believe in a setting that does nothing.",
    bug="slime 351e559f1: --eps-clip-c was accepted and never passed to the loss.",
    repair="Follow the option from the command line to the formula. Test that it changes the result.",
    some=True,
)
def options_live(subject: Subject, case: Case) -> tuple[Violation, ...] | None:
    credited = subject.reading("advantage", "outcome") and subject.reading("logp_current")
    if not subject.variants and not _owes_counts(subject) and not credited:
        raise case.cannot("its binding names no other values of its options")
    base = run(subject, case)
    inert: list[Violation] = _dead_counts(subject, case, base) if _owes_counts(subject) else []
    if credited and alike(base, run(subject, _uncredited(case))):
        inert.append(Violation("advantages change nothing", "the same", "a difference on some case", grade="suspect"))
    for option, values in subject.variants.items():
        # Which values show a setting that is used is a guess where nobody bound the function; that it is not, is none.
        for value in values if option not in subject.mentioned else ():
            chosen = with_setting(subject, option, value)
            if alike(base, run(subject, case, chosen)) and not _shows(subject, case, option, value):
                what = f"{option} = {value!r} gives the same as {option} = {setting(settled(subject), option)!r}"
                inert.append(Violation(what, "the same on every case", "a difference on some case"))
    return tuple(inert) or None


def _uncredited(case: Case) -> Case:
    """The same case with every advantage turned around."""
    turned = case.with_tokens(advantage=-case.tokens["advantage"] - 0.5)
    return turned.with_sequences(outcome=-case.sequences["outcome"] - 0.5)


def _shows(subject: Subject, case: Case, option: str, value: Any) -> bool:
    """Whether an option acts elsewhere: where advantages have the other sign and policies are apart; where numbers are
    large or small, since a threshold is not dead because no number, or every number, is beyond it; or on another path
    through the body, if the path was not chosen by whoever bound the function."""
    paths = [subject, *(other for _, other in modes(subject))] if subject.guessed else [subject]
    turned = _uncredited(case)
    shifted = [drifted(one, amount) for one in (case, turned) for amount in (1.5, -1.5)]
    for other in (case, turned, *shifted, *(louder(case, factor) for factor in (10.0, 100.0, 0.01))):
        for path in paths:
            try:
                there = subject.adapt(other)
                if not alike(run(path, there), run(path, there, with_setting(path, option, value))):
                    return True
            except Exception:  # it may refuse numbers of that size, or that path
                continue
    return False


def _owes_counts(subject: Subject) -> bool:
    """Whether parts of this loss are summed and it receives the counts of the whole, so it must divide by one of them.

    Where its average is declared, `denominator` compares that instead.
    """
    said = subject.definition is not None or "denominator" in subject.conventions
    return subject.combine == "sum" and subject.reading("whole") and not said


def _dead_counts(subject: Subject, case: Case, base: Seen) -> list[Violation]:
    """Pass the same sequences as part of a batch twice as large. The divisor must change."""
    part = run(subject, replace(case, within=doubled(case)))
    losses = [n for n, r in base.results.items() if r.kind == "loss" and r.level == "scalar"]
    return [
        Violation(f"the counts of the whole batch change nothing in {n}", "the same on every case", "a smaller share")
        for n in losses
        if same(base.values[n], part.values[n], tolerance=1e-12)
    ]


def alike(first: Seen, second: Seen) -> bool:
    """No value and no gradient differs."""
    for name, value in first.values.items():
        if name not in second.values or not same(value, second.values[name], tolerance=1e-12):
            return False
        for leaf, gradient in first.gradients.get(name, {}).items():
            found = second.gradients.get(name, {}).get(leaf, torch.zeros_like(gradient))
            if not same(gradient, found, tolerance=1e-12):
                return False
    return True


@invariant(
    family="I21",
    statement="An option value without a meaning raises an error.",
    why="If a misspelt mode falls back to another one, the run trains with a method that was not chosen.",
    bug="An unknown aggregation mode silently became the token mean.",
    repair="Raise on unknown values, and list the known ones.",
)
def impossible_options_refused(subject: Subject, case: Case) -> Violation | None:
    if not subject.impossible:
        raise case.cannot("its binding names no impossible values")
    for option, values in subject.impossible.items():
        for value in values:
            try:
                run(subject, case, {**subject.options, option: value})
            except CannotRepresent:
                raise
            except Exception:  # any error is a refusal, and a refusal is expected here
                continue
            return Violation(f"{option} = {value!r} is accepted", "a result", "an error")
    return None


SIDES: tuple[tuple[frozenset[str], str, int], ...] = (
    (frozenset({"low", "lower", "lo", "below"}), "ratio", -1),
    (frozenset({"high", "higher", "upper", "hi", "above"}), "ratio", 1),
    (frozenset({"pos", "positive"}), "advantage", 1),
    (frozenset({"neg", "negative"}), "advantage", -1),
)
"""Words of a setting, and the side that they speak of: ratios below or above 1, advantages above or below 0."""


@invariant(
    family="I21",
    statement="A setting acts on the side that its name says: one called low or lower on ratios below 1, one called "
    "high or upper on ratios above 1, one for positive advantages on those.",
    why="Exchanged bounds train, and nothing looks wrong: the policy is held back where it should be free.",
    bug="prime-rl 7d9a34510: the settings for the spread of the group and of the batch were exchanged.",
    repair="Follow each setting to the line that uses it. Test with every ratio above 1, then with every ratio below.",
    whole=True,
)
def options_take_sides(subject: Subject, case: Case) -> Violation | None:
    named = [
        (option, value, about, side)
        for option, values in subject.variants.items()
        for words, about, side in SIDES
        if set(words_of(option)) & words
        for value in values[:1]
    ]
    if not named or not subject.reading("logp_current") or not bool(case.trainable.any()):
        raise case.cannot("no setting with another value speaks of a side, or it reads no policy")
    for option, value, about, side in named:
        if about == "advantage" and not subject.reading("advantage", "outcome"):
            continue
        own, other = (_acts(subject, case, option, value, about, at) for at in (side, -side))
        if other and not own:
            where = {"ratio": ("below 1", "above 1"), "advantage": ("below 0", "above 0")}[about]
            said, found = (where[at > 0] for at in (side, -side))
            what = f"{option} acts where every {about} is {found}, and never where it is {said}"
            return Violation(what, f"a difference {found}", f"a difference {said}", effect=Effect("gradient", (), 1.0))
    return None


def _acts(subject: Subject, case: Case, option: str, value: Any, about: str, side: int) -> bool:
    """Whether another value changes a result where every ratio, or every advantage, is on one side."""
    for amount in (0.15, 0.4, 1.5, 4.0):
        for sign in (1, -1):
            drift, credit = (side, sign) if about == "ratio" else (sign, side)
            there = drifted(case, amount * drift)
            there = there.with_tokens(advantage=there.tokens["advantage"].abs().clamp(min=0.25) * credit)
            there = there.with_sequences(outcome=there.sequences["outcome"].abs().clamp(min=0.25) * credit)
            there = subject.adapt(there)
            if not alike(run(subject, there), run(subject, there, with_setting(subject, option, value))):
                return True
    return False
