"""Findings as folders: recipes from violations, runner without Trimtab, upstream test, report, ledger, duplicates."""

import ast
import collections
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trimtab.sentinel import Result, Subject, check
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.subject import run
from trimtab.sentinel.findings import (
    Row,
    Target,
    folder,
    look,
    mark,
    program,
    recipe_of,
    replay_with_binding,
    rows,
    write,
)
from trimtab.sentinel.findings.duplicates import upstream_queries
from trimtab.sentinel.findings.folder import slug
from trimtab.sentinel.findings.ledger import enter
from trimtab.sentinel.findings.places import places as placed
from trimtab.sentinel.findings.replay import commit_of, replay
from trimtab.sentinel.findings.report import OPEN, SECTIONS, spans
from trimtab.sentinel.findings.trace import record
from trimtab.sentinel.invariants.declare import Compared, Violation, numbers
from trimtab.sentinel.loading import Spec, Tree, load
from trimtab.sentinel.loading.tree import git
from trimtab.sentinel.search import Verdict
from trimtab.signal.layout import places

SOURCE = """
import torch


def keep_mask(args, now, old, advantages, masks):
    kept = []
    for lp, before, advantage, mask in zip(now, old, advantages, masks):
        drift = ((before - lp) * mask).sum() / mask.sum().clamp(min=1)
        kept.append(1 - ((DECIDING < 0) & (drift > args.delta)).float().expand_as(advantage))
    return {"keep": torch.cat(kept), "sequences": len(kept)}


def loss(logp, advantage, mask):
    return (-advantage * logp * mask).sum() / mask.sum().clamp(min=1)


def shaped(data, coef):
    data["kl"] *= -coef
    data["reward"] = data["kl"] + 1
"""
BUGGY = SOURCE.replace("DECIDING", "advantage")
RIGHT = SOURCE.replace("DECIDING", "(advantage * mask).sum()").replace(
    'data["kl"] *= -coef', 'data["kl"] = data["kl"] * -coef'
)


def tree(folder: Path, source: str = BUGGY) -> Tree:
    (folder / "pkg").mkdir(parents=True, exist_ok=True)
    (folder / "pkg" / "losses.py").write_text(source)
    return Tree.folder(folder)


def keep_mask(where: Tree, **more: Any) -> Subject:
    boundary = load(Spec("keep_mask", file="pkg/losses.py"), where)

    def call(case: Any, options: Any) -> dict[str, Result]:
        fields = [case.list(name) for name in ("logp_current", "logp_old", "advantage", "trainable")]
        kept = boundary(Namespace(delta=0.1, **more), *fields)["keep"]
        return {"keep": Result.token(case, list(kept.split(case.lengths)), "keep", layout="list", scope="sequence")}

    return Subject("keep_mask", call, frozenset({"logp_current", "logp_old", "advantage"}), boundary=boundary)


def mean_loss(where: Tree, times: float = 1.0) -> Subject:
    boundary = load(Spec("loss", file="pkg/losses.py"), where)

    def call(case: Any, options: Any) -> dict[str, Result]:
        value = boundary(case.padded("logp_current"), case.padded("advantage"), case.padded("trainable"))
        return {"loss": Result.scalar(value * times + (times - 1), "loss")}

    return Subject("loss", call, frozenset({"logp_current", "advantage"}), boundary=boundary, combine="sum")


def shaped(where: Tree) -> Subject:
    boundary = load(Spec("shaped", file="pkg/losses.py"), where)

    def call(case: Any, options: Any) -> dict[str, Result]:
        data = {"kl": case.packed("logp_old")}
        boundary(data, 0.05)
        return {"reward": Result.token(case, data["reward"], "reward", layout="packed")}

    return Subject("shaped", call, frozenset({"logp_old"}), boundary=boundary)


def found(subject: Subject, name: str) -> Verdict:
    verdict = check(subject, name)
    assert verdict.violation is not None
    assert verdict.case is not None
    return verdict


def drafted(subject: Subject, name: str, where: Tree) -> dict[str, Any]:
    verdict = found(subject, name)
    assert verdict.case is not None
    assert verdict.violation is not None
    return recipe_of(subject, name, verdict.case, verdict.violation, Target("pkg", "me/pkg", where), "one")


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


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("written")
    where = tree(base / "checkout")
    subject = keep_mask(where)
    verdict = found(subject, "decision_granularity")
    target = Target("pkg", "me/pkg", where)
    return write(base / "findings", verdict, subject, target, date="2026-01-02")


def test_a_finding_is_one_folder_with_every_artefact(written: Path) -> None:
    names = {"recipe.json", "run_validation.sh", "run_validation.py", "payload.json", "test_regression.py", "report.md"}
    assert {file.name for file in written.iterdir()} - {"__pycache__"} == names
    payload = json.loads((written / "payload.json").read_text())
    assert payload["status"] == "reproduced"
    assert list(payload) == sorted(payload)
    assert [file.name for file in written.parent.iterdir() if file.is_dir()] == [written.name]


def test_a_finding_found_again_is_written_over_and_keeps_its_first_date(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = json.loads((written / "payload.json").read_text())
    monkeypatch.setattr(folder, "_payload", lambda *_: payload)
    where = Tree.folder(written.parent.parent / "checkout")
    subject = keep_mask(where)
    verdict = found(subject, "decision_granularity")
    assert write(written.parent, verdict, subject, Target("pkg", "me/pkg", where), date="2026-03-04") == written
    (row,) = rows(written.parent)
    assert (row.id, row.date, row.status, row.folder) == (written.name, "2026-01-02", "reproduced", written.name)
    assert (row.boundary, row.invariant) == ("pkg/losses.py:keep_mask", "decision_granularity")


def test_the_report_has_ten_sections_and_leaves_open_what_nobody_knows(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert [line.split(". ", 1)[1] for line in text.splitlines() if line.startswith("## ")] == list(SECTIONS)
    parts = text.split("\n## ")
    for name in ("Root cause", "Fix"):
        assert OPEN in next(part for part in parts if name in part.splitlines()[0])
    assert "repo:me/pkg is:issue keep_mask" in text
    assert "Reduce to the level of the decision" in text


def test_the_runner_needs_no_trimtab(written: Path, tmp_path: Path) -> None:
    (tmp_path / "trimtab.py").write_text("raise ImportError('this has to run without trimtab')\n")
    output = tmp_path / "out.json"
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON": sys.executable, "OUTPUT_JSON": str(output)}
    settings["TARGET_REPO"] = str(written.parent.parent / "checkout")
    done = subprocess.run(["sh", str(written / "run_validation.sh")], env=settings, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout == output.read_text()
    assert json.loads(done.stdout)["status"] == "reproduced"


def executed(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_runner_says_fixed_after_the_repair(written: Path, tmp_path: Path, capsys: Any) -> None:
    runner = executed(written / "run_validation.py", "a_runner")
    words = [str(written / "recipe.json"), str(tree(tmp_path, RIGHT).root), str(tmp_path / "out.json")]
    assert runner.main(words) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "fixed"


@pytest.mark.parametrize("heading", ["", "import absent_and_heavy\n"], ids=["imported", "cut out"])
def test_the_upstream_test_fails_before_and_passes_after(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heading: str
) -> None:
    assert "trimtab" not in (written / "test_regression.py").read_text().split('"""', 2)[2]
    if not heading:  # by import alone, without the runner beside it
        shutil.copy(written / "test_regression.py", tmp_path / "test_regression.py")
    for name, source in (("before", BUGGY), ("after", RIGHT)):
        for loaded in [one for one in sys.modules if one.split(".")[0] == "pkg"]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setenv("TARGET_REPO", str(tree(tmp_path / name, heading + source).root))
        module = executed((written if heading else tmp_path) / "test_regression.py", f"regression_{name}")
        if name == "before":
            with pytest.raises(AssertionError, match="A decision about a sequence is the same"):
                module.test_pkg_keep_mask_decision_granularity()
        else:
            module.test_pkg_keep_mask_decision_granularity()


def test_the_runner_is_one_file_of_its_own_names() -> None:
    text = program()
    names = collections.Counter(getattr(node, "name", "") for node in ast.parse(text).body)
    assert [name for name, count in names.items() if name and count > 1] == []
    assert "from trimtab" not in text
    assert "import pickle" not in text
    heavy = {
        name.name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert heavy - set(sys.stdlib_module_names) <= {"torch", "numpy"}


def test_what_is_no_finding_is_not_written(tmp_path: Path) -> None:
    where = tree(tmp_path, RIGHT)
    subject = keep_mask(where)
    with pytest.raises(ValueError, match="no finding"):
        write(tmp_path / "findings", check(subject, "decision_granularity"), subject, Target("pkg", "", where))


def test_names_are_safe_and_links_do_not_lead_out(tmp_path: Path) -> None:
    assert slug("../..//etc:passwd") == "etc-passwd"
    assert slug("…") == "finding"
    assert len(slug("x" * 500)) <= 100
    where = tree(tmp_path / "checkout")
    subject = keep_mask(where)
    (tmp_path / "findings").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "findings" / "pkg-keep-mask-decision-granularity").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leads outside"):
        write(tmp_path / "findings", found(subject, "decision_granularity"), subject, Target("pkg", "", where))
    assert list((tmp_path / "elsewhere").iterdir()) == []


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
