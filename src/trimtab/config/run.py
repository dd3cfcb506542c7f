"""The run file: TOML and dotted overrides, read strictly. The only place that reads configuration from outside."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError, model_validator

from trimtab.config.correction import OffPolicyCorrection
from trimtab.config.plain import check_plain, parse_value, read_toml, shown
from trimtab.config.signal import SignalTable, build_recipe
from trimtab.config.table import Table, sentences
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, TrimtabError
from trimtab.signal import Recipe


class RunFile(Table):
    """One run: what is learned from (recipe, signal, off_policy_correction) and how it is trained (train)."""

    recipe: str = "start_async"
    """A recipe by name; a complete choice of the signal. `trimtab catalog` lists them. Unset beside an
    `off_policy_correction` block: `start_on_policy`, which corrects nothing by itself."""
    signal: SignalTable = SignalTable()
    """Fields of the recipe that are your own."""
    off_policy_correction: OffPolicyCorrection = OffPolicyCorrection()
    """SkyRL's block, key for key; its stages join the recipe's."""
    train: TrainSettings = TrainSettings()
    """The trainer."""

    @model_validator(mode="before")
    @classmethod
    def _block_needs_a_plain_recipe(cls, given: Any) -> Any:
        """The default recipe corrects both ratios already; a block of corrections asks for one that does not."""
        if isinstance(given, dict) and "recipe" not in given and given.get("off_policy_correction"):
            return {**cast("dict[str, Any]", given), "recipe": "start_on_policy"}
        return cast("dict[str, Any]", given)

    def build_recipe(self) -> Recipe:
        return build_recipe(self.recipe, self.signal, self.off_policy_correction)


def load_run(path: str | Path | None = None, overrides: tuple[str, ...] | list[str] = ()) -> RunFile:
    """Read a run file and dotted overrides (`train.steps=50`); overrides win."""
    table = read_toml(Path(path)) if path is not None else {}
    for override in overrides:
        _override(table, override)
    return parse_run(table, str(path) if path is not None else "override")


def parse_run(table: Mapping[str, Any], where: str = "run file") -> RunFile:
    """A run file from plain data; every problem is named with its key."""
    check_plain(dict(table), where)
    try:
        run = RunFile.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(sentences(where, error, RunFile, beside=("train", "signal"))) from error
    try:
        _ = run.build_recipe()
    except TrimtabError:
        raise
    except Exception as error:  # a formula of the user's own is imported here, and may raise anything
        raise ConfigError(
            f"{where}: the recipe cannot be built from [signal] ({type(error).__name__}: {error}). Look at the formula "
            "that it names, and at its settings."
        ) from error
    return run


def _override(table: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    where = f"override {shown(override)}"
    *parents, leaf = [part.strip() for part in key.split(".")]
    if not separator or not all((*parents, leaf)):
        raise ConfigError(f"{where}: is not key=value. Write for instance train.steps=50.")
    value = parse_value(text.strip(), where)
    place = table
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{where}: {parent} holds a value, not a table.")
        place = cast("dict[str, Any]", inner)
    place[leaf] = value
