"""Run the README's two commands on every Python that we say we run on, each as a stranger would run them.

    python3 scripts/matrix.py                     every entry, one after the other; about 10 minutes each on two cores
    python3 scripts/matrix.py --only 3.12 busy    some of them
    python3 scripts/matrix.py --list              the entries, and which Python each one found here
    python3 scripts/matrix.py --python 3.13=/path/to/python

An entry is a clean clone of the last commit in an empty environment: a PATH of system folders, a HOME of its own, and
of your variables only those that say how this machine reaches its package index. It runs `make train` and `make test`.
"busy" runs `make test` beside eight loops that never rest. The clone is deleted afterwards; its logs stay. Every
finished entry is a row of matrix.md in the scratch folder, together with the rows of earlier calls.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
REACHES_THE_INDEX = re.compile(r"PIP_.*|UV_.*|.*_proxy|.*_PROXY|SSL_CERT_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE")
BUSY_LOOPS = 8
COLUMNS = ("entry", "python", "torch", "make train", "make test", "tests", "commit")


@dataclass(frozen=True)
class Entry:
    """What to run, with which Python (a version, or "system" for the system's own) and which build of torch."""

    name: str
    python: str
    torch_build: str = "auto"
    does_train: bool = True
    is_busy: bool = False


ENTRIES = (
    Entry("system-cuda", "system", torch_build="cuda"),
    Entry("3.11", "3.11"),
    Entry("3.12", "3.12"),
    Entry("3.13", "3.13"),
    Entry("busy", "3.11", does_train=False, is_busy=True),
)


def find_python(wanted: str, named: dict[str, str]) -> str | None:
    """The Python for a version: the one named on the command line, one on the PATH, or pyenv's newest."""
    if wanted in named:
        return named[wanted]
    if wanted == "system":
        return shutil.which("python3", path=SYSTEM_PATH)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    built = sorted(
        pyenv.glob(f"{wanted}.*/bin/python"), key=lambda path: [*map(int, re.findall(r"\d+", path.parts[-3]))]
    )
    return str(built[-1]) if built else shutil.which(f"python{wanted}")


def empty_environment(entry: Entry, python: str, scratch: Path) -> dict[str, str]:
    """All that the two commands get to see. Downloads are shared between entries."""
    home = scratch / entry.name / "home"
    home.mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if REACHES_THE_INDEX.fullmatch(name)}
    return {
        **kept, "PATH": SYSTEM_PATH, "HOME": str(home), "PYTHON": python, "TORCH_BUILD": entry.torch_build,
        "PIP_CACHE_DIR": str(scratch / "pip-cache"), "UV_CACHE_DIR": str(scratch / "uv-cache"),
    }  # fmt: skip


def run_command(words: list[str], folder: Path, environment: dict[str, str], log: Path) -> tuple[int, float]:
    """Exit code and seconds of one command; what it says goes to its log."""
    started = time.monotonic()
    with log.open("w") as out:
        done = subprocess.run(words, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
    return done.returncode, time.monotonic() - started


def run_entry(entry: Entry, python: str, scratch: Path) -> dict[str, str]:
    """One row of the table."""
    shutil.rmtree(scratch / entry.name, ignore_errors=True)
    environment = empty_environment(entry, python, scratch)
    clone = scratch / entry.name / "trimtab"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    logs = scratch / "logs"
    logs.mkdir(exist_ok=True)
    row = dict.fromkeys(COLUMNS, "not run") | {"entry": entry.name}
    row["commit"] = said(["git", "-C", str(clone), "rev-parse", "--short", "HEAD"])
    for command in ("train", "test") if entry.does_train else ("test",):
        log = logs / f"{entry.name}-{command}.log"
        print(f"{entry.name}: make {command} ... (log: {log})", flush=True)
        loops = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS * entry.is_busy)
        ]
        try:
            code, seconds = run_command(["make", command], clone, environment, log)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        row[f"make {command}"] = f"{seconds:.0f} s, exit {code}"
        print(f"{entry.name}: make {command}: {row[f'make {command}']}", flush=True)
        if command == "test":
            row["tests"] = count_tests(log.read_text(errors="replace"))
    of_the_clone = str(clone / ".venv/bin/python")
    row["python"] = said([of_the_clone, "-c", "import platform; print(platform.python_version())"])
    row["torch"] = said([of_the_clone, "-c", "import torch; print(torch.__version__)"])
    shutil.rmtree(scratch / entry.name)
    return row


def said(words: list[str]) -> str:
    """What a command prints, or a dash when it cannot."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "–"


def count_tests(log: str) -> str:
    """pytest's last line without its time: "3015 passed, 2 skipped"."""
    found = re.findall(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", log, re.M)
    return found[-1] if found else "no count; see the log"


def write_table(rows: Path, out: Path) -> str:
    """Every row that was ever written into this scratch folder, as Markdown, in the order of ENTRIES."""
    kept = [json.loads(path.read_text()) for e in ENTRIES if (path := rows / f"{e.name}.json").exists()]
    cells = [COLUMNS, ("---",) * len(COLUMNS), *([row[name] for name in COLUMNS] for row in kept)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in cells)
    out.write_text(text)
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[e.name for e in ENTRIES], choices=[e.name for e in ENTRIES])
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH", help="3.12=/path/to/python")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "trimtab-matrix")
    parser.add_argument("--list", action="store_true", help="say which Python each entry found, and run nothing")
    return parser.parse_args()


def main() -> int:
    told = arguments()
    named = dict(pair.split("=", 1) for pair in told.python)
    rows = told.scratch / "rows"
    is_red = False
    for entry in (e for e in ENTRIES if e.name in told.only):
        python = find_python(entry.python, named)
        if told.list or python is None:
            print(f"{entry.name}: {python or f'no Python {entry.python} here; name one with --python'}", flush=True)
            is_red |= python is None
            continue
        rows.mkdir(parents=True, exist_ok=True)
        row = run_entry(entry, python, told.scratch)
        row["entry"] = entry.name + ("" if entry.torch_build == "auto" else " (TORCH_BUILD=cuda)")
        is_red |= any("exit" in row[c] and not row[c].endswith("exit 0") for c in ("make train", "make test"))
        (rows / f"{entry.name}.json").write_text(json.dumps(row, indent=1))
    if rows.exists():
        print(write_table(rows, told.scratch / "matrix.md"), end="")
    return int(is_red)


if __name__ == "__main__":
    sys.exit(main())
