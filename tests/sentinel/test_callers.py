"""Who calls a function of a target."""

import subprocess
from pathlib import Path

import pytest

from trimtab.sentinel.examination.callers import callers_of
from trimtab.sentinel.loading import Tree

FILES = {
    "pkg/loss.py": (
        "def loss(x):\n    return loss(x - 1) if x else 0\n\n\n"
        "class Policy:\n    def forward(self, x):\n        return x\n"
    ),
    "pkg/trainer.py": (
        "from pkg.loss import Policy, loss\n\n\n"
        "class Trainer:\n    def __init__(self):\n        self.policy = Policy()\n\n"
        "    def step(self, x):\n        return self.scaled(loss(x))\n\n    def scaled(self, x):\n        return x\n"
    ),
    "pkg/other.py": "class Other:\n    def step(self, x):\n        return self.scaled(x)\n",
    "tests/test_loss.py": "from pkg.loss import loss\n\nassert loss(0) == 0\n",
    "pkg/broken.py": "def loss(:\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def _of_commit(root: Path) -> Tree:
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    return Tree.git(root)


@pytest.mark.parametrize("made", [Tree.folder, _of_commit])
def test_callers_are_named_with_their_line_and_code_comes_before_tests(root: Path, made: object) -> None:
    tree = made(root)  # type: ignore[operator]
    assert callers_of(tree, "pkg/loss.py", "loss") == ["pkg/trainer.py:9 in Trainer.step", "tests/test_loss.py:3"]


def test_a_module_is_called_where_it_is_made(root: Path) -> None:
    found = callers_of(Tree.folder(root), "pkg/loss.py", "Policy.forward")
    assert found == ["pkg/trainer.py:6 in Trainer.__init__"]


def test_a_method_of_another_class_is_no_caller(root: Path) -> None:
    assert callers_of(Tree.folder(root), "pkg/trainer.py", "Trainer.scaled") == ["pkg/trainer.py:9 in Trainer.step"]


def test_nobody_calls_what_has_no_name(root: Path) -> None:
    assert callers_of(Tree.folder(root), "pkg/loss.py", "nobody") == []
    assert callers_of(Tree.folder(root), "pkg/loss.py", "Policy.__repr__") == []
