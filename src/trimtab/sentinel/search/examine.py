"""The search for a counter-example: directed cases first, then those of hypothesis. Counter-examples are shrunk.

The search is deterministic for a seed. A counter-example has few sequences, few tokens and round numbers.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trimtab.errors import TrimtabError, unknown_name
from trimtab.sentinel.batch.directed import directed, random_cases
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.invariants.parallel import close_pools
from trimtab.sentinel.search.grade import graded, in_corners, judged, on_its_own
from trimtab.sentinel.search.prepare import ready
from trimtab.sentinel.search.trial import Verdict, on_every_path

EXAMPLES = 12
"""Default number of random cases in addition to the directed ones."""


def check(subject: Subject, name: str, *, seed: int = 0, examples: int = EXAMPLES) -> Verdict:
    """Check one invariant on a subject, with the directed cases and `examples` random ones."""
    return next(examine(subject, only=(name,), seed=seed, examples=examples))


def examine(
    subject: Subject, *, only: Sequence[str] | None = None, seed: int = 0, examples: int = EXAMPLES
) -> Iterator[Verdict]:
    """Check every invariant (or the named ones) on a subject, one verdict after the other."""
    subject, why = ready(subject, list(directed()))
    yield from hold(subject, why, only=only, seed=seed, examples=examples)


def hold(
    subject: Subject, why: str, *, only: Sequence[str] | None = None, seed: int = 0, examples: int = EXAMPLES
) -> Iterator[Verdict]:
    """Hold what `ready` returned to the invariants."""
    names = list(only if only is not None else subject.promises or INVARIANTS)
    for name in names:
        if name not in INVARIANTS:
            raise TrimtabError(unknown_name("invariant", name, sorted(INVARIANTS)))
    cases = [*directed(), *(() if why else random_cases(subject.reads, seed=seed, examples=examples))]
    cases = [at_rest(case, subject.fields) for case in cases]
    try:
        for name in names:
            started = time.perf_counter()
            if name in subject.waived:
                yield Verdict(subject.label, name, "waived", 0, reason=subject.waived[name])
            elif why:  # once: it is about the function, and no invariant adds anything
                yield Verdict(subject.label, name, "could not run", 0, reason=why)
                return
            elif subject.varies and not INVARIANTS[name].alone:
                why_not = f"not deterministic: {subject.varies}"
                yield Verdict(subject.label, name, "could not exercise", 0, reason=why_not)
            else:
                held = in_corners(subject, on_its_own(subject, on_every_path(subject, name, cases), cases), cases)
                verdict = graded(subject, judged(subject, held, cases), cases)
                yield replace(verdict, seconds=time.perf_counter() - started)
    finally:
        close_pools()
