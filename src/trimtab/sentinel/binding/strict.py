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


def _invariants() -> list[str]:
    from trimtab.sentinel.invariants.declare import INVARIANTS

    return sorted(INVARIANTS)


def choices_of(alias: Any) -> tuple[str, ...]:
    """The words of a Literal."""
    return typing.get_args(alias)
