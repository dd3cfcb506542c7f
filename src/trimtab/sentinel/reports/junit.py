"""The only place that writes JUnit XML: one suite per function, one test case per invariant."""

from xml.etree import ElementTree

from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import Report, Teaching, VerdictData
from trimtab.sentinel.reports.evidence import evidence
from trimtab.sentinel.reports.wording import clean, happened, one_line, target_name

NOT_PASSED = {
    "bug": "failure",
    "could not run": "error",
    "waived": "skipped",
    "could not exercise": "skipped",
}
"""The JUnit element of each status; all others count as passed. The output of hygiene and conventions names them."""


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None) -> str:
    """One XML document. A bug that is in the baseline is still a failure, and its message says that it is known."""
    known = {verdict["id"] for verdict in comparison.still} if comparison else set[str]()
    root = ElementTree.Element("testsuites", name=f"trimtab check {target_name(report)}")
    by_subject: dict[str, list[VerdictData]] = {}
    for verdict in report["verdicts"]:
        by_subject.setdefault(verdict["subject"], []).append(verdict)
    for label, verdicts in by_subject.items():
        suite = ElementTree.SubElement(root, "testsuite", name=one_line(label))
        for verdict in verdicts:
            _case(suite, verdict, invariants, known=verdict["id"] in known)
        _count(suite, [suite], sum(verdict["seconds"] for verdict in verdicts))
    for one in report["could_not_bind"]:
        suite = ElementTree.SubElement(root, "testsuite", name=one_line(one["subject"]))
        case = ElementTree.SubElement(suite, "testcase", classname=one_line(one["subject"]), name="bind", time="0.000")
        message = one_line(f"looked for {one['looked_for']}: {one['reason']}")
        _ = ElementTree.SubElement(case, "error", type="could not bind", message=message)
        _count(suite, [suite], 0.0)
    _count(root, list(root), report["seconds"])
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, verdict: VerdictData, invariants: Teaching, *, known: bool) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=one_line(verdict["subject"]),
        name=one_line(verdict["invariant"]),
        time=f"{verdict['seconds']:.3f}",
    )
    tag = NOT_PASSED.get(verdict["status"])
    told = happened(verdict) or verdict["status"]
    if tag == "skipped":
        _ = ElementTree.SubElement(case, tag, message=f"{verdict['status']}: {told}")
    elif tag is not None:
        message = f"known in the baseline: {told}" if known else told
        problem = ElementTree.SubElement(case, tag, type=verdict["status"], message=message)
        problem.text = _body(verdict, invariants)
    elif verdict["status"] != "holds":
        output = ElementTree.SubElement(case, "system-out")
        output.text = f"{verdict['status']}: {told}\n{_body(verdict, invariants)}"


def _body(verdict: VerdictData, invariants: Teaching) -> str:
    repair = one_line(invariants.get(verdict["invariant"], {}).get("repair", ""))
    advice = [f"repair    {repair}"] if repair and verdict["violation"] else []
    return clean("\n".join([*evidence(verdict), *advice, f"finding   {verdict['id']}"]))


def _count(element: ElementTree.Element, suites: list[ElementTree.Element], seconds: float) -> None:
    """Totals for each suite and for the whole document, as readers of this format expect."""
    element.set("tests", str(sum(len(suite.findall("testcase")) for suite in suites)))
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        element.set(name, str(sum(len(suite.findall(f"testcase/{tag}")) for suite in suites)))
    element.set("time", f"{seconds:.3f}")
