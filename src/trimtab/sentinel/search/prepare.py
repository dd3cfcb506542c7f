"""A subject before the search: which fields it reads, on every path, and whether it runs at all."""

from contextlib import nullcontext, suppress
from dataclasses import replace

from trimtab.sentinel.batch.case import CannotRepresent, Case, WrongBinding, WrongShape
from trimtab.sentinel.binding.calling import Memory, resolve_inputs, run
from trimtab.sentinel.binding.settings import modes
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.search.measure import measured
from trimtab.sentinel.search.trial import told


def ready(subject: Subject, cases: list[Case]) -> tuple[Subject, str]:
    """The subject with known inputs, or the reason why it cannot run: no call returns, or the boundary never ran."""
    boundary = subject.boundary
    why, ran = "", False
    subject = found = replace(subject, memory=Memory())
    for case in cases:
        try:
            with boundary.trace() if boundary is not None else nullcontext():
                found = resolve_inputs(found, subject.adapt(case))
                run(found, subject.adapt(case))
        except (WrongShape, CannotRepresent):
            ran = True
        except WrongBinding as error:
            return subject, str(error)
        except Exception as error:
            why = why or told(error)
        else:
            ran = True
    if not ran:
        return subject, why
    if boundary is not None and not boundary.body_ran:
        return subject, f"the body of {boundary.spec.name} did not run"
    return measured(_with_other_paths(found, cases), cases), ""


def _with_other_paths(subject: Subject, cases: list[Case]) -> Subject:
    """The subject, with the fields that it reads on other paths among those that vary."""
    if subject.reads is None:
        return subject
    reads = subject.reads
    for _, other in modes(subject):
        for case in cases[:2]:
            with suppress(Exception):  # a path that cannot be taken reads nothing
                known = resolve_inputs(replace(other, inputs=frozenset(), reads=None), subject.adapt(case))
                reads = reads | (known.reads or frozenset())
    return replace(subject, reads=reads)
