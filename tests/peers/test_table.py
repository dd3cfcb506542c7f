"""docs/peers.md is true: every test it names exists, and every comparison and difference that is tested has its row."""

import ast
import re
from pathlib import Path

import trimtab

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "peers.md").read_text(encoding="utf-8")
COMPARISONS = (
    "test_skyrl.py", "test_verl.py", "test_differences.py", "test_newer.py", "test_newer_skyrl.py",
    "test_newer_others.py", "test_newer_differences.py",
)  # fmt: skip

# Tests about the comparison itself, not about a peer.
OF_THE_COMPARISON = {"test_skyrl.py::test_every_correction_compared_here_does_something"}


def existing() -> set[str]:
    found: set[str] = set()
    for file in COMPARISONS:
        for node in ast.parse((HERE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(node.name if file == "test_differences.py" else f"{file}::{node.name}")
    return found - OF_THE_COMPARISON


def named() -> set[str]:
    return set(re.findall(r"`((?:test_\w+\.py::)?test_\w+)`", PAGE))


def test_the_page_names_the_tests_there_are_and_no_others() -> None:
    assert named() == existing()


def test_every_row_ends_with_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| peer function")]
    assert len(rows) > 50
    assert [row for row in rows if not re.search(r"`(?:test_\w+\.py::)?test_\w+` \|$", row)] == []


def test_every_formula_the_page_names_is_in_the_catalogue() -> None:
    stages = "reward|kl|normalize|advantage|importance|keep|select|policy_loss|value_loss|weighting"
    assert set(re.findall(rf"`((?:{stages})\.\w+)`", PAGE)) <= trimtab.catalog().keys()
