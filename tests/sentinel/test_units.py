"""What there is to check, by name and before it is loaded: modules, packages, repositories, and their places."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from trimtab.errors import AdapterError
from trimtab.sentinel.binding.discover import load_module, subjects_of, units_of
from trimtab.sentinel.binding.repository import candidates, units_in
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.job import Job, is_called, locate, may_hold, subjects, units
from trimtab.sentinel.loading import Tree
from trimtab.sentinel.search import check
from trimtab.sentinel.targets.target import Unbound, Unit

LOSS = "def {}(log_probs, advantages, mask):\n    return (-advantages * log_probs)[mask.bool()].sum()\n"


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    return folder


@pytest.fixture(autouse=True)
def imports_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_nothing_is_bound_before_its_unit_is_made(tmp_path: Path) -> None:
    text = (
        LOSS.format("fine")
        + "class Loss:\n    def forward(self, x):\n        1 / 0\n    def other(self, x):\n        1 / 0\n"
    )
    file = (
        put(tmp_path, {"lazy_losses.py": "def bad(log_probs, mask):\n    raise SystemExit\n" + text}) / "lazy_losses.py"
    )
    assert [unit.name for unit in units_of(str(file))] == ["bad", "fine", "Loss.forward", "Loss.other"]
    (fine,) = subjects(Job(str(file), subjects=("fine",)))
    assert isinstance(fine, Subject)


def test_a_package_is_every_module_of_it_and_imports_none_before_its_turn(tmp_path: Path) -> None:
    put(tmp_path, {
        "whole_pkg/__init__.py": "", "whole_pkg/__main__.py": "raise SystemExit\n",
        "whole_pkg/losses.py": LOSS.format("loss") + "def load(path):\n    return path\n",
        "whole_pkg/broken.py": "import nothing_of_the_kind\n",
        "whole_pkg/deep/__init__.py": LOSS.format("loss"), "whole_pkg/deep/end.py": "raise SystemExit\n",
        "whole_pkg/deep/declared.py": """
            from trimtab.sentinel import subject
            @subject(role="policy_loss", promises=("split",))
            def mine(log_probs, advantages, mask):
                return (log_probs * advantages).sum()
            def another(log_probs, advantages, mask):
                return log_probs
        """,
    })  # fmt: skip
    found = {unit.name: unit for unit in units_of("whole_pkg", str(tmp_path))}
    assert list(found) == ["whole_pkg", "broken", "deep", "deep.declared", "deep.end", "losses"]
    with pytest.raises(ModuleNotFoundError, match="nothing_of_the_kind"):
        list(found["broken"].subjects())
    assert names(found["losses"]) == ["losses.loss"]
    (_, unbound) = found["losses"].subjects()
    assert isinstance(unbound, Unbound)
    assert (unbound.binding, unbound.is_asked) == ("losses.load", False)
    assert names(found["deep"]) == ["deep.loss"]
    assert names(found["deep.declared"]) == ["mine"]


def names(unit: Unit) -> list[str]:
    return [one.name for one in unit.subjects() if isinstance(one, Subject)]


def test_a_file_of_yours_replaces_no_package(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"torch.py": LOSS.format("loss"), "hypothesis.py": "raise RuntimeError", "near_by.py": "import hypothesis\n"},
    )
    module = load_module("torch.py", str(tmp_path))
    assert sys.modules["torch"] is torch
    assert module.__file__ == str(tmp_path / "torch.py")
    assert load_module("near_by", str(tmp_path)).hypothesis is sys.modules["hypothesis"]
    assert [one.name for one in subjects_of(str(tmp_path / "torch.py")) if isinstance(one, Subject)] == ["loss"]


def test_the_package_that_was_asked_for_is_the_one_in_the_folder(tmp_path: Path) -> None:
    put(tmp_path / "installed", {"twice_there.py": "WHERE = 'installed'\n"})
    put(tmp_path / "mine", {"twice_there.py": "WHERE = 'mine'\n"})
    sys.path.insert(0, str(tmp_path / "installed"))
    assert load_module("twice_there", str(tmp_path / "mine")).WHERE == "mine"


@pytest.mark.parametrize(
    ("name", "asked", "called", "holds"),
    [
        ("loss", "loss", True, True),
        ("losses.loss", "loss", True, True),
        ("Loss.forward", "Loss", True, True),
        ("losses", "losses.loss", False, True),
        ("agg_loss", "agg_loss(mode=mean)", False, True),
        ("loss", "los", False, False),
        ("my_loss", "loss", False, False),
    ],
)
def test_a_function_is_asked_for_by_its_name_with_or_without_its_module(
    name: str, asked: str, called: bool, holds: bool
) -> None:
    assert (is_called(name, asked), may_hold(name, asked)) == (called, holds)


def test_a_path_is_honoured_or_refused_for_your_own_code(tmp_path: Path) -> None:
    put(tmp_path / "repo", {"elsewhere.py": LOSS.format("loss")})
    where, said = locate("elsewhere.py", path=str(tmp_path / "repo"))
    assert [unit.name for unit in units(Job("elsewhere.py", **where))] == ["loss"]
    assert said == f"elsewhere.py: code of {tmp_path / 'repo'}"
    with pytest.raises(AdapterError, match=r"policy_loss.clipped is part of this Trimtab, so --path .* cannot be used"):
        locate("policy_loss.clipped", path=str(tmp_path))
    with pytest.raises(AdapterError, match="--wheel is for a framework with bindings"):
        locate("elsewhere.py", file=tmp_path / "x.whl")
    with pytest.raises(AdapterError, match="no such folder"):
        locate("elsewhere.py", path=str(tmp_path / "nowhere"))


def committed(folder: Path) -> None:
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "one"],
        ["update-ref", "refs/remotes/origin/main", "HEAD"],
    ):
        who = ["-c", "user.email=a@b.c", "-c", "user.name=a"]
        subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


def test_a_branch_may_hold_a_slash_and_a_folder_an_at(tmp_path: Path) -> None:
    folder = put(tmp_path / "me@home" / "repo", {"a.py": LOSS.format("loss")})
    committed(folder)
    where, _ = locate("slime", path=f"{folder}@origin/main")
    assert where["root"] == str(folder)
    assert len(where["commit"]) == 40
    assert locate("slime", path=str(folder))[0] == {"root": str(folder), "commit": None}
    with pytest.raises(AdapterError, match=r"imported from a folder, and --path .*@origin/main names a commit"):
        locate("a.py", path=f"{folder}@origin/main")


REPOSITORY = {
    "src/kit/__init__.py": "", "src/kit/algos/__init__.py": "import absent_framework\n",
    "src/kit/algos/core.py": "import absent_framework\nfrom kit.scale import SCALE\n" + LOSS.format("loss"),
    "src/kit/scale.py": "SCALE = 2\n",
    "src/kit/run.py": "raise SystemExit('this file was imported')\ndef main(config):\n    pass\n",
    "src/kit/raises.py": "1 / 0\n" + LOSS.format("cut_loss"),
    "src/kit/typo.py": "def loss(:\n", "tests/test_it.py": LOSS.format("test_loss"),
    "setup.py": LOSS.format("setup_loss"), ".venv/lib.py": LOSS.format("hidden_loss"),
}  # fmt: skip


@pytest.mark.parametrize("at_a_commit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_repository_without_bindings_is_searched_and_only_its_signal_is_loaded(
    tmp_path: Path, at_a_commit: bool
) -> None:
    put(tmp_path, REPOSITORY)
    if at_a_commit:
        committed(tmp_path)
    tree = Tree.git(tmp_path) if at_a_commit else Tree.folder(tmp_path)
    found = {unit.name: unit for unit in units_in(tree)}
    assert list(found) == ["kit.algos.core", "kit.raises"]
    (loss,) = found["kit.algos.core"].subjects()
    (cut,) = found["kit.raises"].subjects()
    for one, how in ((loss, "stubs"), (cut, "cut")):
        assert isinstance(one, Subject)
        assert one.boundary is not None
        assert one.boundary.spec.how == how
        assert check(one, "mask_content", examples=1).status == "holds"
    assert isinstance(loss, Subject)
    assert loss.name == "kit.algos.core.loss"
    assert loss.boundary is not None
    assert (loss.boundary.file, loss.boundary.executed) == ("src/kit/algos/core.py", {4})
    assert "absent_framework" in loss.boundary.stubs
    assert "kit" not in sys.modules


def test_a_candidate_has_two_arguments_that_tell_a_field() -> None:
    text = """
    def loss(log_probs, advantages): ...
    def _private(log_probs, advantages): ...
    def masked(mask): ...
    def twice(log_prob, log_probs): ...
    class Loss:
        def forward(self, values, returns): ...
    class Other:
        def __init__(self, values, returns): ...
    """
    assert candidates(dedent(text)) == ["loss", "Loss"]
