"""Importing a target with absent dependencies: what a stub does, what it refuses, and that nothing stays behind."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from trimtab.sentinel.loading import CouldNotLoad, Spec, Tree, load
from trimtab.sentinel.loading.stubs import Stub, StubRecord

ALGOS = """\
import importlib.util
from abc import ABC

import absent_ray
import absent_ray.util.queue as queue
from absent_core import Base, Config, Generic, Mixin, mpu, traced
from absent_core.errors import CoreError

try:
    import absent_flash
except ImportError:
    absent_flash = None

HAS_VLLM = importlib.util.find_spec("absent_vllm") is not None


class Worker(Base, Mixin[int], ABC):
    def __init__(self, size):
        super().__init__(size, rank=0)
        self.size = size


class Child(Mixin, Worker):
    limit: "Config | None" = None


class Meta(metaclass=absent_ray.Metaclass):
    held = 1


@absent_ray.remote(num_cpus=1)
@traced
def scaled(values: Config | None, by: Generic[int] = 2) -> "Config":
    with absent_ray.profile("scaled"):
        total = sum(values)
    for _ in mpu.groups():
        total = None
    if isinstance(total, Config) or mpu.is_on():
        total = None
    try:
        return total * by
    except CoreError:
        return None


def ranked():
    from absent_late import rank

    return rank() + 1
"""


@pytest.fixture
def target(tmp_path: Path) -> Tree:
    for file, text in {"peer/__init__.py": "", "peer/algos.py": ALGOS}.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
    return Tree.folder(tmp_path)


def stubbed(tree: Tree, name: str, **more: object):
    return load(Spec(name, file="peer/algos.py", how="stubs", **more), tree)  # pyright: ignore[reportArgumentType]


def test_a_file_full_of_absent_modules_imports_and_computes(target: Tree) -> None:
    scaled = stubbed(target, "scaled")
    with scaled.trace():
        assert scaled([1.0, 2.0]) == 6.0
    assert scaled.body_ran
    assert set(scaled.stubs) == {"absent_ray", "absent_core"}
    assert "absent_core.mpu.groups()" in scaled.stubs_used
    assert scaled.get("absent_flash") is None  # the file expects its absence
    assert scaled.get("HAS_VLLM") is False


def test_an_absent_exception_class_can_stand_in_an_except(target: Tree) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        stubbed(target, "scaled")([1.0], by=object())


def test_classes_inherit_from_stubs_in_any_order(target: Tree) -> None:
    scaled = stubbed(target, "scaled")
    assert scaled.get("Worker")(3).size == 3
    assert scaled.get("Child")(4).size == 4
    assert scaled.get("Meta").held == 1


def test_nothing_of_a_target_stays_in_sys_modules_or_sys_path(target: Tree) -> None:
    modules, path, finders = dict(sys.modules), list(sys.path), list(sys.meta_path)
    stubbed(target, "scaled")([1.0])
    added = sys.modules.keys() - modules.keys()
    assert not [name for name in added if name.startswith(("peer", "absent"))]
    assert (sys.path, sys.meta_path) == (path, finders)


def test_two_targets_of_one_name_do_not_see_each_other(target: Tree, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "peer").mkdir(parents=True)
    (other / "peer" / "__init__.py").write_text("")
    (other / "peer" / "algos.py").write_text("from absent_core import mpu\ndef scaled(values):\n    return 'other'\n")
    first, second = stubbed(target, "scaled"), stubbed(Tree.folder(other), "scaled")
    assert (first([1.0]), second([1.0]), first([2.0])) == (2.0, "other", 4.0)


def test_an_import_inside_the_function_is_served_and_recorded_when_it_runs(target: Tree) -> None:
    ranked = stubbed(target, "ranked")
    with pytest.raises(TypeError):
        ranked()
    assert "absent_late" in ranked.stubs
    assert "absent_late.rank()" in ranked.stubs_used


def test_given_replaces_a_module_and_a_name(target: Tree) -> None:
    spec = Spec("ranked", file="peer/algos.py", how="stubs")
    assert load(spec, target, {"absent_late.rank": lambda: 2})() == 3


def test_without_stubs_the_absence_is_said(target: Tree) -> None:
    with pytest.raises(
        CouldNotLoad, match=r"import peer.algos from .*: ModuleNotFoundError: No module named 'absent_ray'"
    ):
        load(Spec("scaled", file="peer/algos.py", how="import"), target)
    with pytest.raises(CouldNotLoad, match="No module named 'absent_core'"):
        stubbed(target, "scaled", stubs=("absent_ray",))


def test_a_present_module_that_is_named_is_stood_in_for_and_comes_back(target: Tree) -> None:
    import json

    (target.root / "peer" / "algos.py").write_text("import json\ndef text(x):\n    return json.dumps(x)\n")
    text = stubbed(target, "text", stubs=("json",))
    assert isinstance(text([1]), Stub)
    assert sys.modules["json"] is json


def test_a_bare_package_does_not_run_its_init(target: Tree) -> None:
    (target.root / "peer" / "__init__.py").write_text("raise RuntimeError('heavy')\n")
    with pytest.raises(CouldNotLoad, match="RuntimeError: heavy"):
        stubbed(target, "scaled")
    assert stubbed(target, "scaled", bare_packages=("peer",))([1.0]) == 2.0


def test_a_name_a_present_module_lacks_is_stood_in_for_while_loaded(target: Tree) -> None:
    (target.root / "peer" / "algos.py").write_text("from textwrap import no_such_name\ndef two():\n    return 2\n")
    two = stubbed(target, "two")
    assert two() == 2
    assert "textwrap.no_such_name" in two.stubs
    assert not hasattr(sys.modules["textwrap"], "no_such_name")


def test_a_stub_never_becomes_a_number() -> None:
    stub = Stub("absent.thing", StubRecord())
    for wrong in (
        lambda: stub + 1,
        lambda: stub > 1,
        lambda: torch.ones(2) * stub,
        lambda: torch.ones(2, dtype=torch.bool) | stub,
        lambda: torch.tensor(stub),
        lambda: float(stub),
        lambda: len(stub),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            wrong()
    assert not stub
    assert list(stub) == []
