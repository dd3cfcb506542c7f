"""The only place that writes the scripts that a maintainer runs. They need the target and torch, but not Trimtab."""

import ast
import re
from pathlib import Path

from trimtab.sentinel.findings import alone as alone_module
from trimtab.sentinel.findings import decode as decode_module
from trimtab.sentinel.findings import replay as replay_module
from trimtab.sentinel.loading import standalone

SHELL = """#!/bin/sh
# Replays one finding against a checkout: TARGET_REPO=/path/to/checkout sh run_validation.sh
# Exits with 1 if the finding is reproduced, 0 if it is fixed, 2 if it could not run. Needs Python and torch.
here=$(cd "$(dirname "$0")" && pwd)
export TARGET_REPO="${TARGET_REPO:-$(pwd)}"
export OUTPUT_JSON="${OUTPUT_JSON:-validation-output.json}"
export RECIPE="${RECIPE:-$here/recipe.json}"
exec "${PYTHON:-python3}" "$here/run_validation.py"
"""

HEADER = '''"""Replays a reproduction file against a checkout and reports whether the bug is there. Needs torch.

    TARGET_REPO=/path/to/checkout OUTPUT_JSON=validation-output.json python run_validation.py

It runs code of the checkout. It writes OUTPUT_JSON, posts nothing and opens no connection.
It has three parts: loaders that take a function out of its file, a reader of plain values, and the replay.
"""

'''

_OURS = re.compile(r"^from trimtab[.\w]* import (?:\([^)]*\)|[^\n]+)\n", re.MULTILINE)


def program() -> str:
    """Loaders and replay as the text of one file."""
    modules = [
        standalone(),
        *[Path(str(one.__file__)).read_text("utf-8") for one in (alone_module, decode_module, replay_module)],
    ]
    bodies = [_OURS.sub("", text) for text in modules]
    return (
        HEADER + _imports(bodies) + "\n\n" + "\n\n".join(_without_imports(text).strip("\n") for text in bodies) + "\n"
    )


def _imports(bodies: list[str]) -> str:
    """One import line per module."""
    whole: set[str] = set()
    names: dict[str, set[str]] = {}
    for node in [node for text in bodies for node in ast.parse(text).body]:
        if isinstance(node, ast.Import):
            whole.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            names.setdefault(str(node.module), set()).update(ast.unparse(name) for name in node.names)
    return "\n".join([*sorted(whole), *[f"from {one} import {', '.join(sorted(names[one]))}" for one in sorted(names)]])


def _without_imports(text: str) -> str:
    """The text without its top-level imports. Docstrings of modules become comments."""
    lines = text.split("\n")
    for node in ast.parse(text).body:
        span = range(node.lineno - 1, node.end_lineno or node.lineno)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for i in span:
                lines[i] = "\0"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and lines[span[0]].startswith('"""'):
            follows = "".join(lines[max(span[0] - 2, 0) : span[0]]).strip("\0")
            for i in span if not follows else ():  # a docstring below an assignment stays
                lines[i] = ("# " + lines[i].replace('"""', "")).rstrip()
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(line for line in lines if line != "\0"))
