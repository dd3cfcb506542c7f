"""`trimtab convert`: another framework's configuration as a run file."""

from pathlib import Path

from trimtab.convert import convert
from trimtab.errors import ConfigError


def run_convert(framework: str, source: str, flags: tuple[str, ...], out: Path | None) -> int:
    """Write or print the run file, and say on the terminal what was not carried over."""
    found = convert(framework, source, flags)
    if out is None:
        print(found.toml, end="")
        return 0
    if out.exists():
        raise ConfigError(f"convert: {out} exists already. Give another name with -o, or remove it.")
    _ = out.write_text(found.toml, encoding="utf-8")
    for said in found.warnings:
        print(f"- {said}")
    lost = found.count("no equivalent") + found.count("unknown")
    counts = f"{found.count('kept')} kept, {found.count('changed')} in other words, {lost} not carried over"
    whole = f"{len(found.told)} options of {found.framework}"
    print(f"{out}: {whole}: {counts}, {found.count('outside')} outside the signal.")
    print(f"Look at it with: trimtab explain {out}")
    return 0
