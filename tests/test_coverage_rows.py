"""The rows of the field: every name in them is in the code, and the page is the one that the code makes."""

import ast
import fnmatch
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.config.run import RunFile
from trimtab.coverage import Row, coverage, coverage_page
from trimtab.signal import METRICS, Recipe, catalog, names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "coverage.md"
WITH = [one for one in coverage() if one.has]


@pytest.mark.parametrize("one", WITH, ids=lambda one: one.id)
def test_what_a_row_names_is_in_the_code(one: Row) -> None:
    assert one.names, one.ours
    for kind, name in one.names:
        match kind:
            case "formula":
                assert name in catalog(), name
            case "recipe":
                assert name in names(), name
            case "field":
                assert name in {field.name for field in fields(Recipe)}, name
            case "metric":
                assert any(spec.name == name or fnmatch.fnmatch(name, spec.name) for spec in METRICS), name
            case _:
                table: object = RunFile()
                for part in name.split("."):
                    table = getattr(table, part)


@pytest.mark.parametrize("one", WITH, ids=lambda one: one.id)
def test_settings_that_a_row_names_are_settings_of_its_formula(one: Row) -> None:
    for formula, given in (text.partition("(")[::2] for text in one.ours.replace(" + ", ", ").split("), ")):
        words = [word.split("=")[0].strip() for word in given.rstrip(")").split(",") if "=" in word]
        known = catalog().get(formula.split(", ")[-1].strip())
        if known is not None:
            assert set(words) <= {*known.settings, "anchor", "ratio"}, (formula, words)


@pytest.mark.parametrize("one", coverage(), ids=lambda one: one.id)
def test_the_test_that_shows_a_row_is_there_and_speaks_of_it(one: Row) -> None:
    assert bool(one.shown) == one.has
    if not one.has:
        return
    file, _, node = one.shown.partition("::")
    name, _, case = node.partition("[")
    source = (ROOT / file).read_text(encoding="utf-8")
    tests = {found.name: found for found in ast.parse(source).body if isinstance(found, ast.FunctionDef)}
    assert name in tests, one.shown
    if case:
        assert f'    "{case.rstrip("]")}": (' in source, one.shown
    else:
        said = ast.unparse(tests[name]).lower()
        words = {word for _, named in one.names for word in re.split(r"[./*]+", named.lower()) if word}
        assert any(word in said or word in source.lower() for word in words | {"histogram", one.id.lower()}), one.shown


def test_every_row_is_there_once_with_what_it_is_or_why_not() -> None:
    rows = coverage()
    assert len(rows) == len({one.id for one in rows}) == 160
    assert all(bool(one.ours) != bool(one.reason) for one in rows)
    assert sum(one.has for one in rows) >= 150


def test_the_page_and_the_command_say_the_same() -> None:
    assert PAGE.read_text(encoding="utf-8") == coverage_page(), "run: trimtab catalog --coverage --format markdown"
    found = json.loads(CliRunner().invoke(app, ["catalog", "--coverage", "--format", "json"]).output)
    assert [row["has"] for row in found] == [one.has for one in coverage()]
    assert {"id", "row", "has", "ours", "reason", "shown"} == set(found[0])
    assert "of 160 rows" in CliRunner().invoke(app, ["catalog", "--coverage"]).output
