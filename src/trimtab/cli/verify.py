"""`trimtab check RUN`: hold the batches that a run dumped to the invariants of alignment and masks."""

import json
from pathlib import Path

from rich.table import Table

from trimtab.cli.console import plain_console


def is_run(target: str | None) -> bool:
    """Whether a target names the folder of a run."""
    return (
        target is not None and (Path(target) / "config.json").is_file() and (Path(target) / "manifest.json").is_file()
    )


def run_verify(folder: Path, output: str) -> int:
    """Show what was found; 0 if nothing is broken, 1 otherwise."""
    from trimtab.train.record.verify import INVARIANTS, verify_run

    found = verify_run(folder)
    if output == "json":
        print(json.dumps({
            "run": str(folder), "steps": list(found.steps), "sequences": found.sequences, "tokens": found.tokens,
            "skipped": list(found.skipped), "faults": [vars(fault) for fault in found.faults],
        }))  # fmt: skip
        return 1 if found.faults else 0
    console = plain_console()
    table = Table("invariant", "says", "batches", box=None, pad_edge=False)
    for name, invariant in INVARIANTS.items():
        broken = [fault for fault in found.faults if fault.invariant == name]
        said = "could not exercise" if name in found.skipped else f"broken in {len(broken)}" if broken else "holds"
        table.add_row(name, (invariant.__doc__ or "").strip().splitlines()[0], said)
    console.print(table)
    for fault in found.faults[:20]:
        console.print(f"step {fault.step} · {fault.invariant} · {fault.text}", highlight=False, markup=False)
    count = f"{len(found.steps)} batches, {found.sequences} sequences, {found.tokens} trainable tokens"
    console.print(f"{count}: {f'{len(found.faults)} invariants broken' if found.faults else 'nothing broken'}")
    return 1 if found.faults else 0
