"""The exception tree: the only place that defines what Trimtab raises, and how it answers a word it does not know.

    TrimtabError
    ├── SignalError       a batch, a formula or a recipe that has no defined meaning
    ├── ConfigError       a run file or an override that cannot be read as written
    ├── EngineError       a sampler that failed
    │   └── StaleWeights  a sampler that holds other parameters than it says
    ├── RankError         another process of the same run is gone or silent
    ├── CheckpointError   a checkpoint that is damaged or belongs to another run
    ├── DiskError         a file or folder that the system does not let us write
    ├── AdapterError      another framework's function that could not be bound
    └── MissingExtra      a feature whose optional packages are not installed

Every message reads: where, what is wrong with the value and index, the consequence, what to do.
A finding of the sentinel is data, never an exception.
"""

import difflib
from collections.abc import Iterable

from trimtab.lexicon import meanings


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


class EngineGone(EngineError):
    """An engine is dead or out of reach. What it was asked for can be asked of another."""


class RankError(TrimtabError):
    """Ranks of one run have lost each other."""


class CheckpointError(TrimtabError):
    """A checkpoint is not what was written, or not of this run."""


class DiskError(TrimtabError):
    """A file or folder cannot be written."""


class AdapterError(TrimtabError):
    """A function of another framework could not be bound."""


class MissingExtra(TrimtabError):
    """An optional package is needed and is not installed."""


def closest(name: str, choices: Iterable[str]) -> str | None:
    """The choice a person most likely meant: letters in the wrong order come first, then the most alike.

    >>> closest("gpro", ["gspo", "grpo"])
    'grpo'
    """
    wanted = name.lower()
    known = list(choices)
    # "clip" means policy_loss.clipped: the last part of a dotted name counts as well as the whole.
    lowered = {choice.lower().rpartition(".")[2]: choice for choice in reversed(known)}
    lowered |= {choice.lower(): choice for choice in known}
    shuffled = [choice for choice in lowered if sorted(choice) == sorted(wanted)]
    near = shuffled or difflib.get_close_matches(wanted, list(lowered), n=1, cutoff=0.6)
    return lowered[near[0]] if near else None


def suggestion(name: str, choices: Iterable[str]) -> str:
    """What a name that nobody here knows may stand for: another framework's word, or a near spelling; or nothing.

    >>> suggestion("old_log_prob", ["logp_old", "logp_rollout"])
    "did you mean 'logp_old'? verl calls it 'old_log_prob'"
    >>> suggestion("logp_olld", ["logp_old", "logp_rollout"])
    "did you mean 'logp_old'?"
    """
    known = list(choices)
    found = meanings(name)
    here = [one for one in found if one.ours in known]
    if here:
        ours = here[0].ours
        who = [one.framework for one in here if one.ours == ours]
        return f"did you mean {ours!r}? {_joined(who)} {'calls' if len(set(who)) == 1 else 'call'} it {name!r}"
    match = closest(name, known)
    if match is not None and (not found or match.lower() == name.lower()):
        return f"did you mean {match!r}?"
    return "; ".join(dict.fromkeys(one.sentence for one in found))


def nearest(name: str, choices: Iterable[str]) -> str:
    """The suggestion in brackets, to stand after a name; or nothing."""
    said = suggestion(name, choices)
    return f" ({said})" if said else ""


def unknown_name(where: str, name: str, choices: list[str]) -> str:
    """The message for a name nobody knows: what it may stand for, then all choices.

    >>> unknown_name("recipe", "dappo", ["dapo", "grpo"])
    "recipe: no entry is called 'dappo'; did you mean 'dapo'? There are: dapo, grpo."
    """
    said = suggestion(name, choices)
    hint = f"; {said}" if said else ""
    stop = "" if hint.endswith("?") else "."
    return f"{where}: no entry is called {name!r}{hint}{stop} There are: {', '.join(choices)}."


def unknown_word(where: str, name: str, given: object, choices: Iterable[str]) -> str:
    """The message for a setting that holds a word outside its choices.

    >>> unknown_word("recipe", "not_ended", "supress", ("train", "suppress", "zero"))
    "recipe: not_ended = 'supress' is not possible (did you mean 'suppress'?). It is one of train, suppress, zero."
    """
    known = list(choices)
    hint = nearest(given, known) if isinstance(given, str) else ""
    return f"{where}: {name} = {given!r} is not possible{hint}. It is one of {', '.join(known)}."


def _joined(words: list[str]) -> str:
    unique = list(dict.fromkeys(words))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} and {unique[-1]}"
