"""Dumped batches back from disk: the only place that reads them. safetensors and JSON; nothing is unpickled."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import ConfigError
from trimtab.lexicon import aliases
from trimtab.report.logs import refuse_unsafe
from trimtab.watch.flat import ROW_FIELDS, TOKEN_FIELDS
from trimtab.watch.folder import DUMP_FORMAT, DUMP_VERSION

FIELDS = frozenset({*TOKEN_FIELDS, *ROW_FIELDS, "mask", "ended", "scored", "value", "value_old", "token_reward"})
TOKENS = frozenset({*TOKEN_FIELDS, "mask", "value", "value_old", "token_reward"})
SKIPPED = frozenset({"gradient", "importance", "row", "length"})
"""What the watch saw of the trainer's own loss; a recipe computes it anew."""


@dataclass(frozen=True)
class Dumped:
    """Rows of one or more micro-batches: padded [rows, width] token fields, and one number per row."""

    fields: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    """What was translated, and what was left out."""


def dumped_files(path: Path, step: int) -> list[Path]:
    """The file itself; of a run folder every micro-batch and rank of that step."""
    if path.is_file():
        return [path]
    found = sorted(path.glob(f"watched/step_{step:06d}_rank_*_part_*.safetensors"))
    if not found:
        steps = sorted({int(file.name.split("_")[1]) for file in path.glob("watched/step_*.safetensors")})
        there = f"There are {', '.join(map(str, steps[:12]))}." if steps else "Watch with dump_every=N to write some."
        raise ConfigError(f"replay: {path} has no dumped batch of step {step}. {there}")
    return found


def read_dumped(files: Sequence[Path], framework: str | None = None) -> Dumped:
    """The rows of these files, one below the other. `framework`: whose names the tensors have; None: ours."""
    parts: list[dict[str, Tensor]] = []
    notes: dict[str, None] = {}
    for file in files:
        fields, said = _read(file, framework)
        parts.append(fields)
        notes |= dict.fromkeys(said)
    shared = set.intersection(*(set(part) for part in parts))
    width = max(part["mask"].shape[1] for part in parts)
    return Dumped({name: torch.cat([_widened(part[name], width) for part in parts]) for name in sorted(shared)},
                  tuple(notes))  # fmt: skip


def _read(file: Path, framework: str | None) -> tuple[dict[str, Tensor], list[str]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    refuse_unsafe(file, "replay")
    try:
        held = load(file.read_bytes())
    except SafetensorError as error:
        raise ConfigError(f"replay: {file} is no safetensors file ({error}), and only those are read here.") from error
    _check_version(file)
    fields, notes = _with_batch(held), list[str]()
    if framework is not None:
        fields, notes = _translated(fields, framework)
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        notes.append(f"{file.name}: left out, because no recipe reads them: {', '.join(unknown)}")
    fields = {name: values for name, values in fields.items() if name in FIELDS - SKIPPED}
    _check(file, fields, framework)
    return fields, notes


def _check_version(file: Path) -> None:
    about = file.with_suffix(".json")
    if not about.is_file():
        return
    said: Any = json.loads(about.read_text(encoding="utf-8"))
    if said.get("format") == DUMP_FORMAT and said.get("format_version") != DUMP_VERSION:
        raise ConfigError(
            f"replay: {file} has format version {said.get('format_version')}, and this trimtab reads {DUMP_VERSION}. "
            "Read it with the version that wrote it."
        )


def _with_batch(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was dumped for the whole generation batch (`batch.`), for the rows of this micro-batch."""
    fields = {name: values for name, values in held.items() if not name.startswith("batch.")}
    whole = {name.removeprefix("batch."): values for name, values in held.items() if name.startswith("batch.")}
    if "row" in fields and whole:
        size = len(next(iter(whole.values())))
        of = whole.get("row", torch.arange(size))
        place = {int(row): index for index, row in enumerate(of.tolist())}
        rows = [place.get(int(row), -1) for row in fields["row"].tolist()]
        if min(rows) >= 0:
            fields = {name: values[rows] for name, values in whole.items() if name != "row"} | fields
    return fields


def _translated(held: dict[str, Tensor], framework: str) -> tuple[dict[str, Tensor], list[str]]:
    known = {one.theirs: one for one in aliases() if one.framework.lower() == framework.lower() and one.kind == "field"}
    if not known:
        there = sorted({one.framework for one in aliases() if one.kind == "field"})
        raise ConfigError(f"replay: --from {framework} is not known. There are {', '.join(there)}.")
    fields: dict[str, Tensor] = {}
    notes: list[str] = []
    for theirs, values in held.items():
        one = known.get(theirs)
        ours = theirs if one is None else "mask" if one.ours == "trainable" else one.ours
        if one is not None:
            flips = one.note.startswith("ended = not")
            values = ~values.bool() if flips else values
            notes.append(f"{theirs} is read as {ours}" + (f" ({one.note})" if one.note else ""))
        fields.setdefault(ours, values)
    return fields, notes


def _check(file: Path, fields: dict[str, Tensor], framework: str | None) -> None:
    missing = [name for name in ("logp_current", "mask") if name not in fields]
    if missing:
        hint = "" if framework else " Name the framework whose names the tensors have: --from verl."
        raise ConfigError(
            f"replay: {file} holds no {' and no '.join(missing)}, so no loss can be computed. It holds "
            f"{', '.join(sorted(fields)) or 'nothing known'}.{hint}"
        )
    shape = tuple(fields["mask"].shape)
    for name, values in fields.items():
        fits = tuple(values.shape) == shape if name in TOKENS else values.shape[0] == shape[0]
        if not fits:
            raise ConfigError(
                f"replay: {file}: {name} has shape {list(values.shape)} beside a mask of {list(shape)}, so rows or "
                "tokens would be mixed up. Token fields are [rows, width] of the answer; others have one entry per row."
            )


def _widened(values: Tensor, width: int) -> Tensor:
    """Padded on the right; fields with one number per row stay."""
    if values.ndim < 2 or values.shape[1] == width:
        return values
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))
