"""Real functions out of small source trees: imported, imported with stubs, and cut out of their file."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Literal

import pytest

from trimtab.sentinel.loading import CouldNotLoad, Spec, Tree, load, made, standalone
from trimtab.sentinel.loading.tree import unpack


def put(tree: Tree, file: str, text: str) -> None:
    path = tree.root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))


@pytest.fixture
def pkg(tmp_path: Path) -> Tree:
    tree = Tree.folder(tmp_path)
    put(tree, "pkg/__init__.py", "import heavy_absent\nraise RuntimeError('the whole package was imported')\n")
    put(tree, "pkg/core/__init__.py", "from .mean import *\n")
    put(tree, "pkg/core/mean.py", "EPS = 0.5\n\n\ndef mean(values):\n    return sum(values) / (len(values) + EPS)\n")
    put(
        tree,
        "pkg/loss.py",
        """\
        import math
        from dataclasses import dataclass, field
        from typing import ClassVar
        import heavy_absent as ha
        from heavy_absent.deep import mpu, Base, Mixin, decorate
        from pkg.core import mean
        from .core.mean import EPS as eps
        from .nowhere import lost

        try:
            import flash_absent
            HAS_FLASH = True
        except ImportError:
            HAS_FLASH = False

        REGISTRY = {}
        BROKEN = 1 / 0

        def register(name):
            def put(fn):
                REGISTRY[name] = fn
                return fn
            return put

        @register("simple")
        @decorate
        @ha.remote(num_cpus=1)
        def simple(values, scale: Undefined = 2):
            \"\"\"Says what it does.\"\"\"
            if scale < 0:
                return None
            return mean(values) * scale + eps

        def parallel(values):
            return sum(values) / mpu.world_size()

        def late(values):
            from heavy_absent.deep import mpu as local
            from pkg.core.mean import mean as m
            return m(values) / local.world_size()

        @dataclass
        class Options:
            kinds: ClassVar[int] = 3
            scale: float = 2.0
            names: list = field(default_factory=list)

        class Actor(Base, Mixin[int], ha.Other):
            LIMIT = math.inf

            def __init__(self):
                raise RuntimeError("needs a cluster")

            @property
            def factor(self):
                raise RuntimeError("needs a cluster")

            @staticmethod
            def twice(x):
                return 2 * x

            def advantage(self, rewards):
                base = self.baseline(rewards)
                out = []
                for reward in rewards:
                    if reward > 5:
                        continue
                    centred = reward - base
                    out.append(centred * self.factor)
                total = sum(out)
                if total > 100:
                    return "early"
                logged = dict(size=len(out), worst=min(out))
                return out

            def baseline(self, rewards):
                return mean(rewards)

        def outer(xs):
            shift = 1
            def inner(x, by=3):
                return x * by + shift
            return [inner(x) for x in xs]

        async def waited(x):
            return x + 1

        class Loop:
            def step(self, x):
                def halved(x):
                    return x / parts
                return halved(x)
        """,
    )
    return tree


def cut(tree: Tree, name: str, given: dict[str, object] | None = None, **more: object):
    return load(Spec(name, file="pkg/loss.py", **more), tree, given)  # pyright: ignore[reportArgumentType]


def test_a_cut_runs_the_definition_with_its_own_package_and_without_what_is_absent(pkg: Tree) -> None:
    simple = cut(pkg, "simple")
    assert simple([1.0, 2.0]) == pytest.approx(3.0 / 2.5 * 2 + 0.5)
    assert "heavy_absent" in simple.stubs
    assert simple.stubs_used == []
    assert simple.get("REGISTRY") == {"simple": simple.function}  # the registry it is entered in ran, the stub did not
    assert simple.get("HAS_FLASH") is False  # a guarded import fails as the file expects


def test_what_the_definition_does_not_read_never_runs(pkg: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pkg", raising=False)  # another test's package may be of that name
    simple = cut(pkg, "simple")
    simple([1.0])
    assert not any("BROKEN" in name or "lost" in name for name in simple.stubs)
    assert "heavy_absent" not in sys.modules
    assert "pkg" not in sys.modules


def test_a_stub_in_arithmetic_raises_and_is_on_record_as_used(pkg: Tree) -> None:
    parallel = cut(pkg, "parallel")
    with pytest.raises(TypeError):
        parallel([1.0])
    mpu = "heavy_absent.deep.mpu"
    assert parallel.stubs_used == [mpu, f"{mpu}.world_size", f"{mpu}.world_size()"]


@pytest.mark.parametrize("key", ["mpu", "heavy_absent.deep.mpu"])
@pytest.mark.parametrize("name", ["parallel", "late"])
def test_given_stands_in_the_place_of_a_name_or_a_module(pkg: Tree, key: str, name: str) -> None:
    fake = SimpleNamespace(world_size=lambda: 4)
    found = cut(pkg, name, {key: fake})([6.0])
    assert found == (6.0 / 4 if name == "parallel" else 6.0 / 1.5 / 4)


def test_a_method_runs_on_an_object_without_its_constructor(pkg: Tree) -> None:
    advantage = cut(pkg, "Actor.advantage")
    actor = advantage.made(factor=2.0)
    assert advantage(actor, [1.0, 2.0]) == [2 * (1 - 1.2), 2 * (2 - 1.2)]
    assert cut(pkg, "Actor.twice")(4) == 8
    assert float("inf") == actor.LIMIT


def test_a_dataclass_of_the_file_is_one(pkg: Tree) -> None:
    options = cut(pkg, "simple").get("Options")
    assert options(scale=3.0) == options(3.0)
    assert options.kinds == 3
    with pytest.raises(TypeError):
        options(kinds=4)


def test_a_nested_function_takes_its_free_names_from_the_caller(pkg: Tree) -> None:
    assert cut(pkg, "outer.inner", {"shift": 10})(2) == 16
    assert cut(pkg, "outer")([2]) == [7]
    assert cut(pkg, "Loop.step.halved", {"parts": 2})(5.0) == 2.5
    inner = cut(pkg, "outer.inner", {"shift": 10})
    assert inner.executable == {inner.first_line + 1}  # the def line runs in the function around it


def test_an_async_function_is_awaited(pkg: Tree) -> None:
    assert cut(pkg, "waited").awaited(1) == 2


def test_statements_become_a_function_of_the_names_they_read(pkg: Tree) -> None:
    part = cut(pkg, "Actor.advantage", first="centred = reward", last="out.append", results=("centred", "out"))
    assert part(reward=3.0, base=1.0, out=[], self=SimpleNamespace(factor=2.0)) == {"centred": 2.0, "out": [4.0]}
    assert (part.first_line, part.last_line) == (68, 69)
    with pytest.raises(CouldNotLoad, match=r"reads 'base', which was not given; it reads reward, base"):
        part(reward=3.0, out=[], self=None)


def test_statements_end_at_return_and_at_continue(pkg: Tree) -> None:
    ends = cut(pkg, "Actor.advantage", first="total = sum(out)", last="return 'early'".replace("'", '"'))
    assert ends(out=[101]) == {"return": "early"}
    assert ends(out=[1]) == {"out": [1], "total": 1}
    goes_on = cut(pkg, "Actor.advantage", first="if reward > 5", last="centred = reward - base")
    assert "centred" not in goes_on(reward=6, base=1)
    assert goes_on(reward=2, base=1)["centred"] == 1


def test_one_expression_and_one_keyword_by_what_they_say(pkg: Tree) -> None:
    assert cut(pkg, "Actor.advantage", expression="reward - base")(reward=5, base=2) == 3
    assert cut(pkg, "Actor.advantage", expression="len(out)")(out=[3, 1, 2]) == 3  # not the call around it
    assert cut(pkg, "Actor.advantage", first="dict(size", keyword="worst")(out=[3, 1, 2]) == 1


def test_lines_are_the_targets_own_and_only_traced_ones_count(pkg: Tree) -> None:
    simple = cut(pkg, "simple")
    simple([1.0])
    assert not simple.executed
    assert not simple.body_ran
    with simple.trace():
        simple([1.0])
    told = simple.as_data()
    assert told["boundary"] == "pkg/loss.py:simple"
    assert (told["first_line"], told["executed"], told["missed"]) == (28, [30, 32], [31])
    assert simple.body_ran


def test_the_lines_of_a_class_are_those_of_its_methods_bodies(pkg: Tree) -> None:
    actor = cut(pkg, "Actor")
    lines = actor.source.splitlines()
    assert {lines[number - 1].split()[0] for number in actor.executable}.isdisjoint({"def", "class", "LIMIT"})
    assert len(actor.executable) == 16


def test_an_outer_tracer_is_put_back(pkg: Tree) -> None:
    before = sys.gettrace()
    seen: list[str] = []

    def outer(frame: object, event: str, arg: object) -> None:
        seen.append(event)

    sys.settrace(outer)
    try:
        simple = cut(pkg, "simple")
        with simple.trace():
            simple([1.0])
        assert sys.gettrace() is outer
    finally:
        sys.settrace(before)


def test_a_traceback_shows_the_targets_line(pkg: Tree) -> None:
    import traceback

    with pytest.raises(ZeroDivisionError) as caught:
        cut(pkg, "parallel", {"mpu": SimpleNamespace(world_size=lambda: 0)})([1.0])
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(last.filename).name, last.lineno) == ("loss.py", 35)
    assert last.line == "return sum(values) / mpu.world_size()"


def test_calls_are_kept_with_what_they_held_before(pkg: Tree) -> None:
    import torch

    put(pkg, "pkg/inplace.py", "def halve(batch):\n    batch['x'][0].mul_(0.5)\n    return batch\n")
    halve = load(Spec("halve", file="pkg/inplace.py"), pkg)
    batch = {"x": [torch.tensor([4.0])]}
    with halve.record_calls() as calls:
        halve(batch)
    halve(batch)
    assert len(calls) == 1
    assert calls[0].args[0] is batch
    assert calls[0].args_before[0]["x"][0].item() == 4.0
    assert calls[0].returned is batch


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Spec("simpel", file="pkg/loss.py"), r"pkg/loss.py at .*: no definition simpel; there are simple, "),
        (Spec("Actor.advantages", file="pkg/loss.py"), r"no definition Actor.advantages; there are Actor.advantage, "),
        (Spec("simple", file="pkg/los.py"), r"pkg/los.py at .*: no such file; there are pkg/loss.py, "),
        (Spec("simple", file="a.py", or_files=("b.py",)), r"a.py at .*; or b.py at .*: no such file"),
        (Spec("simple", file="pkg/loss.py", first="nothing here"), r"no statements from 'nothing here'"),
        (Spec("simple", file="pkg/loss.py", expression="nothing here"), r"no expression 'nothing here' in simple"),
        (Spec("simple", module="pkg.loss", how="import"), r"import pkg.loss from .*: .*heavy_absent"),
    ],
)
def test_a_thing_not_found_says_what_was_looked_for_and_what_is_there(pkg: Tree, spec: Spec, said: str) -> None:
    with pytest.raises(CouldNotLoad, match=said):
        load(spec, pkg)


def test_a_function_that_moved_is_found_where_it_went(pkg: Tree) -> None:
    found = load(Spec("mean", file="pkg/gone.py", or_files=("pkg/core/mean.py",)), pkg)
    assert found.file == "pkg/core/mean.py"
    assert found([1.0]) == 1 / 1.5


def test_a_spec_is_plain_data() -> None:
    spec = Spec("f", file="a.py", stubs=("ray",), results=("x", "y"))
    assert spec.as_data() == {"name": "f", "file": "a.py", "how": "cut", "stubs": ["ray"], "results": ["x", "y"]}
    assert Spec.from_data(spec.as_data()) == spec
    with pytest.raises(CouldNotLoad, match="a spec has no files; there are file, "):
        Spec.from_data({"name": "f", "files": []})


def test_a_commit_is_read_without_a_work_tree(pkg: Tree, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    put(pkg, "pkg/core/mean.py", "def mean(values):\n    return 0.0\n\nEPS = 0.0\n")
    git("commit", "-qam", "two")
    old, new = Tree.git(tmp_path / ".git", "HEAD~1"), Tree.git(tmp_path, "HEAD")
    simple = cut(old, "simple")
    assert simple([1.0]) != 0.0
    assert "def simple" in simple.source
    assert cut(new, "simple")([1.0]) == 0.0
    imported = Spec("mean", module="pkg.core.mean", how="import", bare_packages=("pkg",))
    assert load(imported, old)([1.0]) == 1 / 1.5
    assert load(imported, new)([1.0]) == 0.0
    with pytest.raises(CouldNotLoad, match="git rev-parse"):
        Tree.git(tmp_path, "nosuch")


def test_the_loaders_run_as_one_text_without_trimtab(pkg: Tree, tmp_path: Path) -> None:
    script = tmp_path / "run_validation.py"
    ending = f"b = load(Spec('simple', file='pkg/loss.py'), Tree.folder({str(pkg.root)!r}))\nprint(b([1.0, 2.0]))\n"
    script.write_text(f"{standalone()}\n\n{ending}")
    done = subprocess.run([sys.executable, "-I", "-S", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(3.0 / 2.5 * 2 + 0.5), done.stderr


def test_made_shadows_properties_and_abstract_methods() -> None:
    from abc import ABC, abstractmethod

    class Shape(ABC):
        @property
        def size(self) -> int:
            raise RuntimeError

        @abstractmethod
        def area(self) -> int: ...

        def both(self) -> int:
            return self.size + 1

    assert made(Shape, size=2).both() == 3
    assert Shape.__abstractmethods__


def test_stubs_touched_while_a_name_is_defined_are_not_used_by_the_boundary(pkg: Tree) -> None:
    text = (
        "import heavy_absent\n\n@heavy_absent.remote(1)\ndef part():\n    return 1\n\ndef whole():\n    return part()\n"
    )
    put(pkg, "pkg/late.py", text)
    whole = load(Spec("whole", file="pkg/late.py"), pkg)
    assert whole() == 1
    assert list(whole.stubs) == ["heavy_absent"]
    assert whole.stubs_used == []


def test_given_parts_of_a_present_module_leave_the_rest_of_it(pkg: Tree) -> None:
    body = "def joined(a):\n    return where.join(a, sep, where.basename(a))\n"
    put(pkg, "pkg/paths.py", f"import os.path as where\nfrom os import sep\n{body}")
    joined = load(Spec("joined", file="pkg/paths.py"), pkg, {"os.path.join": lambda *parts: parts})
    assert joined("x/y") == ("x/y", "/", "y")


def test_a_package_without_init_spread_over_two_folders_is_one(tmp_path: Path) -> None:
    tree = Tree.folder(tmp_path)
    put(tree, "src/spread/rl/__init__.py", "")
    put(
        tree,
        "src/spread/rl/loss.py",
        "from spread.configs.loss import SCALE\nfrom ..near import ONE\n\ndef f():\n    return SCALE + ONE\n",
    )
    put(tree, "src/spread/near.py", "ONE = 1\n")
    put(tree, "packages/configs/src/spread/configs/loss.py", "SCALE = 4\n")
    file, roots = "src/spread/rl/loss.py", ("src", "packages/configs/src")
    assert load(Spec("f", file=file), tree)() == 5
    assert load(Spec("f", file=file, roots=roots, how="import"), tree)() == 5


# ------------------------------------------------------------------------------------------------------------- archives


def archive_of(*members: tuple[str, bytes, str]) -> bytes:
    """A tar archive of (name, type, link target); files hold their own name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = len(name) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(name.encode()))
    return written.getvalue()


FILE, LINK, HARD, PIPE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


@pytest.fixture(params=["this Python's filter", "a Python without one"])
def any_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2, which Debian 12 has, extracts without a filter."""
    if request.param == "a Python without one" and hasattr(tarfile, "data_filter"):
        monkeypatch.delattr(tarfile, "data_filter")
        plain = tarfile.TarFile.extract
        monkeypatch.setattr(tarfile.TarFile, "extract", lambda self, member, path: plain(self, member, path))


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default")
@pytest.mark.usefixtures("any_python")
def test_an_archive_is_unpacked_with_its_links(tmp_path: Path) -> None:
    unpack(archive_of(("a/b.py", FILE, ""), ("a/c.py", LINK, "b.py"), ("d.py", HARD, "a/b.py")), tmp_path)
    assert [(tmp_path / name).read_text() for name in ("a/b.py", "a/c.py", "d.py")] == ["a/b.py"] * 3


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default")
@pytest.mark.usefixtures("any_python")
@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("../a.py", FILE, "")], r"'../a.py' in the archive lies outside its folder"),
        ([("/a.py", FILE, "")], r"'/a.py' in the archive lies outside its folder"),
        ([("a", LINK, "/etc")], "is a link to '/etc', outside its folder"),
        ([("a/b", LINK, "../../c")], r"is a link to '../../c', outside"),
        ([("a", HARD, "../b")], r"is a link to '../b', outside"),
        ([("a", PIPE, "")], "is a device or a pipe"),
        ([("x/y/a", LINK, "../.."), ("x/y/a/../../../b.py", FILE, "")], "b.py' in the archive lies outside its folder"),
    ],
)
def test_a_member_that_leads_out_of_its_folder_is_refused(
    members: list[tuple[str, bytes, str]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CouldNotLoad, match=said):
        unpack(archive_of(*members), tmp_path / "in" / "here")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("how", ["import", "cut"])
def test_a_target_is_loaded_in_a_scratch_folder_and_called_in_yours(
    how: Literal["import", "cut"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "beside_me.py").write_text("HERE = 1\n")
    tree = Tree.folder(tmp_path)
    text = "import os\nfrom pathlib import Path\nimport beside_me\nMADE = Path('log.txt').write_text('made')\n"
    put(tree, f"logs_{how}/core.py", text + "def where(x):\n    return x * MADE * beside_me.HERE, os.getcwd()\n")
    put(tree, f"logs_{how}/bad.py", "raise RuntimeError('no')\n")
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in an interactive session
    before = list(sys.path)
    where = load(Spec("where", file=f"logs_{how}/core.py", how=how), tree)
    with pytest.raises(CouldNotLoad):
        load(Spec("nothing", file=f"logs_{how}/bad.py", how=how), tree)
    assert where(1) == (4, str(mine))
    assert (Path.cwd(), sys.path) == (mine, before)
    assert [path.name for path in mine.iterdir() if path.suffix != ""] == ["beside_me.py"]
