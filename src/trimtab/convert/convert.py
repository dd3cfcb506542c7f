"""From another framework's configuration to a run file of ours: what became of every option is in its comments."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.config import parse_run
from trimtab.config.recorded import NOT_RECORDED
from trimtab.convert.given import Given
from trimtab.convert.options import Options, Status, Told
from trimtab.convert.source import read
from trimtab.convert.table import as_toml, signal_table
from trimtab.errors import ConfigError, TrimtabError, unknown_name
from trimtab.signal import Recipe

FRAMEWORKS = {
    "verl": "verl 0.9.1", "trl": "TRL 1.16", "skyrl": "SkyRL 0.3", "slime": "slime main", "areal": "AReaL 1.0.4",
    "openrlhf": "OpenRLHF 0.11.2", "nemo_rl": "NeMo-RL main", "prime_rl": "prime-rl main",
}  # fmt: skip
"""Each one's module, and at which version its options were read."""
ORDER: tuple[Status, ...] = ("kept", "changed", "no equivalent", "unknown", "outside")
HEADS: dict[Status, str] = {
    "kept": "Kept as they are",
    "changed": "The same thing in other words",
    "no equivalent": "NOT in this file: no equivalent, or inert",
    "unknown": "NOT in this file: nobody here knows these names",
    "outside": "Not part of the training signal",
}
BASE = "reinforce"
"""Every field is written out, so the recipe underneath decides nothing."""


@dataclass(frozen=True)
class Converted:
    """A recipe, settings of the trainer, and what became of every option."""

    framework: str
    recipe: Recipe
    train: Mapping[str, Any]
    told: tuple[Told, ...]
    warnings: tuple[str, ...]

    @property
    def toml(self) -> str:
        """The run file."""
        return "\n".join([*self._head(), *self._body(), *self._options()]) + "\n"

    def count(self, status: Status) -> int:
        return sum(one.status == status for one in self.told)

    def _head(self) -> list[str]:
        lines = [
            f"# Made by `trimtab convert` from a configuration of {self.framework}. {len(self.told)} options were read:"
        ]
        lines.append("# " + ", ".join(f"{self.count(status)} {status}" for status in ORDER) + ".")
        lines += ["#", "# Look at these first:"] if self.warnings else []
        return [*lines, *(f"#  - {said}" for said in self.warnings), ""]

    def _body(self) -> list[str]:
        lines = [f'recipe = "{BASE}"  # every field is written below, so nothing of it is left', "", "[signal]"]
        lines += [f"{name} = {as_toml(value)}" for name, value in signal_table(self.recipe).items()]
        return [*lines, "", "[train]", *(f"{name} = {as_toml(value)}" for name, value in self.train.items())]

    def _options(self) -> list[str]:
        lines: list[str] = []
        for status in ORDER:
            chosen = [one for one in self.told if one.status == status]
            lines += ["", f"# {HEADS[status]}:"] if chosen else []
            lines += [f"#   {_written(one)}" for one in chosen]
        return lines


def _written(one: Told) -> str:
    value = " ".join(str(one.given.value).split())
    place = f" (line {one.given.line})" if one.given.line else ""
    return f"{one.given.key} = {value[:80]}{place}" + (f": {one.note}" if one.note else "")


def convert(framework: str, source: str | Path = "", flags: tuple[str, ...] = ()) -> Converted:
    """Read a configuration of this framework. Nothing of it is executed."""
    wanted = framework.lower().replace("-", "_")
    if wanted not in FRAMEWORKS:
        raise ConfigError(unknown_name("convert: frameworks", framework, sorted(FRAMEWORKS)))
    called = FRAMEWORKS[wanted]
    found = read(source, flags)
    if not found:
        raise ConfigError(f"convert: no option was found in {source or 'the flags'}, so there is nothing to convert.")
    options = Options(wanted, {one.key: one for one in found})
    try:
        built = importlib.import_module(f"trimtab.convert.{wanted}").read(options)
        made = built.recipe()
    except ConfigError:
        raise
    except TrimtabError as error:
        raise ConfigError(f"convert: these options together are not a signal that runs here. {error}") from error
    _tell_doubts(options, found)
    _tell_votes(options, made, called)
    _tell_unsupplied(options, made)
    train = {key: value for key, value in built.train.items() if value is not None}
    told = Converted(called, made, train, tuple(options.told.values()), tuple(dict.fromkeys(options.warnings)))
    _ = parse_run({"recipe": BASE, "signal": signal_table(made), "train": train}, "convert")
    return told


def _tell_votes(options: Options, made: Recipe, called: str) -> None:
    """Our one difference in the order of things that no option names."""
    compares = made.whiten or made.normalize.formula.name != "normalize.raw"
    if compares and any(stage.part.formula.stage == "keep" for stage in made.stages_before_the_vote.values()):
        options.warn(
            "an answer that a correction rejects whole does not count in its group's baseline here, nor in whitening; "
            f"in {called} it does."
        )


def _tell_unsupplied(options: Options, made: Recipe) -> None:
    """Say what the recipe reads and a run cannot have: the recipe is theirs, and its batches have to be yours."""
    read_ = {*made.needs, *(name for one in made.parts() for name in one.formula.inputs)}
    for name, what in NOT_RECORDED.items():
        if name in read_:
            options.warn(
                f"The recipe reads {name}, {what}, and a run of `trimtab train` has none and is refused. Use the "
                "recipe in your own trainer (trimtab.loss)."
            )


def _tell_doubts(options: Options, found: list[Given]) -> None:
    """Options with several values: said first, or beside the option where it is no part of the signal or the run."""
    said: list[str] = []
    for key, one in {one.key: one for one in found}.items():
        values = list(dict.fromkeys(str(each.value) for each in found if each.key == key))
        doubts: list[tuple[str, str]] = []
        if len(values) > 1:
            doubts.append((key, f"is given with {len(values)} values, {', '.join(values[:4])}: the last one counts"))
        if one.depends:
            other = "" if one.other is None else f", in another it is {one.other}"
            doubts.append((f"{key} = {one.value}", f"is one branch of the script{other}. Check it"))
        told = options.told[key]
        if told.status == "outside":
            options.told[key] = replace(told, note="; ".join([told.note, *(doubt for _, doubt in doubts)]))
        else:
            said += [f"{what} {doubt}." for what, doubt in doubts]
    options.warnings[:0] = said
