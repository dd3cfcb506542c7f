"""The only place that counts what a run did and found: one line about each."""

from collections import Counter

from trimtab.sentinel.reports.causes import findings
from trimtab.sentinel.reports.data import Report
from trimtab.sentinel.reports.outcome import RAN, counted
from trimtab.sentinel.reports.wording import plural, target_name


def summary(report: Report) -> str:
    """What was found, and what ran, on one line."""
    return f"{found_line(report)}; {_ran(report)}"


def found_line(report: Report) -> str:
    """`areal 1.0.4: 2 bugs, 1 latent, 3 conventions, 1 could not be bound`. One cause counts once."""
    return f"{target_name(report)}: {', '.join(_found(report))}"


def ran_line(report: Report) -> str:
    """`areal 1.0.4: 12 functions held to 34 invariants: 201 checks hold, …`."""
    return f"{target_name(report)}: {_ran(report)}"


def causes(report: Report) -> Counter[str]:
    """The number of findings per status."""
    return Counter(finding.status for finding in findings(report))


def _found(report: Report) -> list[str]:
    count, verdicts = causes(report), counted(report)
    return [
        plural(count["bug"], "bug"),
        *([plural(count["suspect"], "suspect")] if count["suspect"] else []),
        *([f"{count['latent']} latent"] if count["latent"] else []),
        *([f"{count['hygiene']} hygiene"] if count["hygiene"] else []),
        *([plural(verdicts["convention"], "convention")] if verdicts["convention"] else []),
        *([f"{verdicts['could not run']} could not run"] if verdicts["could not run"] else []),
        *([f"{len(report['could_not_bind'])} could not be bound"] if report["could_not_bind"] else []),
    ]


def _ran(report: Report) -> str:
    verdicts, count = report["verdicts"], counted(report)
    labels = {verdict["subject"] for verdict in verdicts if verdict["status"] in RAN}
    functions = {subject["name"] for subject in report["subjects"] if subject["label"] in labels}
    invariants = {verdict["invariant"] for verdict in verdicts}
    broken = sum(count[status] for status in ("bug", "suspect", "latent", "hygiene"))
    checks = [f"{plural(count['holds'], 'check')} {'holds' if count['holds'] == 1 else 'hold'}"]
    checks += [f"{broken} {'finds' if broken == 1 else 'find'} something"] if broken else []
    checks += [plural(count["convention"], "convention")] if count["convention"] else []
    checks += [f"{count['waived']} waived"] if count["waived"] else []
    idle = count["could not exercise"]
    checks += [f"{idle} {'does' if idle == 1 else 'do'} not apply"] if idle else []
    cases = sum(verdict["exercised"] for verdict in verdicts)
    several = f" ({len(labels)} with their options)" if len(labels) > len(functions) else ""
    return (
        f"{plural(len(functions), 'function')}{several} held to {plural(len(invariants), 'invariant')}: "
        f"{', '.join(checks)} "
        f"({plural(cases, 'case')}, seed {report['seed']}, {report['seconds']:.1f} s)"
    )


ABOUT = (
    "Each function was called with small made-up batches, before and after changes that must not matter (other "
    "padding, another order, parts instead of the whole). No model was trained."
)
"""What a reader who has never seen such a report needs to know first."""
MEANT = {
    "bug": "a bug is wrong on ordinary batches of a run that uses the function with these options",
    "suspect": "a suspect is wrong if it was meant as its names suggest",
    "latent": "a latent bug is wrong once a run meets the condition it names",
    "hygiene": "hygiene is harmless as long as every caller is careful",
}


def meaning(report: Report) -> str:
    """What the words of the first line mean, for those that occur; and whether a bug touches the update at all."""
    found = findings(report)
    told = [said for status, said in MEANT.items() if any(one.status == status for one in found)]
    bugs = [one for one in found if one.status == "bug"]
    words = "; ".join(told)
    sentences = [ABOUT, f"{words[:1].upper()}{words[1:]}."] if told else []
    if bugs and all(one.severity == "low" for one in bugs):
        which = "The bug is" if len(bugs) == 1 else "All bugs are"
        sentences.append(f"{which} in numbers that people read: no update is touched.")
    return " ".join(sentences)
