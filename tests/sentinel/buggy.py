"""A small package with three bugs, its bindings, and the repaired version: what the tests of findings share."""

import importlib.util
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trimtab.sentinel import Result, Subject, check
from trimtab.sentinel.findings import Target, attempt, ready, recipe_of
from trimtab.sentinel.findings.trial import RunnerTrial, TestTrial
from trimtab.sentinel.loading import Spec, Tree, load
from trimtab.sentinel.search import Verdict

SOURCE = """
import torch


def keep_mask(args, now, old, advantages, masks):
    kept = []
    for lp, before, advantage, mask in zip(now, old, advantages, masks):
        drift = ((before - lp) * mask).sum() / mask.sum().clamp(min=1)
        kept.append(1 - ((DECIDING < 0) & (drift > args.delta)).float().expand_as(advantage))
    return {"keep": torch.cat(kept), "sequences": len(kept)}


def loss(logp, advantage, mask):
    return (-advantage * logp * mask).sum() / mask.sum().clamp(min=1)


def shaped(data, coef):
    data["kl"] *= -coef
    data["reward"] = data["kl"] + 1
"""
BUGGY = SOURCE.replace("DECIDING", "advantage")
RIGHT = SOURCE.replace("DECIDING", "(advantage * mask).sum()").replace(
    'data["kl"] *= -coef', 'data["kl"] = data["kl"] * -coef'
)


def tree(folder: Path, source: str = BUGGY) -> Tree:
    (folder / "pkg").mkdir(parents=True, exist_ok=True)
    (folder / "pkg" / "losses.py").write_text(source)
    return Tree.folder(folder)


def keep_mask(where: Tree, **more: Any) -> Subject:
    boundary = load(Spec("keep_mask", file="pkg/losses.py"), where)

    def call(case: Any, options: Any) -> dict[str, Result]:
        fields = [case.list(name) for name in ("logp_current", "logp_old", "advantage", "trainable")]
        kept = boundary(Namespace(delta=0.1, **more), *fields)["keep"]
        return {"keep": Result.token(case, list(kept.split(case.lengths)), "keep", layout="list", scope="sequence")}

    return Subject("keep_mask", call, frozenset({"logp_current", "logp_old", "advantage"}), boundary=boundary)


def mean_loss(where: Tree, times: float = 1.0) -> Subject:
    boundary = load(Spec("loss", file="pkg/losses.py"), where)

    def call(case: Any, options: Any) -> dict[str, Result]:
        value = boundary(case.padded("logp_current"), case.padded("advantage"), case.padded("trainable"))
        return {"loss": Result.scalar(value * times + (times - 1), "loss")}

    return Subject("loss", call, frozenset({"logp_current", "advantage"}), boundary=boundary, combine="sum")


def shaped(where: Tree) -> Subject:
    boundary = load(Spec("shaped", file="pkg/losses.py"), where)

    def call(case: Any, options: Any) -> dict[str, Result]:
        data = {"kl": case.packed("logp_old")}
        boundary(data, 0.05)
        return {"reward": Result.token(case, data["reward"], "reward", layout="packed")}

    return Subject("shaped", call, frozenset({"logp_old"}), boundary=boundary)


def found(subject: Subject, name: str) -> Verdict:
    verdict = check(subject, name)
    assert verdict.violation is not None
    assert verdict.case is not None
    return verdict


def drafted(subject: Subject, name: str, where: Tree) -> dict[str, Any]:
    verdict = found(subject, name)
    assert verdict.case is not None
    assert verdict.violation is not None
    return recipe_of(subject, name, verdict.case, verdict.violation, Target("pkg", "me/pkg", where), "one")


# --- scripts of a finding, in this process: starting a new one takes seconds ------------------------------------------


def executed(file: Path, root: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    """A script as a module that looks at the code below `root`."""
    for loaded in [one for one in sys.modules if one.split(".")[0] == "pkg"]:
        patch.delitem(sys.modules, loaded)
    patch.setenv("TARGET_REPO", str(root))
    patch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def only_test(module: ModuleType) -> Any:
    return next(value for name, value in vars(module).items() if name.startswith("test_"))


def in_process(patch: pytest.MonkeyPatch, **instead: Any) -> None:
    """Replace the trials by ones in this process, or by the given answers."""

    def runner(folder: Path, root: Path, *_: Any) -> RunnerTrial:
        with pytest.MonkeyPatch.context() as own:
            payload = executed(folder / "run_validation.py", root, own).payload()
        return RunnerTrial({"reproduced": 1, "fixed": 0}.get(payload["status"], 2), payload["status"], "", 0.0, payload)

    def test(folder: Path, root: Path, *_: Any) -> TestTrial:
        with pytest.MonkeyPatch.context() as own:
            try:
                only_test(executed(folder / "test_regression.py", root, own))()
            except AssertionError:
                return TestTrial("failed", "", 0.0)
        return TestTrial("passed", "", 0.0)

    for module in (attempt, ready):
        patch.setattr(module, "try_runner", instead.get("runner", runner))
    patch.setattr(ready, "try_test", instead.get("test", test))
