"""Which losses go with which corrections: the only place that asks the recipe about every pair of them.

Nothing is listed by hand. Each policy loss is put together with each correction in one recipe, against every policy
that either can be compared with; the recipe composes, or refuses and says why.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from rich.console import Console
from rich.table import Table

from trimtab.errors import SignalError
from trimtab.sentinel.targets.trimtab import VARIANTS
from trimtab.signal import Recipe, Stage, catalog, part
from trimtab.signal.catalogue import PAIR, Formula
from trimtab.signal.ingredient import Anchor, Ratio

REASONS = {
    "twice": "The factor would be counted twice: the loss already carries old/rollout, current/old, or both.",
    "varies": "The loss shares one gradient among the tokens of a sequence, and this factor varies inside it.",
    "other": "Another rule of the recipe: make it, and it says which.",
}
"""Why a pair is refused, by a short name; the recipe's own sentence names both parts and what to do."""
MARKS = dict(zip(REASONS, "¹²³", strict=True))


@dataclass(frozen=True)
class Pairing:
    """One loss with one correction."""

    loss: Stage
    correction: Stage
    refused: str
    """The recipe's own sentence; empty where it composes."""

    @property
    def composes(self) -> bool:
        return not self.refused

    @property
    def reason(self) -> str | None:
        """The short name of why it is refused."""
        if self.composes:
            return None
        return "twice" if "twice" in self.refused else "varies" if "varies inside it" in self.refused else "other"

    @property
    def recipe(self) -> Recipe:
        return _composed(self.loss, self.correction)

    def as_json(self) -> dict[str, object]:
        return {
            "loss": _named(self.loss), "against": self.loss.anchor, "correction": _named(self.correction),
            "on": _end(self.correction) or None, "composes": self.composes, "reason": self.refused or None,
        }  # fmt: skip


def pairings() -> tuple[Pairing, ...]:
    """Every loss with every correction, loss by loss."""
    entries = catalog().values()
    losses = [stage for one in entries if one.stage == "policy_loss" for stage in _stages(one)]
    corrections = [stage for one in entries if one.stage in ("importance", "keep") for stage in _stages(one)]
    return tuple(Pairing(loss, one, _refused(loss, one)) for loss in losses for one in corrections)


def _stages(entry: Formula) -> Iterator[Stage]:
    """The formula against every policy that it can be compared with, at each of its levels."""
    chosen = VARIANTS.get(entry.selects.name, [{}])[0] if entry.selects else {}
    by_level = {str(given.get("level")): given for given in reversed(VARIANTS.get(entry.name, [{}]))}
    for given in reversed(by_level.values()):
        one = part(entry.name, **{**chosen, **given})
        if "logp_anchor" in entry.inputs:
            yield from (Stage(one, anchor=anchor) for anchor in get_args(Anchor))
        elif not set(PAIR).isdisjoint(entry.inputs):
            yield from (Stage(one, ratio=ratio) for ratio in get_args(Ratio))
        else:
            yield Stage(one)


def _composed(loss: Stage, correction: Stage) -> Recipe:
    return Recipe(
        name="pair", loss=loss, correction=(correction,), weighting=part("weighting.token_mean"),
        normalize=part("normalize.mean_std"),
    )  # fmt: skip


def _refused(loss: Stage, correction: Stage) -> str:
    try:
        _ = _composed(loss, correction)
    except SignalError as error:
        return str(error)
    return ""


def _named(stage: Stage) -> str:
    level = stage.part.settings.get("level")
    return f"{stage.part.formula.name}(level={level})" if level else stage.part.formula.name


def _end(stage: Stage) -> str:
    return stage.ratio or stage.anchor or ""


def show_pairings(output: str, console: Console) -> None:
    """Print which losses go with which corrections."""
    found = pairings()
    if output == "json":
        print(json.dumps([one.as_json() for one in found], indent=1, ensure_ascii=False))
    elif output == "text":
        table = Table("loss", "refused", "why", box=None, pad_edge=False)
        for one in found:
            if not one.composes:
                loss = f"{_named(one.loss)} {_against(one.loss)}".strip()
                table.add_row(
                    loss, f"{_named(one.correction)} on {_end(one.correction)}", REASONS[one.reason or "other"]
                )
        console.print(table)
        console.print(f"{sum(one.composes for one in found)} of {len(found)} pairs compose; the others are above.")
    else:
        print(pairing_page(), end="")


def _against(stage: Stage) -> str:
    return f"against {stage.anchor}" if stage.anchor else ""


def pairing_page() -> str:
    """docs/pairings.md."""
    found = pairings()
    lines = [
        "# Losses and corrections",
        "",
        "Generated by `trimtab catalog --pairings --format markdown`; a test keeps it current. Every policy loss is "
        "put into one recipe with every correction, and the recipe is asked.",
        "",
        "A cell lists the ratios that a correction can act on: **e** engine (old/rollout), **u** update (current/old), "
        "**t** total (current/rollout); or **✓** if it compares no such pair. A number says why that one is refused.",
        "",
        *(f"{MARKS[name]} {text}  " for name, text in REASONS.items() if any(one.reason == name for one in found)),
        "",
        f"{sum(one.composes for one in found)} of {len(found)} pairs compose. "
        "`trimtab catalog --pairings --format json` has the recipe's own sentence for each one that does not.",
    ]
    for title, stage in (("Factors", "importance"), ("Decisions", "keep")):
        own = [one for one in found if one.correction.part.formula.stage == stage]
        columns = list(dict.fromkeys(_named(one.correction) for one in own))
        heads = [name.removeprefix(f"{stage}.") for name in columns]
        lines += ["", f"## {title}", "", f"| loss | against | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
        for loss, row in groupby(own, lambda one: one.loss):
            cells = groupby(row, lambda one: _named(one.correction))
            texts = [", ".join(map(_cell, cell)) for _, cell in cells]
            lines.append(f"| `{_named(loss)}` | {loss.anchor or '–'} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _cell(one: Pairing) -> str:
    return (one.correction.ratio or "✓")[0] + (MARKS[one.reason] if one.reason else "")
