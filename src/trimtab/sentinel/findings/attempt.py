"""One try at the files of a finding: the only place that writes its scripts, runs them and fills its payload."""

import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.decode import Data, finite_or_word
from trimtab.sentinel.findings.draft import Target, flat_numbers, plain, recipe_of
from trimtab.sentinel.findings.origin import Origin, origin_of
from trimtab.sentinel.findings.ready import Fixed, Readiness, tried, without_scripts
from trimtab.sentinel.findings.regression import regression_test
from trimtab.sentinel.findings.replay import replay
from trimtab.sentinel.findings.runner import SHELL, runner
from trimtab.sentinel.findings.script import loaders
from trimtab.sentinel.findings.told import why_no_test
from trimtab.sentinel.findings.trial import Alive, RunnerTrial, silent, try_runner
from trimtab.sentinel.invariants.declare import INVARIANTS, Violation
from trimtab.sentinel.loading.tree import CouldNotLoad, Tree
from trimtab.sentinel.search import Verdict

NO_CHECK = "no check on the numbers that the function itself takes and returns expresses the invariant"
SOME = "the invariant asks for some case in which a number changes, and no single call shows that there is none"


@dataclass(frozen=True)
class Attempt:
    """A verdict as files in a folder, what they say, and whether they do what they say."""

    verdict: Verdict
    subject: Subject
    recipe: Data
    payload: Data
    origin: Origin
    readiness: Readiness


def attempted(
    place: Path,
    verdict: Verdict,
    subject: Subject,
    target: Target,
    name: str,
    fixed: Tree | None = None,
    alive: Alive = silent,
) -> Attempt:
    """Write reproduction file, runner and test of a verdict, and run both."""
    assert verdict.case is not None
    assert verdict.violation is not None
    recipe = recipe_of(subject, verdict.invariant, verdict.case, verdict.violation, target, name)
    write_json(place / "recipe.json", recipe)
    no_test = why_no_test(subject, verdict.invariant, verdict.violation)
    readiness = _scripts(place, recipe, target, fixed, no_test, alive)
    origin = origin_of(target.tree, str(recipe["boundary"].get("file", ".")))
    payload = _payload(recipe, target, readiness, verdict.violation) | readiness.as_data()
    payload |= {"target_commit": str(origin), "target_version": origin.as_data()}
    write_json(place / "payload.json", payload)
    return Attempt(verdict, subject, recipe, payload, origin, readiness)


def _scripts(place: Path, recipe: Data, target: Target, fixed: Tree | None, no_test: str, alive: Alive) -> Readiness:
    if not recipe["checks"]:
        some = INVARIANTS[recipe["invariant"]].some
        return without_scripts(recipe.get("cannot_replay") or (SOME if some else NO_CHECK))
    try:
        root = checkout(target.tree)
        repaired = Fixed(checkout(fixed), str(origin_of(fixed, str(recipe["boundary"]["file"])))) if fixed else None
    except CouldNotLoad as error:
        return without_scripts(str(error))
    first: RunnerTrial | None = None
    for loader in loaders(recipe["boundary"]):
        (place / "run_validation.py").write_text(runner(recipe, loader), "utf-8")
        shell = place / "run_validation.sh"
        shell.write_text(SHELL, "utf-8")
        shell.chmod(0o755)
        ran = try_runner(place, root, alive)
        first = first or ran
        if ran.is_reproduced and no_test:
            return Readiness([f"there is no regression test: {no_test}"], ran)
        if ran.is_reproduced:
            (place / "test_regression.py").write_text(regression_test(recipe, loader) or "", "utf-8")
            return tried(place, root, ran, repaired, alive)
    assert first is not None
    return Readiness([first.why], first)


@functools.cache
def checkout(tree: Tree) -> Path:
    """The tree as a folder. A commit is unpacked once per process, into a folder that goes away with it."""
    if not tree.commit:
        return tree.root
    held = tempfile.TemporaryDirectory(prefix="trimtab-checkout-", ignore_cleanup_errors=True)
    _UNPACKED.append(held)
    return tree.extract(["."], Path(held.name))


_UNPACKED: list["tempfile.TemporaryDirectory[str]"] = []


def _payload(recipe: Data, target: Target, readiness: Readiness, violation: Violation) -> Data:
    """The output of the runner; where it did not reproduce, what the search saw, without a claim."""
    ran = readiness.runner
    if ran is not None and ran.is_reproduced and ran.payload is not None:
        return ran.payload
    payload = (ran.payload if ran is not None else None) or replay(recipe, target.tree)
    effect = payload["training_signal_effect"] | {"leaked_positions": list(violation.effect.leaked_positions)}
    effect["leaked_token_count"] = len(effect["leaked_positions"])
    told: Data = {"status": "not reproduced", "quiet_training_signal_bug": None, "judged_by": "search"}
    return payload | sides(violation) | told | {"training_signal_effect": effect}


def sides(violation: Violation) -> Data:
    """What is owed, what was seen and their difference, as the search saw them; in words where there are no numbers."""
    owed, seen = plain(violation.expected), plain(violation.observed)
    numbers = flat_numbers(violation.observed), flat_numbers(violation.expected)
    apart = f"{seen} is not {owed}"
    if numbers[0] and len(numbers[0]) == len(numbers[1]):
        apart = [finite_or_word(float(a) - float(b)) for a, b in zip(*numbers, strict=True)]
    told = {"observed_baseline": owed, "observed_with_perturbation": seen, "difference": apart}
    return {name: violation.what if value in (None, "") else value for name, value in told.items()}


def write_json(file: Path, data: Data) -> None:
    file.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
