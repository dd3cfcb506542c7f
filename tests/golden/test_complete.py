"""Every formula of the catalogue has a hand-computed case: a test called test_<stage>_<name> that calls it."""

import ast
from pathlib import Path

import trimtab
from trimtab.signal.cookbook import FORMULA_MODULES

HERE = Path(__file__).parent


def golden_tests() -> dict[str, set[str]]:
    """The tests of this folder, and the names each one uses."""
    tests: dict[str, set[str]] = {}
    for file in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                parts = list(ast.walk(node))
                attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
                tests[node.name] = attributes | {part.id for part in parts if isinstance(part, ast.Name)}
    return tests


def test_every_file_with_formulas_is_one_that_recipes_import() -> None:
    """The catalogue holds what was imported, so a file left out of FORMULA_MODULES might be missing from it."""
    source = Path(trimtab.signal.__file__).parent
    declaring = {file.stem for file in source.glob("*.py") if "\n@formula(" in file.read_text(encoding="utf-8")}
    assert declaring == {module.__name__.rpartition(".")[2] for module in FORMULA_MODULES}


def test_every_formula_has_a_golden_case_that_calls_it() -> None:
    tests = golden_tests()
    formulas = [entry for entry in trimtab.catalog().values() if entry.fn.__module__.startswith("trimtab.")]
    assert len(formulas) > 30
    missing = [
        entry.name
        for entry in formulas
        if entry.fn.__name__ not in tests.get(f"test_{entry.stage}_{entry.fn.__name__}", set())
    ]
    assert not missing, f"write tests/golden/test_*.py::test_<stage>_<name> for {missing}"
