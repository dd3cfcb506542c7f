"""The only place that compares two reports: new, fixed, still there, and not checked any more."""

from dataclasses import dataclass
from typing import Any

from trimtab.errors import ConfigError
from trimtab.sentinel.reports.data import Report, VerdictData
from trimtab.sentinel.reports.outcome import FINDINGS


@dataclass(frozen=True)
class Unchecked:
    """A finding of the baseline whose check gave no answer this time."""

    verdict: VerdictData
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Findings compared with a baseline by id. `new` and `still` are current, the others are old ones."""

    new: tuple[VerdictData, ...]
    fixed: tuple[VerdictData, ...]
    still: tuple[VerdictData, ...]
    gone_unchecked: tuple[Unchecked, ...]
    remark: str = ""
    """Why "fixed" may be less certain than it seems; empty when there is no such reason."""

    def as_data(self) -> dict[str, Any]:
        """Plain data: ids, and a reason for each finding that was not checked."""
        return {
            "new": [verdict["id"] for verdict in self.new],
            "fixed": [verdict["id"] for verdict in self.fixed],
            "still": [verdict["id"] for verdict in self.still],
            "not_checked_any_more": {one.verdict["id"]: one.reason for one in self.gone_unchecked},
            "remark": self.remark,
        }

    def line(self) -> str:
        """`against the baseline: 1 new, 2 fixed, 3 still there, 1 not checked any more`."""
        return (
            f"against the baseline: {len(self.new)} new, {len(self.fixed)} fixed, {len(self.still)} still there, "
            f"{len(self.gone_unchecked)} not checked any more"
        )


def compare(before: Report, after: Report) -> Comparison:
    """What changed since `before`. A finding is fixed only when its own check ran again and found nothing."""
    was, now = before["target"]["name"], after["target"]["name"]
    if was != now:
        raise ConfigError(
            f"compare: the baseline is a report on {was!r}, and this one is on {now!r}. Give a baseline on {now!r}."
        )
    old, present = _found(before), _found(after)
    # A finding that was hygiene and is now a bug is a new bug: it was never accepted as a bug.
    known = {key for key in present if key in old and not (_is_bug(present[key]) and not _is_bug(old[key]))}
    fixed: list[VerdictData] = []
    unchecked: list[Unchecked] = []
    for key, verdict in old.items():
        if key in present:
            continue
        reason = _not_checked(verdict, after)
        if reason:
            unchecked.append(Unchecked(verdict, reason))
        else:
            fixed.append(verdict)
    return Comparison(
        new=tuple(verdict for key, verdict in present.items() if key not in known),
        fixed=tuple(fixed),
        still=tuple(verdict for key, verdict in present.items() if key in known),
        gone_unchecked=tuple(unchecked),
        remark=_remark(before, after),
    )


def _found(report: Report) -> dict[str, VerdictData]:
    """Findings by id. If one id has several verdicts, a bug counts first."""
    found: dict[str, VerdictData] = {}
    for verdict in report["verdicts"]:
        if verdict["status"] in FINDINGS and not (verdict["id"] in found and _is_bug(found[verdict["id"]])):
            found[verdict["id"]] = verdict
    return found


def _is_bug(verdict: VerdictData) -> bool:
    return verdict["status"] == "bug"


def _not_checked(verdict: VerdictData, after: Report) -> str:
    """Why the check behind an old finding gives no answer now; empty when it ran and found nothing."""
    same = (verdict["subject"], verdict["invariant"])
    again = [v for v in after["verdicts"] if v["id"] == verdict["id"] or (v["subject"], v["invariant"]) == same]
    if not again:
        return _missing(verdict, after)
    if any(v["status"] in FINDINGS for v in again):
        return "the check now stops at another finding, which may hide this one"
    silent = next((v for v in again if v["status"] not in ("holds", "convention")), None)
    return f"{silent['status']}: {silent['reason'] or 'no reason was given'}" if silent else ""


def _missing(verdict: VerdictData, after: Report) -> str:
    name = verdict["subject"].partition("(")[0]
    unbound = next((one for one in after["could_not_bind"] if one["subject"] in (verdict["subject"], name)), None)
    if unbound:
        return f"could not bind: {unbound['reason']}"
    if all(subject["label"] != verdict["subject"] for subject in after["subjects"]):
        return "the function is not in this report"
    return "the invariant was not run on this function"


def _remark(before: Report, after: Report) -> str:
    if after["examples"] >= before["examples"]:
        return ""
    return (
        f"the baseline tried {before['examples']} examples per check and this run only {after['examples']}, "
        "so a finding may count as fixed because the search was shorter"
    )
