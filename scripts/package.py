"""Build the wheel and the sdist, and try them as a stranger would:   make package

The wheel goes into an empty environment with its base dependencies and no extra. There the package must import and the
command line must answer. Every requirement of every extra must exist in the package index at the version that
constraints.txt pins. What is built lies in dist/ afterwards.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
NEEDED = (
    "src/trimtab/__init__.py", "src/trimtab/py.typed", "tests/conftest.py", "pyproject.toml", "README.md", "LICENSE",
    "CHANGELOG.md", "Makefile", "constraints.txt", "scripts/setup.sh", "docs/concepts.md",
)  # fmt: skip
JUNK = re.compile(r"(^|/)(\.venv|\.git|\.github|\.ci|runs|dist|__pycache__|\.[a-z_]*cache)(/|$)|\.pyc$")
ANSWERS = {
    "--help": "Keeps the training signal",
    "--version": "trimtab ",
    "catalog": "policy_loss.clipped",
    "explain dapo": "policy_loss.clipped",
}
"""What the command line must say without any extra."""


def build() -> tuple[Path, Path]:
    """Wheel and sdist, made anew."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], check=True, capture_output=True)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def look_into(wheel: Path, sdist: Path) -> list[str]:
    """What is missing from either, or should not be in it."""
    with tarfile.open(sdist) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    problems = [f"{sdist.name} lacks {name}" for name in NEEDED if name not in held]
    problems += [f"{sdist.name} holds {name}" for name in sorted(held) if JUNK.search(name)]
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    ours = {name for name in ours if not JUNK.search(name)}
    problems += [f"{wheel.name} lacks {name}" for name in sorted(ours - packed)]
    strays = sorted(name for name in packed - ours if ".dist-info/" not in name)
    return problems + [f"{wheel.name} holds {name}, which src does not" for name in strays]


def requirements(wheel: Path) -> list[Requirement]:
    """Everything that the wheel asks for, extras included; its extras of itself left out."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if ".dist-info/" in name])
        (info,) = Path(folder).glob("*.dist-info")
        of_wheel: Distribution = PathDistribution(info)
        asked = [Requirement(text) for text in of_wheel.requires or ()]
    return [one for one in asked if one.name != "trimtab"]


def look_up(asked: list[Requirement]) -> list[str]:
    """Requirements whose pin is absent, does not fit their range, or is not in the package index."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    problems: list[str] = []
    for name in sorted({canonicalize_name(one.name) for one in asked}):
        pin = pins.get(name)
        ranges = [one.specifier for one in asked if canonicalize_name(one.name) == name]
        if pin is None or not all(pin in one for one in ranges):
            problems.append(
                f"{name}: constraints.txt pins {pin}, and the package asks for {', '.join(map(str, ranges))}"
            )
            continue
        print(f"  {name} {pin}", flush=True)
        words = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", name]
        told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        if not re.search(rf"(?<![\w.]){re.escape(pin)}(?![\w.])", told):
            problems.append(f"{name}: the package index does not offer {pin}")
    return problems


def try_wheel(wheel: Path, scratch: Path) -> list[str]:
    """What does not work where only the wheel and its base dependencies are."""
    environment = os.environ | {"VENV": str(scratch / "venv"), "PACKAGE": str(wheel)}
    subprocess.run(["sh", str(ROOT / "scripts/setup.sh")], check=True, env=environment)
    python, command = scratch / "venv/bin/python", scratch / "venv/bin/trimtab"
    public = "import trimtab, trimtab.signal as s; [getattr(m, n) for m in (trimtab, s) for n in m.__all__]"
    calls = {f"python -c '{public}'": ([str(python), "-c", public], "")}
    calls |= {f"trimtab {words}": ([str(command), *words.split()], answer) for words, answer in ANSWERS.items()}
    problems: list[str] = []
    for label, (words, answer) in calls.items():
        done = subprocess.run(words, cwd=scratch, capture_output=True, text=True, check=False)
        is_fine = done.returncode == 0 and answer in done.stdout
        print(f"  {'fine' if is_fine else 'FAILS'}  {label}", flush=True)
        problems += [] if is_fine else [f"{label}: exit {done.returncode}: {(done.stderr or done.stdout)[-500:]}"]
    return problems


def main() -> int:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    print(f"package: building trimtab {version} ...", flush=True)
    wheel, sdist = build()
    problems = look_into(wheel, sdist)
    print("package: asking the package index for every requirement of every extra ...", flush=True)
    problems += look_up(requirements(wheel))
    with tempfile.TemporaryDirectory() as scratch:
        problems += try_wheel(wheel, Path(scratch))
    for problem in problems:
        print(f"package: {problem}", file=sys.stderr)
    if not problems:
        print(f"package: dist/{wheel.name} and dist/{sdist.name} are ready.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
