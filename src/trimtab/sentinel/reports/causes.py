"""The only place that decides which verdicts are one finding: one function, one result, one kind of trigger.

A law is broken by what was changed: content of padding, the cut into micro-batches, other samples. Laws that are broken
by the same kind of change, on the same result of the same function, under any options, have one cause.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from trimtab.sentinel.reports.data import CaseData, Report, Severity, Status, VerdictData
from trimtab.sentinel.reports.outcome import FINDINGS, SEVERITIES, rank, subject_of


@dataclass(frozen=True)
class Trigger:
    """A kind of change: the headline of what it does to a result (empty: the verdict's own words), and who meets it."""

    headline: str = ""
    needs: str = ""
    repair: str = ""


TRIGGERS: dict[str, Trigger] = {
    "content": Trigger(
        "{result} depends on padding or on tokens that do not train",
        "a batch with padding, a prompt or tool output",
    ),
    "cut": Trigger(
        "{result} depends on how the batch is split, or on how long its sequences are",
        "more than one micro-batch per step, or sequences of different lengths",
    ),
    "others": Trigger("{result} of a sample depends on other samples", "a batch with more than one sample"),
    "order": Trigger("{result} does not stay with its token or its sequence", "a batch with several sequences"),
    "surrogate": Trigger(needs="any update"),
    "penalty": Trigger(needs="a run with this penalty"),
    "corner": Trigger(needs="a corner case that long runs meet: equal rewards, one sample, one token"),
    "empty": Trigger(
        "{result} is not finite where no token trains", "a batch or micro-batch without a trainable token"
    ),
    "distant": Trigger(
        "{result} is not finite where two policies are far apart",
        "two policies that are far apart",
        "Bound the log-ratio before exp, for example to ±20. Where an advantage or a mask is 0, select with "
        "torch.where: 0 × infinity is NaN.",
    ),
    "decision": Trigger(needs="a batch in which a correction drops something"),
    "metric": Trigger(needs="any run: the metric misleads, the update is not touched"),
    "options": Trigger(needs="a run that sets this option"),
    "memory": Trigger(needs="code that uses the same tensor afterwards"),
    "precision": Trigger(needs="inputs in half precision"),
    "temperature": Trigger(needs="a temperature other than 1"),
    "ending": Trigger(needs="sequences that end in another way than expected"),
    "known": Trigger(needs="any update, if this formula was not meant"),
    "random": Trigger(needs="any run: two runs of one seed may differ"),
    "formula": Trigger("{result} differs from its definition", "any update"),
}
"""Kinds of changes, by name. An invariant that is not in the table below is a kind of its own."""

HEADLINES = {"nonfinite_isolation": "NaN or infinity in padding or at tokens that do not train reaches {result}"}
"""Headlines of findings that one law leads, where the headline of the kind says too much."""

OF_INVARIANT: Mapping[str, tuple[str, ...]] = {
    "mask_content": ("content",), "nonfinite_isolation": ("content",), "credit_over_trainable": ("content",),
    # Per-sample results that change when the batch is split depend on the samples that went away.
    "split": ("cut", "others"), "mean_is_a_mean": ("cut",), "denominator": ("cut",), "parallel_layout": ("cut",),
    "sample_isolation": ("others",), "group_isolation": ("others",), "suppressed_do_not_vote": ("others",),
    "permutation": ("order",), "alignment": ("order",), "value_fidelity": ("order",), "exactly_once": ("order",),
    "on_policy_identity": ("surrogate",), "clip_geometry": ("surrogate",), "importance_contract": ("surrogate",),
    "connected": ("surrogate",), "expected_gradient": ("formula",), "penalty_direction": ("penalty",),
    "known_mistake": ("known",), "deterministic": ("random",), "credit_flows_back": ("known",),
    "equals_definition": ("formula",), "twins_agree": ("formula",),
    "decision_granularity": ("decision",), "eos_semantics": ("ending",), "no_aliasing": ("memory",),
    "metric_truth": ("metric",), "metric_reach": ("metric",), "metric_reduction": ("metric",),
    "options_take_sides": ("options",),
    "options_live": ("options",), "impossible_options_refused": ("options",), "declared_conventions": ("options",),
    "temperature_consistency": ("temperature",), "half_precision": ("precision",),
}  # fmt: skip
"""The kinds of changes that break an invariant. `degenerate_bounded` has several, which its sentence tells apart."""

_NAMED = (
    re.compile(r"\bd (\S+) / d "),
    re.compile(r"\b(?:changes|processes change|disconnects|multiplies|raises) (\w\S*)"),
    re.compile(r"^(\w\S*): "),
    re.compile(r"^(\w\S*) (?:is|differs|explodes|carries|leaves|holds|sends|depends)\b"),
)
"""Where the name of a result stands in the sentence of a violation."""


@dataclass(frozen=True)
class Finding:
    """One cause: the verdicts that show it, the worst first."""

    function: str
    """file:qualname, or the name of the subject where its file is not known."""
    verdicts: tuple[VerdictData, ...]

    @property
    def lead(self) -> VerdictData:
        return self.verdicts[0]

    @property
    def status(self) -> Status:
        return self.lead["status"]

    @property
    def severity(self) -> Severity:
        own = [verdict for verdict in self.verdicts if verdict["status"] == self.status]
        return min(own, key=lambda verdict: SEVERITIES.index(verdict["severity"]))["severity"]

    @property
    def invariants(self) -> list[str]:
        return list(dict.fromkeys(verdict["invariant"] for verdict in self.verdicts))

    @property
    def broken(self) -> list[str]:
        """Its invariants, with the status of those that are not as bad as the finding: `split (latent)`."""
        worst: dict[str, Status] = {}
        for verdict in self.verdicts:
            worst.setdefault(verdict["invariant"], verdict["status"])
        return [name if status == self.status else f"{name} ({status})" for name, status in worst.items()]

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(verdict["subject"] for verdict in self.verdicts))

    @property
    def name(self) -> str:
        """The name of the function, without its options."""
        return self.lead["subject"].partition("(")[0]

    @property
    def cause(self) -> str:
        return triggers(self.lead)[0]

    @property
    def result(self) -> str:
        return next((name for name in map(result_of, self.verdicts) if name), "")

    @property
    def id(self) -> str:
        """The same cause has the same id in every run."""
        return _slug(f"{self.function}-{self.result}-{self.cause}")

    @property
    def headline(self) -> str:
        """One sentence: what is wrong, and which other results are."""
        others = [name for name in dict.fromkeys(map(result_of, self.verdicts)) if name and name != self.result]
        also = f" (also {', '.join(others[:3])}{', …' if len(others) > 3 else ''})" if others else ""
        return f"{self._sentence}{also}"

    @property
    def _sentence(self) -> str:
        template = HEADLINES.get(self.lead["invariant"]) or TRIGGERS.get(self.cause, Trigger()).headline
        violation = self.lead["violation"]
        if template and self.result:
            return template.format(result=self.result)
        return (violation["what"] if violation else self.lead["reason"]) or f"breaks {self.lead['invariant']}"

    @property
    def repair(self) -> str:
        """What to do, where the kind of trigger says more than the law; empty otherwise."""
        violation = self.lead["violation"]
        effect = violation["effect"] if violation else None
        if self.cause == "content" and effect and effect["on"] == "metric":
            return (
                "Average over the mask, whatever the shape of the batch. A sum over the mask divided by its sum does."
            )
        return TRIGGERS.get(self.cause, Trigger()).repair

    @property
    def needs(self) -> str:
        """What a real run must meet: the condition of a latent finding, else what its kind of trigger needs."""
        violation = self.lead["violation"]
        return (violation.get("condition", "") if violation else "") or TRIGGERS.get(self.cause, Trigger()).needs

    def is_new(self, fresh: set[str]) -> bool:
        return any(verdict["id"] in fresh for verdict in self.verdicts)


def findings(report: Report) -> list[Finding]:
    """Bugs, suspects, latent bugs and hygiene, one per cause, the worst first."""
    functions: dict[str, list[VerdictData]] = {}
    for verdict in report["verdicts"]:
        if verdict["status"] in FINDINGS:
            functions.setdefault(_function(report, verdict), []).append(verdict)
    made = [
        Finding(function, tuple(sorted(group, key=rank)))
        for function, verdicts in functions.items()
        for group in _grouped(verdicts)
    ]
    return sorted(made, key=lambda one: rank(one.lead))


def triggers(verdict: VerdictData) -> tuple[str, ...]:
    """The kinds of changes that break this verdict's invariant."""
    violation = verdict["violation"]
    if verdict["invariant"] == "options_live" and violation and "counts of the whole batch" in violation["what"]:
        return ("cut",)  # what it is divided by
    if verdict["invariant"] != "degenerate_bounded":
        return OF_INVARIANT.get(verdict["invariant"], (verdict["invariant"],))
    said = f"{violation['what']} {violation.get('condition', '')}" if violation else ""
    return ("empty",) if "no token is trainable" in said else ("distant",) if " apart " in said else ("corner",)


def result_of(verdict: VerdictData) -> str:
    """The name of the result that is wrong; empty when the sentence names none."""
    violation = verdict["violation"]
    if violation is None:
        return ""
    return violation.get("result") or _named_in(violation["what"])


@cache
def _named_in(sentence: str) -> str:
    found = (pattern.search(sentence) for pattern in _NAMED)
    return next((one[1].rstrip(",:;") for one in found if one), "")


def _function(report: Report, verdict: VerdictData) -> str:
    subject = subject_of(report, verdict)
    return (subject["boundary"] if subject else None) or verdict["subject"].partition("(")[0]


def _grouped(verdicts: Iterable[VerdictData]) -> list[list[VerdictData]]:
    """Verdicts of one function by cause. What any wrong number breaks is placed after the laws that say more."""
    alike: dict[tuple[object, ...], list[VerdictData]] = {}
    for verdict in sorted(verdicts, key=lambda v: (bool(v.get("consequence_of")), _is_general(v), rank(v))):
        place = verdict["subject"] if verdict.get("consequence_of") or _is_general(verdict) else ""
        key = (verdict.get("consequence_of"), place, result_of(verdict), triggers(verdict))
        alike.setdefault(key, []).append(verdict)
    groups: list[list[VerdictData]] = []
    for members in alike.values():
        first = members[0]
        joined = [group for group in groups if any(_one_cause(first, other) for other in group)]
        if _is_general(first) or first.get("consequence_of"):
            joined = joined[:1]
        groups = [group for group in groups if all(group is not one for one in joined)]
        groups.append([*(one for group in joined for one in group), *members])
    return groups


def _one_cause(verdict: VerdictData, other: VerdictData) -> bool:
    if verdict.get("consequence_of"):
        same = verdict["subject"] == other["subject"]
        return same and verdict.get("consequence_of") in (other["invariant"], other.get("consequence_of"))
    conditions = {_condition(verdict), _condition(other)}
    if len(conditions) == 1 and "" not in conditions and verdict["status"] == other["status"] == "latent":
        return True  # several results of one function that go wrong in one corner
    names = {result_of(verdict), result_of(other)} - {""}
    if len(names) > 1:
        return False
    if set(triggers(verdict)) & set(triggers(other)):
        return True
    # Any wrong number breaks a definition. It is the same cause if its smallest case can show that cause at all.
    as_bad = FINDINGS.index(other["status"]) <= FINDINGS.index(verdict["status"])
    here = verdict["subject"] == other["subject"]
    return _is_general(verdict) and as_bad and here and _can_show(verdict["case"], triggers(other))


def _condition(verdict: VerdictData) -> str:
    return verdict["violation"].get("condition", "") if verdict["violation"] else ""


def _is_general(verdict: VerdictData) -> bool:
    """Whether any wrong number breaks its law, so that the law says nothing about the cause."""
    return triggers(verdict) in (("formula",), ("metric",))


def _can_show(case: CaseData | None, kinds: tuple[str, ...]) -> bool:
    """Whether a case holds what these kinds of changes are about."""
    if case is None:
        return False
    rows = case["kinds"]
    several = len(rows) > 1
    padded = any(set(row) != {"a"} for row in rows) or len({len(row) for row in rows}) > 1 or case["extra_columns"] > 0
    shows = {"content": padded, "cut": several, "others": several, "order": several, "surrogate": True, "penalty": True}
    return any(shows.get(kind, False) for kind in kinds)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()
