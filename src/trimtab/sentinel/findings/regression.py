"""The only place that writes a test for the target's own suite: plain pytest and torch, with visible inputs."""

import re
import textwrap

from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.script import Loader, quoted, script

TEST = """def test_{name}():
    for _, seen, owed, where in compared():
        assert not bool(where.any()), f"{{LAW}}\\nowed: {{owed}}\\nseen: {{seen}}"
"""


def regression_test(recipe: Data, loader: Loader = "taken") -> str | None:
    """The text of test_regression.py, which fails before the repair and passes after it; None without a check."""
    if not recipe["checks"]:
        return None
    name = re.sub(r"\W+", "_", str(recipe["bug_id"])).strip("_").lower()
    told = quoted(f"{recipe['expected_invariant']}\n\nAs found: {recipe['scenario']['words']}")
    lines = textwrap.wrap(str(recipe["expected_invariant"]), 100)
    parts = [f"{line} " for line in lines[:-1]] + lines[-1:]
    law = "LAW = (\n" + "\n".join(f"    {part!r}" for part in parts) + "\n)\n\n\n"
    return script(recipe, loader, told, law + TEST.format(name=name))
