"""The only place that reads another framework's log: JSON lines, CSV, a trainer's state, or TensorBoard files.

Names are translated by the lexicon. Nothing is guessed: a name with no entry, or with two meanings, is listed and left
out. Nothing is unpickled.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trimtab.errors import ConfigError
from trimtab.lexicon import Alias, aliases
from trimtab.report.data import Json, RunData, number

FRAMEWORKS = {"trl": "TRL", "verl": "verl"}
STEPS = ("step", "global_step", "training/global_step", "Step", "_step", "trainer/global_step")
"""What a step is called: HF's and verl's own logs, TensorBoard, exports of W&B."""
ALSO = {"reward/episode_mean": "rollout/reward_mean", "logratio_engine/token_abs_mean": "drift/engine_abs_mean"}
"""Names under which the page draws the same number."""
TRAINER = {
    "TRL": {"grad_norm": "train/grad_norm"},
    "verl": {"actor/grad_norm": "train/grad_norm", "perf/throughput": "time/tokens_per_second"},
}
"""Numbers of the trainer, which the lexicon of the signal does not hold."""
CORRECTS = ("importance", "kept/")
"""Metrics that a framework logs only while it corrects."""
COMPLEMENT = "1 - it"
OURS = "trimtab/"
UNSAFE = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")


@dataclass(frozen=True)
class Known:
    """One of their names that we know, e.g. TRL's `frac_reward_zero_std` as our `constant_groups/group_fraction`."""

    theirs: str
    ours: str
    note: str
    count: int


def read_log(path: Path, framework: str) -> RunData:
    """A foreign log as the pages read runs. `config["log"]` says what it holds."""
    if framework not in FRAMEWORKS:
        raise ConfigError(f"report: --from {framework} is not known. There are {', '.join(FRAMEWORKS)}.")
    name = FRAMEWORKS[framework]
    lines = _by_step(_read(path))
    known, unknown = _translated(lines, name)
    found = {theirs: alias for theirs, alias in known.items() if alias is not None}
    if not found:
        seen = ", ".join(sorted(unknown)[:6]) or "nothing with a step"
        raise ConfigError(
            f"report: {path} holds {seen}, and none of it is a name that {name} logs, so a page would say nothing. "
            f"Give its own log: {_where(framework)}."
        )
    metrics = tuple({"step": step, **dict(_ours(line, found, name))} for step, line in lines.items())
    held = [
        Known(theirs, one.ours.replace("*", _label(name)), one.note, sum(theirs in line for line in lines.values()))
        for theirs, one in sorted(found.items())
    ]
    log: Json = {
        "framework": framework, "name": name, "file": path.name, "known": [vars(one) for one in held],
        "unknown": sorted(unknown), "unclear": sorted(theirs for theirs, alias in known.items() if alias is None),
    }  # fmt: skip
    corrects = [
        {"does": "correct", "formula": theirs, "settings": {"level": "token"}}
        for theirs, one in found.items()
        if one.ours.startswith(CORRECTS)
    ]
    recipe: Json = {"name": f"a {name} run", "parts": corrects}
    return RunData(
        name=path.name, config={"recipe": recipe, "task": path.stem, "log": log}, manifest={},
        summary={"steps": max(lines) + 1}, metrics=metrics, samples=(), transcripts=(), diagnostics=(), notes=(),
    )  # fmt: skip


def refuse_unsafe(path: Path, what: str) -> None:
    """A pickle runs code when it is loaded. Say how to export it in a process of one's own."""
    with path.open("rb") as file:
        head = file.read(2)
    if path.suffix not in UNSAFE and head != b"PK" and not (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"):
        return
    raise ConfigError(
        f"{what}: {path} is a pickle, and loading one runs the code inside, so it is not loaded here. {exporter(path)}"
    )


def exporter(path: Path) -> str:
    """Three lines for the user's own process."""
    return (
        "If you trust it, export its tensors in a process of your own:\n"
        "    import torch; from safetensors.torch import save_file\n"
        f'    held = torch.load("{path.name}", weights_only=False)\n'
        "    save_file({k: v.contiguous() for k, v in held.items() if torch.is_tensor(v)}, "
        f'"{path.stem}.safetensors")'
    )


def _where(framework: str) -> str:
    if framework == "trl":
        return "trainer_state.json of a checkpoint, a TensorBoard folder, or one JSON object per line with `step`"
    return "the file of trainer.logger=['file'], a TensorBoard folder, or a CSV with a column `step`"


def _read(path: Path) -> Iterable[Json]:
    if path.is_dir():
        return _tensorboard(path)
    if not path.is_file():
        raise ConfigError(f"report: there is no file {path}.")
    refuse_unsafe(path, "report")
    if path.name.startswith("events.out.tfevents"):
        return _tensorboard(path)
    if path.suffix == ".csv":
        return _csv(path)
    return _json(path)


def _json(path: Path) -> Iterator[Json]:
    """One object per line; or one document: a list, or HF's trainer state."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        whole: Any = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and isinstance(held := cast(Json, whole).get("log_history"), list):
        whole = cast("list[object]", held)
    if isinstance(whole, list):
        yield from (cast(Json, line) for line in cast("list[object]", whole) if isinstance(line, dict))
        return
    for row in text.splitlines():
        try:
            line: Any = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict):
            held = cast(Json, line)
            nested = held.get("data")
            yield {**held, **cast(Json, nested)} if isinstance(nested, dict) else held


def _csv(path: Path) -> Iterator[Json]:
    """A column per metric; W&B writes `run name - metric`."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            yield {str(name).rpartition(" - ")[2]: _value(text) for name, text in row.items() if name}


def _value(text: object) -> object:
    try:
        return float(str(text))
    except ValueError:
        return text


def _tensorboard(path: Path) -> Iterator[Json]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise ConfigError(
            f"report: {path} needs TensorBoard to be read. pip install 'trimtab[tensorboard]'."
        ) from error
    folders = sorted({file.parent for file in path.rglob("events.out.tfevents*")}) if path.is_dir() else [path]
    if not folders:
        raise ConfigError(f"report: {path} is a folder without TensorBoard files (events.out.tfevents…).")
    for folder in folders:
        held: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        for tag in held.Tags()["scalars"]:
            yield from ({"step": event.step, str(tag): event.value} for event in held.Scalars(tag))


def _by_step(lines: Iterable[Json]) -> dict[int, dict[str, float]]:
    """The numbers of each step; a later line of a step adds to it."""
    found: dict[int, dict[str, float]] = {}
    for line in lines:
        step = next((number(line[name]) for name in STEPS if name in line), None)
        if step is not None:
            numbers = {name: value for name, text in line.items() if (value := number(text)) is not None}
            found.setdefault(int(step), {}).update({name: v for name, v in numbers.items() if name not in STEPS})
    if not found:
        raise ConfigError(f"report: no line has a step under any of {', '.join(STEPS)}, so nothing can be drawn.")
    return dict(sorted(found.items()))


def _translated(lines: dict[int, dict[str, float]], framework: str) -> tuple[dict[str, Alias | None], set[str]]:
    """Their names with our meaning, None where there are two; and the names nobody knows."""
    table: dict[str, list[Alias]] = {}
    for one in aliases():
        if one.framework == framework and one.kind == "metric":
            table.setdefault(one.theirs, []).append(one)
    for theirs, ours in TRAINER[framework].items():
        table[theirs] = [Alias(theirs, framework, "metric", ours)]
    known: dict[str, Alias | None] = {}
    unknown: set[str] = set()
    for theirs in {name for line in lines.values() for name in line}:
        if theirs.startswith(OURS) or f"/{OURS}" in theirs:
            known[theirs] = Alias(theirs, framework, "metric", theirs.rpartition(OURS)[2])
            continue
        meant = table.get(theirs) or table.get(theirs.removeprefix("train/"))
        if meant is None:
            unknown.add(theirs)
        else:
            known[theirs] = meant[0] if len(meant) == 1 else None
    return known, unknown


def _ours(line: dict[str, float], known: dict[str, Alias], framework: str) -> Iterator[tuple[str, float]]:
    for theirs, value in line.items():
        if (one := known.get(theirs)) is not None:
            ours = one.ours.replace("*", _label(framework))
            number_here = 1 - value if one.note.startswith(COMPLEMENT) else value
            yield ours, number_here
            if ours in ALSO:
                yield ALSO[ours], number_here


def _label(framework: str) -> str:
    return f"{framework}'s loss"
