"""What a script hands to its trainer: bash itself says so, in a cage where no command can run.

A restricted bash reads the script with an empty search path. Each command that it would start is not found, and its
words are written down instead. So variables, arrays, defaults and loops are bash's own, and no part of the converter
takes part in the reading. Redirections, other files and changes of folder are refused by the cage as well.
"""

import re
import shutil
import subprocess
from pathlib import Path

PREAMBLE = r"""
command_not_found_handle() { builtin printf '%s\0' "$@" $'\1' >&3; return 0; }
set() { return 0; }
exit() { return 0; }
exec() { "$@"; }
cd() { return 0; }
pwd() { builtin printf '%s' /folder; }
sleep() { return 0; }
wait() { return 0; }
ulimit() { return 0; }
source() { return 0; }
.() { return 0; }
uname() { builtin printf '%s' Linux; }
nproc() { builtin printf '%s' 8; }
enable -n kill suspend logout fc bind trap read
PATH=/nowhere
SECONDS_LEFT=5
"""
"""Words of the script that would end it, wait, or leave it. `set -u` would stop at every variable of the user's own."""
REDIRECTIONS = re.compile(r"(?<![<>&$\w\[])(?:\d|&)?>>?\s*(?!&)(?:\"[^\"]*\"|'[^']*'|[^\s;|&()]+)")


class NoShell(Exception):
    """bash is not here, or is too old to be caged."""


def commands(text: str) -> list[list[str]]:
    """The words of every command that this script would start."""
    bash = shutil.which("bash")
    if bash is None:
        raise NoShell("bash is not installed")
    text = re.sub(r"\$\{(\w+):?\?[^}]*\}", r"${\1:-given}", text)  # what the user must set
    body = "\n".join(REDIRECTIONS.sub(" ", line) for line in text.splitlines())
    body = re.sub(r"\|\s*tee\b[^\n;&|]*", " ", body)
    caged = f"{PREAMBLE}\nbuiltin set -r\n{body}\n"
    done = subprocess.run(
        [bash, "--noprofile", "--norc", "-c", f'exec 3>&1 1>&2\n{PREAMBLE}\nbuiltin eval "$0"', caged],
        input="", capture_output=True, text=True, timeout=20, check=False, cwd="/",
        env={"HOME": "/home/user", "USER": "user", "PATH": "/nowhere"},
    )  # fmt: skip
    return [[*part.split("\0")[:-1]] for part in done.stdout.split("\1\0") if part]


def handed(text: str, entry: str, *, depth: int = 0) -> list[str]:
    """The words behind the trainer's name in the commands that start it."""
    found: list[str] = []
    for words in commands(text):
        for place, word in enumerate(words):
            if place and words[place - 1] in ("-c", "-lc") and depth < 2:  # bash -c "python train.py …"
                found += handed(word, entry, depth=depth + 1)
            elif re.search(entry, word) and not word.startswith("--") and not re.search(r"\s", word):
                found += words[place + 1 :]
                break
    return found


def options(words: list[str]) -> dict[str, str | list[str]]:
    """`a.b=1`, `+a.b=1`, `--a 1 2` and `--a=1` by name; the last one of a name stands."""
    found: dict[str, str | list[str]] = {}
    flag: str | None = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            flag = None if equals else name
            found[name] = value if equals else []
        elif flag is not None and not re.match(r"^[+~]*[\w.@/-]*\.[\w.@/-]+=", word):
            held = found[flag]
            found[flag] = [*(held if isinstance(held, list) else []), word]
        elif named := re.match(r"^[+~]*([\w.@/-]+)=(.*)$", word, re.DOTALL):
            flag = None
            found[named[1]] = named[2]
    return found


def read(path: Path, entry: str) -> dict[str, str | list[str]]:
    """The options that this script hands to its trainer."""
    return options(handed(path.read_text(encoding="utf-8"), entry))
