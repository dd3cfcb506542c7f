"""What other frameworks call our fields, settings, recipes and metrics. The rows are data, in aliases.tsv.

One word may mean different things in different frameworks (`beta`, `clip_ratio`), so every meaning is listed with the
framework it belongs to. Every "did you mean" and `trimtab explain` reads this table.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

Kind = Literal["field", "setting", "recipe", "metric"]


@dataclass(frozen=True)
class Alias:
    """One meaning of one foreign word, e.g. TRL's `epsilon_high` = 0.28 is our `signal.loss.band` = (…, 1.28)."""

    theirs: str
    """The word as that framework spells it; `key=value` where a value is what has another name."""
    framework: str
    kind: Kind
    ours: str
    note: str = ""
    """How the value translates, where it is not the same number."""

    @property
    def sentence(self) -> str:
        """The meaning in one line."""
        return f"in {self.framework} {self.theirs!r} is our {self.ours!r}" + (f": {self.note}" if self.note else "")


@cache
def aliases() -> tuple[Alias, ...]:
    """Every row of aliases.tsv."""
    lines = Path(__file__).with_name("aliases.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines[1:])
    return tuple(
        Alias(theirs, framework, cast("Kind", kind), ours, note) for theirs, framework, kind, ours, note in rows
    )


@cache
def _by_name() -> dict[str, tuple[Alias, ...]]:
    found: dict[str, tuple[Alias, ...]] = {}
    for one in aliases():
        found[_plain(one.theirs)] = (*found.get(_plain(one.theirs), ()), one)
    return found


def meanings(name: str) -> tuple[Alias, ...]:
    """Every meaning of a foreign word; a dotted path and command-line dashes are read through.

    >>> [one.ours for one in meanings("actor_rollout_ref.actor.old_log_prob")]
    ['logp_old']
    """
    known = _by_name()
    key, equals, value = name.partition("=")
    for candidate in (f"{key}{equals}{value}", f"{key.rpartition('.')[2]}{equals}{value}"):
        if _plain(candidate) in known:
            return known[_plain(candidate)]
    return ()


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").replace(" ", "").lower()
