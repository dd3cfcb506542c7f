"""The only place that writes the scripts that a maintainer runs. They need the target and torch, but not Trimtab.

The short one calls the function with literal inputs and compares. The long one carries our loader and replays
`recipe.json`; it is written only where the short one cannot load the function.
"""

import ast
import re
from pathlib import Path
from pprint import pformat

from trimtab.sentinel.findings import alone as alone_module
from trimtab.sentinel.findings import decode as decode_module
from trimtab.sentinel.findings import replay as replay_module
from trimtab.sentinel.findings import walk as walk_module
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.script import Loader, quoted, script
from trimtab.sentinel.loading import standalone

SHELL = """#!/bin/sh
# Replays one finding against a checkout: TARGET_REPO=/path/to/checkout sh run_validation.sh
# Exits with 1 if the finding is reproduced, 0 if it is fixed, 2 if it could not run. Needs Python and torch.
here=$(cd "$(dirname "$0")" && pwd)
export TARGET_REPO="${TARGET_REPO:-$(pwd)}"
export OUTPUT_JSON="${OUTPUT_JSON:-validation-output.json}"
exec "${PYTHON:-python3}" "$here/run_validation.py"
"""

HEADER = '''"""Replays a reproduction file against a checkout and reports whether the bug is there. Needs torch.

    TARGET_REPO=/path/to/checkout OUTPUT_JSON=validation-output.json python run_validation.py

It runs code of the checkout. It writes OUTPUT_JSON, posts nothing and opens no connection.
It has three parts: loaders that take a function out of its file, a reader of plain values, and the replay.
"""

'''

USAGE = """
    TARGET_REPO=/path/to/checkout OUTPUT_JSON=validation-output.json python run_validation.py

Exits with 1 if the finding is reproduced, 0 if it is fixed, 2 if it could not run. Needs Python and torch.
"""

JUDGE = '''FACTS = {facts}


def shown(values):
    """Numbers for JSON, which has no NaN; or words."""
    if isinstance(values, str):
        return values
    return [float(f"{{one:.8g}}") if math.isfinite(one) else str(one) for one in values.tolist()]


def commit():
    """The commit of the checkout; unknown without git, or where git does not know the file."""
    answers = [
        subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()
        for words in (["ls-files", {file!r}], ["rev-parse", "HEAD"])
    ]
    return answers[1] if all(answers) else "unknown"


def payload():
    told = FACTS | {{"target_commit": commit()}}
    try:
        found = compared()
    except Exception as error:
        why = f"not measured, {{type(error).__name__}}: {{error}}"
        numbers = dict.fromkeys(("observed_baseline", "observed_with_perturbation", "difference"), why)
        return told | numbers | {{"status": "could not run", "reason": why, "quiet_training_signal_bug": None}}
    _, seen, owed, where = next((one for one in found if bool(one[3].any())), found[0])
    is_wrong, leaked = bool(where.any()), where.nonzero().reshape(-1).tolist()
    is_number = not isinstance(owed, str) and owed.shape == seen.shape
    return told | {{
        "status": "reproduced" if is_wrong else "fixed",
        "quiet_training_signal_bug": is_wrong,
        "observed_baseline": shown(owed),
        "observed_with_perturbation": shown(seen),
        "difference": shown(seen - owed) if is_number else f"{{shown(seen)}} is not {{owed}}",
        "checks": [{{"op": op, "holds": not bool(bad.any()), "observed": shown(seen)}} for op, seen, _, bad in found],
        "training_signal_effect": {{"leaked_positions": leaked, "leaked_token_count": len(leaked), "non_crash": True}},
    }}


if __name__ == "__main__":
    answer = payload()
    text = json.dumps(answer, indent=2, sort_keys=True) + "\\n"
    Path(os.environ.get("OUTPUT_JSON", "validation-output.json")).write_text(text)
    print(text, end="")
    sys.exit({{"reproduced": 1, "fixed": 0}}.get(answer["status"], 2))
'''

_OURS = re.compile(r"^from trimtab[.\w]* import (?:\([^)]*\)|[^\n]+)\n", re.MULTILINE)


def runner(recipe: Data, loader: Loader) -> str:
    """The text of run_validation.py."""
    if loader == "long":
        return program()
    told = f"{recipe['scenario']['words']}\n\n{recipe['expected_invariant']}"
    facts = {
        "kind": replay_module.KIND,
        "candidate_id": recipe["bug_id"],
        "target": recipe["target"]["name"],
        "boundary": f"{recipe['boundary'].get('file', '')}:{recipe['boundary']['name']}",
        "expected_invariant": recipe["expected_invariant"],
        "observed": {},
        "checks": [],
        "training_signal_effect": {"leaked_positions": [], "leaked_token_count": 0, "non_crash": False},
    }
    foot = JUDGE.format(facts=pformat(facts, width=110, sort_dicts=False), file=recipe["boundary"].get("file", "."))
    return script(recipe, loader, quoted(told) + "\n" + USAGE, foot)


def program() -> str:
    """Loaders and replay as the text of one file."""
    modules = [
        standalone(),
        *[
            Path(str(one.__file__)).read_text("utf-8")
            for one in (alone_module, decode_module, walk_module, replay_module)
        ],
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
