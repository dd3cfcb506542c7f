"""What the scripts of a finding can load, which code they name, and which functions are recorded for them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.sentinel.buggy import BUGGY, executed, in_process, keep_mask, tree

from trimtab.sentinel import Result, Subject, bind, check
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.examination.job import Job
from trimtab.sentinel.examination.record import subject_data, verdict_data
from trimtab.sentinel.findings.alone import Another, Record, Settings
from trimtab.sentinel.findings.by_cause import with_boundary, write_down
from trimtab.sentinel.findings.decode import Decoder
from trimtab.sentinel.findings.encode import Encoder
from trimtab.sentinel.findings.literal import python
from trimtab.sentinel.findings.origin import origin_of
from trimtab.sentinel.findings.runner import runner
from trimtab.sentinel.findings.script import loaders
from trimtab.sentinel.findings.told import WHY, why_no_test
from trimtab.sentinel.findings.trace import record
from trimtab.sentinel.invariants.credit import credit_over_trainable
from trimtab.sentinel.loading import Spec, Tree, load
from trimtab.sentinel.search import Verdict

CALL: dict[str, Any] = {"args": [{"tensor": "float32", "shape": [2], "values": [1.0, 2.0]}], "kwargs": {}}


def recipe(where: dict[str, Any], value: float) -> dict[str, Any]:
    return {
        "bug_id": "one", "boundary": where, "target": {"name": "pkg"}, "expected_invariant": "It is right.",
        "scenario": {"words": "it is wrong", "calls": [CALL]},
        "checks": [{"op": "equal", "of": {"call": 0, "of": "returned", "path": []}, "value": [value]}],
    }  # fmt: skip


HEAVY = """
import absent_and_heavy
from absent_and_heavy import Base, remote
import pkg.tools as tools
from pkg import tools as same
from .tools import double
from . import tools as third

LIMIT = absent_and_heavy.limit


@remote(num_gpus=1)
def total(values: absent_and_heavy.Tensor) -> "Anything":
    return double(values).sum() + tools.ONE + same.ONE + third.ONE


class Trainer(Base, metaclass=absent_and_heavy.Meta):
    @staticmethod
    def total(values):
        return total(values) * (2 if isinstance(values, Config) else 1)
"""


def test_a_function_is_taken_out_of_a_file_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, HEAVY).root
    (root / "pkg" / "tools.py").write_text("import absent_and_heavy\nONE = 1\n\n\ndef double(x):\n    return 2 * x\n")
    given = {"Config": {"stand_in_class": "Another"}}
    for name, answer in (("total", 9.0), ("Trainer.total", 9.0)):
        where = {"name": name, "file": "pkg/losses.py", "given": given}
        assert loaders(where)[0] == "taken"
        (tmp_path / "run.py").write_text(runner(recipe(where, 5.0), "taken"))
        payload = executed(tmp_path / "run.py", root, monkeypatch).payload()
        assert (payload["status"], payload["observed_with_perturbation"]) == ("reproduced", [answer]), payload
        assert payload["difference"] == [answer - 5.0]


def test_a_runner_that_cannot_load_says_so_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.py").write_text(runner(recipe({"name": "gone", "file": "pkg/losses.py"}, 1.0), "taken"))
    payload = executed(tmp_path / "run.py", tree(tmp_path).root, monkeypatch).payload()
    assert (payload["status"], payload["quiet_training_signal_bug"]) == ("could not run", None)
    assert payload["observed_baseline"].startswith("not measured, AttributeError")


def test_statements_of_a_function_need_the_long_runner() -> None:
    assert loaders({"name": "step", "file": "a.py", "first": "loss ="}) == ("long",)
    assert loaders({"name": "step", "file": "a.py", "given": {"torch.distributed": None}}) == ("long",)
    assert loaders({"name": "step", "file": "a.py", "how": "import"})[0] == "import"


def test_stand_ins_survive_as_data_and_as_text() -> None:
    batch = Record(reward=torch.tensor([1.0, 2.0]))
    data = json.loads(json.dumps(Encoder().value([Settings(eps=0.2), batch, Another])))
    made, text = Decoder().value(data), python(data)
    for settings, rows, other in (made["list"] if isinstance(made, dict) else made, eval(text, globals())):
        assert (settings.get("eps"), settings["eps"], "eps" in settings) == (0.2, 0.2, True)
        assert rows[0:1]["reward"].tolist() == [1.0]
        assert other is Another


# --- which code it was ------------------------------------------------------------------------------------------------


def test_a_wheel_is_named_by_its_release(tmp_path: Path) -> None:
    where = tree(tmp_path)
    assert str(origin_of(where, "pkg/losses.py")).startswith("file:")
    info = tmp_path / "pkg-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1.2\n")
    (info / "RECORD").write_text("pkg/losses.py,,\n")
    found = origin_of(where, "pkg/losses.py")
    assert (str(found), found.words) == ("pkg==1.2", "release pkg 1.2")


def test_own_code_is_named_by_its_commit_and_by_what_is_not_committed(tmp_path: Path) -> None:
    where = tree(tmp_path)
    (tmp_path / ".gitignore").write_text("hidden.py\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
    clean = origin_of(where, "pkg/losses.py")
    assert (len(clean.commit), clean.is_changed) == (40, False)
    for name in ("new.py", "hidden.py"):
        (tmp_path / name).write_text("x = 1\n")
    assert str(origin_of(where, "new.py")) == f"{clean.commit}+changed"
    assert str(origin_of(where, "hidden.py")).startswith("file:")
    (tmp_path / "pkg" / "losses.py").write_text(BUGGY + "\n")
    assert str(origin_of(where, "pkg/losses.py")) == f"{clean.commit}+changed"
    assert origin_of(Tree.git(tmp_path), "pkg/losses.py") == clean


# --- your own functions -----------------------------------------------------------------------------------------------


def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (folder / "own_losses.py").write_text(
        "def loss(logp_current, advantages, mask, again=True):\n"
        "    if again:\n"
        "        return loss(logp_current, advantages, mask, again=False)\n"
        "    return (-advantages * logp_current).mean()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)
    import own_losses  # pyright: ignore[reportMissingImports]

    return own_losses.loss


def test_a_function_that_its_binding_calls_directly_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = own(tmp_path, monkeypatch)
    before, subject = loss.__code__, with_boundary(bind(loss, role="policy_loss"))
    assert subject.boundary is not None
    assert subject.boundary.file == "own_losses.py"
    case = next(directed())
    ran = record(subject, subject.boundary, case)
    assert len(ran.calls) == 1  # the call to itself is its own affair
    assert sorted(ran.calls[0]["kwargs"]) == ["advantages", "logp_current", "mask"]
    torch.testing.assert_close(ran.out["loss"].value, call_subject(subject, case)["loss"].value)
    assert loss.__code__ is before


def test_one_cause_is_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process(monkeypatch)
    subject = bind(own(tmp_path, monkeypatch), role="policy_loss")
    verdicts: list[Verdict] = [check(subject, name) for name in ("mask_content", "credit_over_trainable")]
    assert [one.status for one in verdicts] == ["bug", "bug"]
    shown = [(one, subject, verdict_data("own_losses.py", subject, one), subject_data(subject)) for one in verdicts]
    job = Job("own_losses.py", folder=str(tmp_path), findings=str(tmp_path / "findings"))
    (told,) = write_down(job, shown)
    assert told["ready"], told
    assert [one.name for one in (tmp_path / "findings").iterdir() if one.is_dir()] == [Path(told["folder"]).name]
    report = Path(told["folder"], "report.md").read_text()
    assert "The same cause also breaks `credit_over_trainable`." in report or "`mask_content`." in report


def test_a_bug_without_a_function_of_a_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(case: Any, _: Any) -> dict[str, Result]:
        return {"loss": Result.scalar((-case.padded("advantage") * case.padded("logp_current")).mean(), "loss")}

    subject = Subject("nowhere", call, frozenset({"logp_current", "advantage"}))
    verdict = check(subject, "mask_content")
    shown = [(verdict, subject, verdict_data("x", subject, verdict), subject_data(subject))]
    (told,) = write_down(Job("x", folder=str(tmp_path), findings=str(tmp_path / "findings")), shown)
    assert (told["ready"], told["missing"][0].startswith("its subject names no function")) == (False, True)


# --- tests that could never pass --------------------------------------------------------------------------------------

RETURNS = """
def returns(rewards, mask):
    out, total = rewards.clone(), 0
    for t in reversed(range(rewards.shape[1])):
        total = rewards[:, t] + 0.9 * total
        out[:, t] = total
    return out * mask
"""


@pytest.mark.parametrize(("told", "why"), [("response", WHY), ("trainable", "")])
def test_a_function_that_is_not_told_which_tokens_train_gets_no_test(tmp_path: Path, told: str, why: str) -> None:
    boundary = load(Spec("returns", file="pkg/losses.py"), tree(tmp_path, RETURNS))
    view = {"with_prompt": False}

    def call(case: Any, _: Any) -> dict[str, Result]:
        out = boundary(case.padded("advantage", **view), case.padded(told, **view))
        return {"return": Result(case.from_padded(out, **view), "token", "return")}

    subject = Subject("returns", call, frozenset({"advantage"}), boundary=boundary)
    case = next(one for one in directed() if any("".join(row).endswith("aoa") for row in one.kinds))
    violation = credit_over_trainable(subject, case)
    assert violation is not None
    assert why_no_test(subject, "credit_over_trainable", violation) == why
    assert why_no_test(subject, "permutation", violation) == ""
    assert why_no_test(subject, "credit_over_trainable", replace(violation, compared=None)) == ""


def test_a_reproduction_file_names_the_file_in_which_the_function_was_found(tmp_path: Path) -> None:
    where = tree(tmp_path)
    boundary = load(Spec("keep_mask", file="old/losses.py", or_files=("pkg/losses.py",)), where)
    from trimtab.sentinel.findings.draft import place_of

    assert place_of(boundary)["file"] == "pkg/losses.py"
    moved = SimpleNamespace(file="/elsewhere.py", spec=keep_mask(where).boundary.spec)  # pyright: ignore[reportOptionalMemberAccess]
    assert place_of(moved)["file"] == "pkg/losses.py"  # pyright: ignore[reportArgumentType]
