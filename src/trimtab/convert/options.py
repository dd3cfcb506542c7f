"""Options that know which of them were read: so that none is lost in silence."""

import csv
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trimtab.convert.given import Given
from trimtab.errors import ConfigError

Status = Literal["kept", "changed", "no equivalent", "outside", "unknown"]
"""kept: the same number; changed: the same thing in other words; no equivalent: part of the signal, and not here;
outside: no part of the signal (placement, files, logging); unknown: nobody here knows the name."""
MISSING: Any = object()


@dataclass(frozen=True)
class Told:
    """What became of one option."""

    given: Given
    status: Status
    note: str = ""


@dataclass
class Options:
    """The options of one configuration. `told` is filled while they are read."""

    framework: str
    given: dict[str, Given]
    told: dict[str, Told] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def get(self, key: str, default: Any, note: str = "", *, status: Status = "kept") -> Any:
        """The value of an option, or the framework's default. An option that says nothing (null) is the default."""
        one = self.given.get(key)
        if one is None:
            return default
        if not one.is_known:
            self.tell(key, "no equivalent", "its value is only known when the script runs; the default stands here")
            self.warnings.append(f"{key} = {one.value} is only known when it runs. Taken as {default!r}: put it in.")
            return default
        self.tell(key, status, note)
        return default if one.value is None else one.value

    def number(self, key: str, default: float | None, note: str = "", *, status: Status = "kept") -> Any:
        """As `get`, for a number."""
        found = self.get(key, default, note, status=status)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
            raise ConfigError(f"convert: {key} = {found!r} is not a number.")
        return found

    def switch(self, key: str, default: bool, note: str = "", *, status: Status = "kept") -> bool:
        """As `get`, for a switch."""
        found = self.get(key, default, note, status=status)
        if isinstance(found, int | str) and str(found).lower() in ("0", "1", "true", "false"):
            return str(found).lower() in ("1", "true")
        if not isinstance(found, bool):
            raise ConfigError(f"convert: {key} = {found!r} is not true or false.")
        return found

    def has(self, key: str) -> bool:
        return key in self.given

    def tell(self, key: str, status: Status, note: str = "") -> None:
        """Say what became of an option that was given. The first word stands; that it is lost is always said."""
        told = self.told.get(key)
        if key in self.given and (told is None or told.status == "kept" or status == "no equivalent"):
            self.told[key] = Told(self.given[key], status, note)

    def differs(self, key: str, note: str) -> None:
        """Say where what is written differs from what this option does there."""
        if key in self.given and self.told.get(key, Told(self.given[key], "kept")).status in ("kept", "changed"):
            self.told[key] = Told(self.given[key], "changed", note)

    def lost(self, key: str, note: str, warning: str) -> None:
        """Say that an option has no equivalent here, also at the top of the file."""
        self.tell(key, "no equivalent", note)
        self.warn(warning)

    def inert(self, key: str, why: str) -> None:
        """An option that is set and does nothing."""
        one = self.given.get(key)
        if one is None:
            return
        self.told[key] = Told(one, "no equivalent", f"inert: {why}")
        if one.value not in (None, False, 0, 0.0):
            self.warnings.append(f"{key} = {one.value} does nothing: {why}.")

    def warn(self, said: str) -> None:
        self.warnings.append(said)

    def rest(self, *, dotted: bool = False) -> None:
        """Every option that nobody has read: outside the signal by its family, or unknown. `dotted`: the framework's
        own options all have a dot, so a word without one belongs to another command of the script."""
        families = outside(self.framework)
        for names, reason in families_of("inert.tsv", self.framework):
            self._inert(names, reason)
        for names, reason in families_of("beside.tsv", self.framework):
            self._beside(names, reason)
        for key, one in self.given.items():
            if key in self.told:
                continue
            reason = next((why for start, why in families if key.startswith(start)), None)
            reason = "a flag of another command" if reason is None and dotted and "." not in key else reason
            self.told[key] = Told(one, "unknown" if reason is None else "outside", reason or "")

    def _unread(self, names: tuple[str, ...]) -> list[str]:
        """Options that nobody has read, by the patterns of their names."""
        return [key for key in self.given if key not in self.told and any(fnmatchcase(key, name) for name in names)]

    def _inert(self, names: tuple[str, ...], reason: str) -> None:
        """Tell of options that only another choice would read: they do nothing, one sentence for all."""
        found = self._unread(names)
        for key in found:
            self.tell(key, "no equivalent", f"inert: {reason}")
        said = [f"{key} = {self.given[key].value}" for key in found if self.given[key].value not in (None, False, 0)]
        if said:
            self.warn(f"{', '.join(said)} {'does' if len(said) == 1 else 'do'} nothing: {reason}.")

    def _beside(self, names: tuple[str, ...], reason: str) -> None:
        """Tell of parts of their signal that nothing here is made of; one that is off there is off here."""
        found = self._unread(names)
        on = [key for key in found if not _is_off(self.given[key].value)]
        for key in found:
            self.tell(key, "no equivalent" if key in on else "kept", reason if key in on else "off, as here")
        if on:
            said = ", ".join(f"{key} = {self.given[key].value}" for key in on)
            self.warn(f"{said} has no equivalent: {reason}.")


def _is_off(value: Any) -> bool:
    """Whether a value says that a part is off, or is a factor that changes nothing."""
    if isinstance(value, bool):
        return not value
    return value in (None, 0, 1, "disabled", "none", "policy_loss")


@cache
def families_of(file: str, framework: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Options by the patterns of their names, and a sentence about them. `beside.tsv` has parts of that framework's
    signal without an equivalent here, `inert.tsv` what only some other choice of it would read."""
    return tuple((tuple(row["names"].split()), row["reason"]) for row in _rows(file, framework))


def _rows(file: str, framework: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(file).open(encoding="utf-8", newline="") as held:
        return [row for row in csv.DictReader(held, delimiter="\t") if row["framework"] == framework]


@cache
def outside(framework: str) -> tuple[tuple[str, str], ...]:
    """How options begin that are no part of the signal, and what they are about; the longest come first."""
    rows = _rows("outside.tsv", framework)
    pairs = [(start, row["reason"]) for row in rows for start in row["begins"].split()]
    return tuple(sorted(pairs, key=lambda pair: -len(pair[0])))
