"""The only place that tells what needs nobody's attention: conventions, waived checks, checks that do not apply."""

from collections.abc import Iterator, Mapping

from trimtab.sentinel.reports.as_json import timed
from trimtab.sentinel.reports.data import Report
from trimtab.sentinel.reports.outcome import counted, grouped, with_status
from trimtab.sentinel.reports.wording import few, happened, loaded, one_line, options_words, plural, ran


def counts(report: Report, *, verbose: bool = False) -> list[str]:
    """One line per kind: conventions, waived, does not apply, guessed bindings."""
    count = counted(report)
    told = [f"{name} {number}" for name, number in _counted(report, count) if number]
    ask = "" if verbose or not told else "  (--verbose lists them)"
    return [one_line(line) for line in told[:-1]] + ([one_line(told[-1]) + ask] if told else [])


def _counted(report: Report, count: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    yield "conventions:", _in_functions(report, "convention") if count["convention"] else ""
    yield "waived:", _in_functions(report, "waived") if count["waived"] else ""
    idle = with_status(report, "could not exercise")
    yield "does not apply:", f"{plural(len(idle), 'check')} could not be exercised" if idle else ""
    guessed = [subject for subject in report["subjects"] if subject.get("guessed")]
    words = (
        f"{plural(len(guessed), 'binding')}; a finding under a guess is at most a suspect unless every guess shows it"
    )
    yield "guessed:", words if guessed else ""


def _in_functions(report: Report, status: str) -> str:
    chosen = [verdict for verdict in report["verdicts"] if verdict["status"] == status]
    functions = {verdict["subject"].partition("(")[0] for verdict in chosen}
    return f"{plural(len(chosen), 'check')} on {plural(len(functions), 'function')}"


def listed_quietly(report: Report) -> list[tuple[str, list[str]]]:
    """The details behind the counts, and the code that ran: titles with their lines."""
    waived, idle = with_status(report, "waived"), with_status(report, "could not exercise")
    conventions = [f"{v['subject']} · {v['invariant']}: {happened(v)}" for v in with_status(report, "convention")]
    return [
        ("FUNCTIONS", _functions(report)),
        ("CONVENTIONS", [*conventions, *conventions_found(report)]),
        (
            f"WAIVED ({len(waived)})",
            [f"{', '.join(g.invariants)} on {', '.join(few(g.subjects, 4))}: {g.reason}" for g in grouped(waived)],
        ),
        (
            f"COULD NOT EXERCISE ({len(idle)})",
            [
                f"{len(g.verdicts)} × {g.reason}: {', '.join(few(g.invariants, 4))} on {', '.join(few(g.subjects, 4))}"
                for g in grouped(idle)
            ],
        ),
        (
            "CODE THAT RAN",
            [f"{found['boundary']} · lines {ran(found)} · {loaded(found)}" for found in report["boundaries"]],
        ),
    ]


def _functions(report: Report) -> list[str]:
    """Each function, the time of its checks, and its binding where that was guessed."""
    return [
        f"{subject['label']} · {subject.get('seconds', 0.0):.1f} s"
        + (f" · {guess}" if (guess := subject.get("guessed", "")) else "")
        for subject in timed(report)
    ]


def conventions_found(report: Report) -> list[str]:
    """Each detected convention once, with all functions that share it."""
    shared: dict[str, list[str]] = {}
    for subject in report["subjects"]:
        if subject["conventions"]:
            shared.setdefault(options_words(_named(subject["conventions"])), []).append(subject["label"])
    return [f"{what} · detected in {', '.join(few(labels, 4))}" for what, labels in shared.items()]


def _named(conventions: Mapping[str, object]) -> dict[str, object]:
    return {name: conventions[name] for name in sorted(conventions)}
