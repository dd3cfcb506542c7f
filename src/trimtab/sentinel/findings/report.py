"""The report of one finding in ten sections: the only place that writes its prose. Unknown parts are left open."""

import json
from collections.abc import Sequence
from typing import Any

from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.literal import python
from trimtab.sentinel.findings.ready import Readiness
from trimtab.sentinel.invariants.declare import Invariant

OPEN = "*To be completed by a person.*"
SECTIONS = (
    "Summary",
    "Concrete triggering example",
    "Reproduction recipe",
    "Validation runner",
    "Observed output",
    "Root cause",
    "Fix",
    "Tests and checks",
    "Contribution and duplicate checks",
    "Related work",
)


def report(
    recipe: Data,
    payload: Data,
    law: Invariant,
    ran: Data | None,
    looked: Data,
    severity: str,
    ready: Readiness,
    others: Sequence[str] = (),
) -> str:
    """The whole report. `others` are further invariants that the same cause breaks."""
    bodies = (
        _summary(recipe, payload, law, severity, ready, others),
        _example(recipe, payload),
        _recipe(recipe),
        _runner(ready),
        _output(payload, ready),
        _cause(payload, ran),
        _fix(law),
        _tests(payload, ready),
        _duplicates(looked),
        _related(law),
    )
    parts = [
        f"## {i}. {name}\n\n{body}\n" for i, (name, body) in enumerate(zip(SECTIONS, bodies, strict=True), start=1)
    ]
    return f"# {recipe['bug_id']}\n\n" + "\n".join(parts)


def _summary(
    recipe: Data, payload: Data, law: Invariant, severity: str, ready: Readiness, others: Sequence[str]
) -> str:
    target = recipe["target"]
    also = f" The same cause also breaks {', '.join(f'`{one}`' for one in others)}." if others else ""
    said = "ready. The runner reproduced it and the regression test failed" if ready.is_ready else ready.words
    return (
        f"`{payload['boundary']}` of {target['name']} ({target.get('repository') or 'no repository named'}, "
        f"{payload['target_version']['words']}) breaks the invariant `{law.name}`. Nothing crashes.{also}\n\n"
        f"- Observed: {recipe['scenario']['words']}\n"
        f"- Invariant: {recipe['expected_invariant']}\n"
        f"- Why it matters: {law.why}\n"
        f"- Severity: {severity}. This folder is {said}."
    )


def _example(recipe: Data, payload: Data) -> str:
    calls = recipe["scenario"]["calls"]
    shown = "".join(f"```python\n# call {i}\n{_called(recipe, call)}\n```\n\n" for i, call in enumerate(calls))
    shown = shown or f"The case, as data:\n\n{_block(recipe['binding']['case'])}\n\n"
    return (
        f"{recipe['scenario']['words']}\n\n{shown}"
        f"- expected: `{_line(payload['observed_baseline'])}`\n"
        f"- observed: `{_line(payload['observed_with_perturbation'])}`\n"
        f"- difference: `{_line(payload['difference'])}`\n"
        f"- affected positions: `{_line(payload['training_signal_effect']['leaked_positions'])}`"
    )


def _called(recipe: Data, call: Data) -> str:
    """A call as readable Python code."""
    name = str(recipe["boundary"]["name"]).rpartition(".")[2]
    words = [python(one) for one in call.get("args", [])]
    words += [f"{key}={python(one)}" for key, one in call.get("kwargs", {}).items()]
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"


def _recipe(recipe: Data) -> str:
    told = {k: recipe[k] for k in ("bug_id", "validation_mode", "boundary", "expected_invariant", "checks")}
    return f"`recipe.json` holds inputs, calls and checks as plain data. In short:\n\n{_block(told)}"


def _runner(ready: Readiness) -> str:
    if ready.runner is None:
        return (
            f"There is none: {ready.missing[0]}.\n\nWith Trimtab, a finding about a framework that has bindings can be "
            "judged again:\n\n```sh\ntrimtab check --recipe recipe.json --path /path/to/checkout\n```"
        )
    return (
        "`run_validation.sh` and `run_validation.py` need only Python, torch and the checkout:\n\n"
        "```sh\nTARGET_REPO=/path/to/checkout OUTPUT_JSON=validation-output.json sh run_validation.sh\n```\n\n"
        "Exit code 1: the finding is reproduced. 0: it is fixed. 2: it could not run.\n\n"
        f"When this folder was written, it ended with code {ready.runner.code} ({ready.runner.status})."
    )


def _output(payload: Data, ready: Readiness) -> str:
    after = f"{OPEN} Run the same command on the repaired branch. It must report `fixed`."
    if ready.fixed:
        after = f"On `{ready.fixed['code']}`:\n\n{_block(ready.fixed.get('payload', 'no payload'))}"
    return f"Unfixed (`payload.json`):\n\n{_block(payload)}\n\nFixed:\n\n{after}"


def _cause(payload: Data, ran: Data | None) -> str:
    if not ran:
        return f"{OPEN} Known: the boundary is `{payload['boundary']}`."
    lines = spans(ran.get("executed", []))
    stubs = ", ".join(f"`{name}`" for name in ran.get("stubs_used", [])) or "none"
    return (
        f"{OPEN} Known: `{ran['boundary']}` (lines {ran['first_line']}–{ran['last_line']}) was run. Executed lines: "
        f"{lines or 'not recorded'}. Stubs used while it ran: {stubs}."
    )


def _fix(law: Invariant) -> str:
    return f"{OPEN} The usual repair for this kind of bug: {law.repair}"


def _tests(payload: Data, ready: Readiness) -> str:
    if ready.test is None:
        return f"There is none: {ready.missing[0]}."
    rows = [f"| `{payload['target_commit']}` | {_ended(ready.as_data()['validation'])} |"]
    rows += [f"| `{ready.fixed['code']}` (repaired) | {_ended(ready.fixed)} |" if ready.fixed else "| repaired | | |"]
    table = "| code | `run_validation.sh` | `test_regression.py` |\n|---|---|---|\n" + "\n".join(rows)
    return (
        "`test_regression.py` is plain pytest and torch, meant for the target's own suite:\n\n"
        f"```sh\nTARGET_REPO=/path/to/checkout python -m pytest test_regression.py\n```\n\n{table}"
    )


def _ended(ran: Data) -> str:
    return f"{ran['runner']['status']} (code {ran['runner']['code']}) | {ran['regression_test']['outcome']}"


def _duplicates(looked: Data) -> str:
    def listed(name: str) -> str:
        return "; ".join(looked.get(name, [])) or "nothing alike"

    online: Sequence[Data] = looked.get("online", [])
    lines = [
        f"- ledger, same boundary and invariant: {listed('ledger')}",
        f"- other drafts: {listed('drafts')}",
        f"- branches of the checkout: {listed('branches')}",
        f"- commit messages of the checkout: {listed('commits')}",
        *([f"- {looked['note']}"] if looked.get("note") else []),
        "- upstream searches" + (":" if online else ", to be done by a person (nothing was sent):"),
        *[f"  - `{query}`{_answer(query, online)}" for query in looked.get("queries", [])],
        "",
        f"{OPEN} Nothing has been posted anywhere.",
    ]
    return "\n".join(lines)


def _answer(query: str, online: Sequence[Data]) -> str:
    for one in online:
        if one["query"] == query:
            return (
                f": failed, {one['failed']}"
                if "failed" in one
                else f": {one['count']} found. {'; '.join(one['titles'])}"
            )
    return ""


def _related(law: Invariant) -> str:
    return f"A real bug of the same kind: {law.bug}\n\n{OPEN}"


def spans(lines: Sequence[int]) -> str:
    """3, 4, 5, 9 as `3–5, 9`."""
    parts: list[list[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][-1] + 1:
            parts[-1].append(line)
        else:
            parts.append([line])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _line(value: Any) -> str:
    return json.dumps(value)


def _block(data: Any) -> str:
    return f"```json\n{json.dumps(data, indent=1, sort_keys=True)}\n```"
