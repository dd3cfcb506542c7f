"""The reproduction files that ship with the sentinel: one for each bug from which this tool started."""

import json
from importlib import resources
from typing import Any


def shipped() -> dict[str, dict[str, Any]]:
    """Every shipped reproduction file by its bug id."""
    files = [file for file in resources.files(__name__).iterdir() if file.name.endswith(".json")]
    recipes = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(files, key=lambda file: file.name)]
    return {recipe["bug_id"]: recipe for recipe in recipes}
