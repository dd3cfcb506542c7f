"""Findings: recipes from violations, ledger, duplicates."""

import json
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sentinel.buggy import BUGGY, RIGHT, drafted, found, keep_mask, mean_loss, shaped, tree

from trimtab.sentinel import Result, Subject
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.calling import call_subject, run
from trimtab.sentinel.findings import Row, Target, look, mark, recipe_of, replay_with_binding, rows
from trimtab.sentinel.findings.duplicates import upstream_queries
from trimtab.sentinel.findings.ledger import enter
from trimtab.sentinel.findings.places import places as placed
from trimtab.sentinel.findings.replay import commit_of, replay
from trimtab.sentinel.findings.report import spans
from trimtab.sentinel.findings.trace import record
from trimtab.sentinel.invariants.declare import Compared, Violation, numbers
from trimtab.sentinel.loading import Spec, Tree, load
from trimtab.sentinel.loading.tree import git
from trimtab.signal.layout import places

# --- from a violation to a recipe -------------------------------------------------------------------------------------


def test_a_decision_becomes_a_check_on_the_boundarys_own_elements(tmp_path: Path) -> None:
    where = tree(tmp_path)
    recipe = drafted(keep_mask(where), "decision_granularity", where)
    assert recipe["validation_mode"] == "boundary_calls"
    assert recipe["checks"][0]["op"] == "constant"
    assert recipe["checks"][0]["of"]["path"] == ["keep"]
    assert json.loads(json.dumps(recipe, allow_nan=False)) == recipe
    assert replay(recipe, where)["status"] == "reproduced"
    assert replay(recipe, tree(tmp_path, RIGHT))["status"] == "fixed"


def test_two_cases_become_two_calls_that_must_agree(tmp_path: Path) -> None:
    where = tree(tmp_path)
    recipe = drafted(mean_loss(where), "nonfinite_isolation", where)
    assert len(recipe["scenario"]["calls"]) == 2
    assert recipe["checks"][0]["op"] == "equal"
    assert replay(recipe, where)["observed_with_perturbation"] == ["nan"]
    repaired = BUGGY.replace("(-advantage * logp * mask)", "torch.where(mask > 0, -advantage * logp, 0.0)")
    assert replay(recipe, tree(tmp_path, repaired))["status"] == "fixed"


def test_parts_of_a_batch_become_a_sum_of_calls(tmp_path: Path) -> None:
    where = tree(tmp_path)
    case, violation = next(directed()), Violation("cutting the batch changes loss", "another loss", "the same loss")
    recipe = recipe_of(mean_loss(where), "split", case, violation, Target("pkg", "me/pkg", where), "one")
    assert len(recipe["checks"][0]["of"]["sum"]) == len(recipe["scenario"]["calls"]) - 1
    assert replay(recipe, where)["status"] == "reproduced"
    summed = BUGGY.replace(" / mask.sum().clamp(min=1)\n\n\ndef shaped", "\n\n\ndef shaped")
    assert replay(recipe, tree(tmp_path, summed))["status"] == "fixed"


def test_a_gradient_becomes_a_check_at_the_tokens_of_an_argument(tmp_path: Path) -> None:
    where = tree(tmp_path)
    subject, case = mean_loss(where), next(directed())
    base, moved = case.refilled(0.0), case.refilled(0.0, extra_columns=1)
    first, second = run(subject, base), run(subject, moved.with_tokens(advantage=2 * moved.tokens["advantage"]))
    tokens = tuple(places(case.trainable))
    compared = Compared("loss", "logp_current", second.case, base, tokens, tokens)
    seen, owed = (one.gradients["loss"]["logp_current"][list(tokens)] for one in (second, first))
    violation = Violation("doubling", numbers(seen), numbers(owed), compared=compared)
    recipe = recipe_of(subject, "permutation", case, violation, Target("pkg", "me/pkg", where), "one")
    assert recipe["checks"][0]["of"]["of"] == "gradient"
    assert recipe["checks"][0]["of"]["with_respect_to"] == [0]
    payload = replay(recipe, where)
    assert payload["observed_with_perturbation"] == pytest.approx(numbers(seen))
    assert payload["observed_baseline"] == pytest.approx(numbers(owed))


def test_a_write_to_an_argument_becomes_an_unchanged_argument(tmp_path: Path) -> None:
    where = tree(tmp_path)
    case = next(directed())
    violation = Violation("the call wrote to its input", [1.0], [2.0])
    recipe = recipe_of(shaped(where), "no_aliasing", case, violation, Target("pkg", "me/pkg", where), "one")
    assert recipe["checks"] == [{"op": "unchanged", "of": {"call": 0, "of": "argument", "path": [0, "kl"]}}]
    assert replay(recipe, tree(tmp_path, RIGHT.replace('["kl"] =', '["new"] =')))["status"] == "fixed"


def test_results_are_traced_to_returned_elements_and_to_what_was_written_into_arguments(tmp_path: Path) -> None:
    source = """
import torch
def spread(data, values):
    data["squared"] = values * values
    return {"sum": values.sum(), "pair": (values + 1, values + 2)}
"""
    boundary = load(Spec("spread", file="pkg/losses.py"), tree(tmp_path, source))

    def call(case: Any, options: Any) -> dict[str, Result]:
        data: dict[str, Any] = {"first": case.packed("logp_old")}
        given = boundary(data, case.packed("logp_old"))
        return {
            "squared": Result.token(case, data["squared"], "kl", layout="packed"),
            "second": Result.token(case, given["pair"][1], "kl", layout="packed"),
            "computed": Result.token(case, given["pair"][1] * 3, "kl", layout="packed"),
        }

    subject, case = Subject("spread", call, frozenset({"logp_old"}), boundary=boundary), next(directed())
    ran = record(subject, boundary, case)
    tokens = places(case.trainable)
    for name, of, path in (("squared", "argument", [0, "squared"]), ("second", "returned", ["pair", 1])):
        (place,) = placed(subject, boundary, name, None, case, None, ran, 0)
        assert (place["of"], place["path"], place["index"]) == (of, path, tokens)
    assert placed(subject, boundary, "computed", None, case, None, ran, 0) == []


def test_a_place_that_does_not_hold_what_was_seen_is_not_used(tmp_path: Path) -> None:
    where = tree(tmp_path)
    verdict = found(mean_loss(where), "nonfinite_isolation")
    assert verdict.violation is not None
    assert verdict.case is not None
    other = replace(verdict.violation, observed=[123.0])
    recipe = recipe_of(mean_loss(where), "nonfinite_isolation", verdict.case, other, Target("pkg", "", where), "one")
    assert (recipe["validation_mode"], recipe["checks"]) == ("boundary_numbers", [])


def test_numbers_that_a_violation_only_states_become_a_check_against_a_number(tmp_path: Path) -> None:
    where, case = tree(tmp_path), next(directed())
    subject = mean_loss(where)
    seen = float(call_subject(subject, case)["loss"].value)
    target = Target("pkg", "me/pkg", where)
    stated = Violation("loss differs from its definition", seen, seen + 1)
    recipe = recipe_of(subject, "equals_definition", case, stated, target, "one")
    assert recipe["checks"][0]["value"] == [seen + 1]
    assert replay(recipe, where)["difference"] == [-1.0]
    other = replace(stated, observed=seen + 3)
    assert recipe_of(subject, "equals_definition", case, other, target, "one")["checks"] == []


def test_a_violation_may_state_a_whole_row_of_which_some_places_are_compared(tmp_path: Path) -> None:
    where = Tree.folder(tmp_path)
    boundary = load(Spec("plain", file="pkg/losses.py"), tree(tmp_path, "def plain(x):\n    return x * 2\n"))

    def call(case: Any, options: Any) -> dict[str, Result]:
        return {"reward": Result.token(case, boundary(case.packed("logp_old")), "reward", layout="packed")}

    subject, case = Subject("plain", call, frozenset({"logp_old"}), boundary=boundary), next(directed())
    moved = case.with_tokens(logp_old=2 * case.tokens["logp_old"])
    first, second = (call_subject(subject, one)["reward"].value for one in (case, moved))
    compared = Compared("reward", None, moved, case, (1,), (1,))
    row, owed = ([0.0, float(one[1]), *[0.0] * (len(one) - 2)] for one in (second, first))
    violation = Violation("doubling changes reward", row, owed, compared=compared)
    recipe = recipe_of(subject, "permutation", case, violation, Target("pkg", "", where), "one")
    assert recipe["validation_mode"] == "boundary_calls"
    assert replay(recipe, where)["observed_with_perturbation"] == pytest.approx(row[1:2])


def test_a_binding_that_computes_falls_back_to_recorded_numbers(tmp_path: Path) -> None:
    where = tree(tmp_path)
    recipe = drafted(mean_loss(where, times=2.0), "nonfinite_isolation", where)
    assert (recipe["validation_mode"], recipe["checks"]) == ("boundary_numbers", [])
    assert replay(recipe, where)["status"] == "reproduced"
    assert replay(recipe, tree(tmp_path, BUGGY.replace("(-advantage", "(-2 * advantage")))["status"] in (
        "changed",
        "reproduced",
    )
    changed = BUGGY.replace("(-advantage * logp * mask).sum()", "logp.nan_to_num().sum()")
    assert replay(recipe, tree(tmp_path, changed))["status"] == "changed"


def test_arguments_without_a_form_as_data_fall_back_to_the_binding(tmp_path: Path) -> None:
    where = tree(tmp_path)
    recipe = drafted(keep_mask(where, secret=open), "decision_granularity", where)
    assert recipe["validation_mode"] == "binding"
    assert "trimtab check --recipe" in recipe["cannot_replay"]
    assert replay(recipe, where)["status"] == "could not run"
    assert replay_with_binding(recipe, keep_mask(where)) == "reproduced"


def test_the_binding_replays_the_invariant_on_the_recorded_case(tmp_path: Path) -> None:
    where = tree(tmp_path)
    recipe = json.loads(json.dumps(drafted(keep_mask(where), "decision_granularity", where)))
    assert replay_with_binding(recipe, keep_mask(where)) == "reproduced"
    assert replay_with_binding(recipe, keep_mask(tree(tmp_path / "right", RIGHT))) == "fixed"
    assert replay_with_binding({}, keep_mask(where)).startswith("could not run")


# --- ledger and duplicates --------------------------------------------------------------------------------------------

ROW = Row("a", "2026-01-01", "pkg", "abc", "pkg/losses.py:keep_mask", "split", "high", "reproduced", "a")
RECIPE: dict[str, Any] = {
    "bug_id": "a", "boundary": {"name": "Actor.keep_mask", "file": "pkg/losses.py"}, "invariant": "split",
    "target": {"name": "pkg", "repository": "me/pkg"},
}  # fmt: skip


def test_the_ledger_updates_in_place_and_reads_back_what_it_wrote(tmp_path: Path) -> None:
    enter(tmp_path, ROW)
    enter(tmp_path, replace(ROW, id="b", boundary="a | b"))
    mark(tmp_path, "a", "fixed")
    assert rows(tmp_path) == [replace(ROW, status="fixed"), replace(ROW, id="b", boundary="a | b")]


def test_duplicates_are_looked_for_in_ledger_drafts_branches_and_log(tmp_path: Path) -> None:
    enter(tmp_path, replace(ROW, id="earlier"))
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "recipe.json").write_text(json.dumps({**RECIPE, "bug_id": "c"}))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "recipe.json").write_text(json.dumps(RECIPE))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.json").write_text("{")
    where = tree(tmp_path / "checkout")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "keep_mask decides per sequence"],
        ["branch", "fix-keep-mask"],
    ):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=where.root, check=True)
    looked = look(tmp_path, ROW, RECIPE, where)
    assert looked.ledger == ["earlier"]
    assert looked.drafts == ["draft"]
    assert looked.branches == ["fix-keep-mask"]
    assert len(looked.commits) == 1
    assert looked.queries[0] == "repo:me/pkg is:issue keep_mask"
    assert looked.online == []
    head = git(where.root, "rev-parse", "HEAD").decode().strip()
    assert commit_of(where, "pkg/losses.py") == head
    assert commit_of(tree(tmp_path / "checkout", RIGHT), "pkg/losses.py") == f"{head}+changed"


def test_nothing_is_sent_unless_asked_and_a_failure_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(request: urllib.request.Request, timeout: float) -> None:
        assert request.get_method() == "GET"
        asked.append(request.full_url)
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert look(tmp_path, ROW, RECIPE, tree(tmp_path)).online == []
    assert asked == []
    looked = look(tmp_path, ROW, RECIPE, tree(tmp_path), online=True)
    assert len(asked) == len(upstream_queries(RECIPE))
    assert all("no network" in one["failed"] for one in looked.online)


def test_line_numbers_are_told_in_spans() -> None:
    assert spans([5, 3, 4, 9]) == "3–5, 9"
