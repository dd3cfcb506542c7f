"""The exception tree: the only place that defines what Trimtab raises.

    TrimtabError
    ├── SignalError       a batch, a formula or a recipe that has no defined meaning
    ├── ConfigError       a run file or an override that cannot be read as written
    ├── EngineError       a sampler that failed
    │   └── StaleWeights  a sampler that holds other parameters than it says
    ├── CheckpointError   a checkpoint that is damaged or belongs to another run
    ├── DiskError         a file or folder that the system does not let us write
    ├── AdapterError      another framework's function that could not be bound
    └── MissingExtra      a feature whose optional packages are not installed

Every message reads: where, what is wrong with the value and index, so what, what to do.
A finding of the sentinel is data, never an exception.
"""

import difflib
from collections.abc import Iterable


class TrimtabError(ValueError):
    """Anything Trimtab refuses to do."""


class SignalError(TrimtabError):
    """The training signal is undefined for this input."""


class ConfigError(TrimtabError):
    """The configuration does not say something we can run."""


class EngineError(TrimtabError):
    """The sampling engine failed."""


class StaleWeights(EngineError):
    """The sampling engine holds other parameters than its version says."""


class CheckpointError(TrimtabError):
    """A checkpoint is not what was written, or not of this run."""


class DiskError(TrimtabError):
    """A file or folder cannot be written."""


class AdapterError(TrimtabError):
    """A function of another framework could not be bound."""


class MissingExtra(TrimtabError):
    """An optional package is needed and is not installed."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """(did you mean 'x'?), or nothing."""
    lowered = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def unknown_name(where: str, name: str, choices: list[str]) -> str:
    """The message for a name nobody knows: the nearest match first, then all choices.

    >>> unknown_name("recipe", "dappo", ["dapo", "grpo"])
    "recipe: no entry is called 'dappo'; did you mean 'dapo'? There are: dapo, grpo."
    """
    near = difflib.get_close_matches(name.lower(), [choice.lower() for choice in choices], n=1, cutoff=0.5)
    found = next((choice for choice in choices if near and choice.lower() == near[0]), None)
    hint = f"; did you mean {found!r}?" if found else "."
    return f"{where}: no entry is called {name!r}{hint} There are: {', '.join(choices)}."
