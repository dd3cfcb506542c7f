"""The words of a binding: the only place that refuses those that mean nothing, with the ones there are."""

import typing
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.errors import TrimtabError, unknown_name

CONVENTIONS = ("denominator", "kl", "normalisation", "lone", "band")
"""Choices that can be declared, because they can be detected."""
DENOMINATORS = (
    "token_sum", "token_mean", "sequence_mean_token_mean", "sequence_mean_token_mean over all rows",
    "sequence_mean_token_sum", "sequence_mean_token_sum over all rows", "sequence_sum_token_mean",
    "group_mean_token_mean",
)  # fmt: skip
COMBINES = ("sum", "mean", "mean over ranks")
COUPLES = ("token", "sequence", "group", "batch")
RANKS = ("data", "context")
VIEWS: dict[str, tuple[str, ...]] = {
    "padded": ("with_prompt", "side", "shift", "drop_first"), "list": ("with_prompt",), "packed": (), "flat": (),
}  # fmt: skip
"""What can be said about each layout."""
SIDES = ("left", "right", "both")


def check_word(what: str, value: object, known: Iterable[str]) -> None:
    """`check_word("kind", "losss", KINDS)` raises, and says what there is."""
    known = list(known)
    if value not in known:
        raise TrimtabError(unknown_name(what, str(value), known))


def check_words(facts: Mapping[str, Any]) -> None:
    """Refuse what a subject cannot mean. `facts` are its fields."""
    name = facts["name"]
    check_word(f"{name}: couples", facts["couples"], COUPLES)
    if facts["combine"] is not None and not callable(facts["combine"]):
        check_word(f"{name}: combine", facts["combine"], COMBINES)
    if facts["ranks"] is not None:
        check_word(f"{name}: ranks", facts["ranks"], RANKS)
    for key, value in facts["conventions"].items():
        check_word(f"{name}: convention", key, CONVENTIONS)
        if key == "denominator":
            check_word(f"{name}: denominator", value, DENOMINATORS)
    for fact in ("waived", "promises"):
        for invariant in facts[fact] or ():
            check_word(f"{name}: {fact} invariant", invariant, _invariants())
    for fact in ("definition", "twin", "call"):
        if facts[fact] is not None and not callable(facts[fact]):
            raise TrimtabError(
                f"{name}: {fact} is a {type(facts[fact]).__name__}. It is a function of a case and of options; "
                "like(…) makes one, and so does the call of another subject."
            )


def check_view(layout: str, view: Mapping[str, Any]) -> None:
    """Refuse words that no view of this layout takes: `view={"layout": "list"}`, or a shift of a list."""
    known = VIEWS[layout]
    for word in view:
        if word in ("layout", "dtype"):
            raise TrimtabError(f"bind: {word!r} is no word of view; it is an argument of bind: {word}={view[word]!r}.")
        if word in VIEWS["padded"] and word not in known:
            takes = f"only {', '.join(known)}" if known else "none of these"
            raise TrimtabError(f"bind: {word!r} in view is for layout='padded'; layout={layout!r} takes {takes}.")
        check_word("bind: word of view", word, known)
    if view.get("side") is not None:
        check_word("bind: side of view", view["side"], SIDES)


def _invariants() -> list[str]:
    from trimtab.sentinel.invariants.declare import INVARIANTS

    return sorted(INVARIANTS)


def choices_of(alias: Any) -> tuple[str, ...]:
    """The words of a Literal."""
    return typing.get_args(alias)
