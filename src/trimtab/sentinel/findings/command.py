"""Replay a reproduction file by name: this is what `trimtab check --recipe` does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from trimtab.errors import AdapterError
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.job import Job, locate, ready_name, subjects
from trimtab.sentinel.findings.by_binding import replay_with_binding
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.recipes import shipped
from trimtab.sentinel.findings.replay import replay


def replay_recipe(named: str, path: str | None) -> Data:
    """The payload of a reproduction file, given or shipped, against a checkout or the released wheel of the target."""
    recipe = _read(named)
    target = str(recipe["target"]["name"])
    if ready_name(target) is None and path is None:
        raise AdapterError(
            f"check: the reproduction file is about {target}. Name its checkout with --path DIR or DIR@COMMIT."
        )
    where: dict[str, Any] = locate(target, path=path)[0] if ready_name(target) else {"root": path}
    job = Job(target, **where)
    payload = replay(recipe, job.tree)
    if payload["status"] in ("changed", "could not run") and recipe.get("binding") and ready_name(target):
        judged = _by_binding(recipe, job)
        if judged is not None:
            return {**payload, "status": judged.split(":")[0], "judged_by": "binding", "reason": judged}
    return payload


def _by_binding(recipe: Data, job: Job) -> str | None:
    """Check the invariant itself on the recorded case, through the binding that found the bug."""
    binding = cast("Data", recipe["binding"])
    for found in subjects(replace(job, subjects=(str(binding["subject"]),))):
        if isinstance(found, Subject):
            return replay_with_binding(recipe, found)
    return None


def _read(named: str) -> Data:
    known = shipped()
    chosen = [recipe for name, recipe in known.items() if name == named or name.startswith(f"{named}_")]
    if len(chosen) == 1:
        return chosen[0]
    path = Path(named)
    if not path.is_file():
        raise AdapterError(
            f"check: --recipe {named}: no such file, and no shipped reproduction file; there are {sorted(known)}."
        )
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterError(f"check: --recipe {named} is not JSON: {error}.") from error
    if not isinstance(recipe, dict) or recipe.get("kind") != "trimtab_recipe":
        raise AdapterError(
            f"check: --recipe {named} is not the reproduction file of a finding: its kind is not trimtab_recipe."
        )
    return cast("Data", recipe)
