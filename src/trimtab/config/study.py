"""The only place that reads a study's protocol: arms, seeds, metric, and what was expected before the first run.

A protocol is written, committed and hashed before anything runs. Each arm is the base run with its own keys on top.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, ValidationError, model_validator

from trimtab.config.number import Count, Natural
from trimtab.config.plain import read_toml
from trimtab.config.run import RunFile, parse_run
from trimtab.config.table import Table, sentences
from trimtab.errors import ConfigError, unknown_name

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Names a folder and a row of the table."""
RUN_KEYS = ("recipe", "signal", "off_policy_correction", "train")


class Expectation(Table):
    """What the mean of an arm over all seeds should be, said before it was measured."""

    arm: str
    """The arm it is about."""
    at_least: float | None = None
    """The mean is this or more."""
    at_most: float | None = None
    """The mean is this or less."""

    @model_validator(mode="after")
    def _says_something(self) -> "Expectation":
        if self.at_least is None and self.at_most is None:
            raise ConfigError(f"expect: nothing is expected of {self.arm!r}. Write at_least or at_most.")
        return self

    def __str__(self) -> str:
        low = [f">= {self.at_least:g}"] if self.at_least is not None else []
        return f"{self.arm} {' and '.join([*low, *([f'<= {self.at_most:g}'] if self.at_most is not None else [])])}"

    def holds(self, mean: float) -> bool:
        return (self.at_least is None or mean >= self.at_least) and (self.at_most is None or mean <= self.at_most)


class StudyFile(Table):
    """The protocol as it is written."""

    title: str
    """One line."""
    question: str
    """What the study should answer."""
    chosen: str
    """What was chosen before, how, and on which prompts: nothing reported may have been used for choosing."""
    metric: str = "held_out_accuracy"
    """A number of `summary.json`; the default is greedy accuracy on test prompts, looked at once, when a run ends."""
    seeds: Annotated[tuple[Natural, ...], Field(min_length=1)]
    """Every arm is run with each of them."""
    jobs: Count = 1
    """Runs at once, one thread each."""
    base: str | dict[str, Any] = Field(default_factory=dict)
    """What all arms share: the tables of a run file, or the name of one beside the protocol."""
    arms: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]
    """Each arm's own keys, as in a run file (`train.staleness = 0`), and `means`, a sentence about it."""
    expect: tuple[Expectation, ...] = ()
    """What is expected; the table says whether it was met."""

    @model_validator(mode="after")
    def _fits_together(self) -> "StudyFile":
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds: {list(self.seeds)} holds one twice, so it would count twice. Name each once.")
        for expectation in self.expect:
            if expectation.arm not in self.arms:
                raise ConfigError(unknown_name("expect", expectation.arm, list(self.arms)))
        return self


@dataclass(frozen=True)
class Arm:
    """One way to run: its name, what it means, and the run file it comes to."""

    name: str
    means: str
    table: dict[str, Any]
    run: RunFile


@dataclass(frozen=True)
class Protocol:
    """A study before its first run. `sha256` is what `sha256sum FILE` prints."""

    path: Path
    sha256: str
    base_sha256: str | None
    """Of the base run file, where the protocol names one."""
    study: StudyFile
    arms: tuple[Arm, ...]


def load_study(path: Path) -> Protocol:
    """Read a protocol; every arm is resolved and checked before anything runs."""
    table = read_toml(path)
    try:
        study = StudyFile.model_validate(table)
    except ValidationError as error:
        raise ConfigError(sentences(str(path), error, StudyFile)) from error
    base, base_sha256 = _base(study.base, path)
    arms = tuple(_arm(name, own, base, path) for name, own in study.arms.items())
    return Protocol(path, _sha256(path), base_sha256, study, arms)


def _base(base: str | dict[str, Any], path: Path) -> tuple[dict[str, Any], str | None]:
    if isinstance(base, dict):
        return base, None
    file = path.parent / base
    return read_toml(file), _sha256(file)


def _arm(name: str, own: Mapping[str, Any], base: Mapping[str, Any], path: Path) -> Arm:
    where = f"{path}, arm {name}"
    unknown = sorted(own.keys() - {*RUN_KEYS, "means"})
    if unknown:
        raise ConfigError(f"{where}: there is no key {unknown[0]!r}. Known here: means, {', '.join(RUN_KEYS)}.")
    table = _merged(base, {key: value for key, value in own.items() if key != "means"})
    run = parse_run(table, where)
    given = run.train.model_fields_set & {"seed", "run_dir"}
    if given:
        raise ConfigError(f"{where}: sets train.{min(given)}, which the study gives to every run. Leave it out.")
    if run.train.runtime == "inline" and run.train.threads > 1:
        raise ConfigError(f"{where}: train.threads is {run.train.threads}, so runs side by side would wait for each "
                          "other and equal seeds give other numbers. Leave it at 1.")  # fmt: skip
    return Arm(name, str(own.get("means", "")), table, run)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are joined key by key; anything else of the arm takes the place of the base's."""
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(cast("dict[str, Any]", merged[key]), cast("dict[str, Any]", value))
        else:
            merged[key] = value
    return merged


def toml_text(table: Mapping[str, Any]) -> str:
    """Plain tables as TOML with dotted keys, one per line; `read_toml` gives the same tables back."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in _flat(table))


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{before}{_key(key)}"
        lines += (
            _flat(cast("dict[str, Any]", value), f"{name}.") if isinstance(value, dict) and value else [(name, value)]
        )
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return f"{{{', '.join(f'{_key(key)} = {_toml(one)}' for key, one in inner.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in cast('list[Any]', value))}]"
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
