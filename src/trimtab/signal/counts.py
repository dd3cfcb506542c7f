"""How much one optimiser step holds in all: the denominators that several calls of `loss` share."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.layout import Segments
from trimtab.signal.parts import Part
from trimtab.signal.tensors import as_count

if TYPE_CHECKING:
    from trimtab.signal.composition import Recipe
    from trimtab.signal.preparation import Prepared


@dataclass(frozen=True)
class Counts:
    """What trains in one optimiser step, over all its micro-batches and ranks. Parts add up: `sum(parts, Counts())`.

    Two micro-batches of 3 answers with 40 and 2 answers with 25 tokens: Counts(tokens=65, sequences=5).
    """

    tokens: int = 0
    """Trainable tokens of sequences that train."""
    sequences: int = 0
    """Sequences that train."""
    groups: Mapping[int, int] = field(default_factory=dict[int, int])
    """Episodes of each group, by the caller's name of it; `loss` checks with it that a call holds whole groups."""

    def __post_init__(self) -> None:
        _ = as_count(self.tokens, "Counts", "tokens", least=0), as_count(self.sequences, "Counts", "sequences", least=0)
        if not isinstance(self.groups, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SignalError(
                f"Counts: groups = {self.groups!r} is not a mapping of group names to numbers of episodes."
            )

    def __add__(self, other: "Counts") -> "Counts":
        names = {**self.groups, **other.groups}
        groups = {name: self.groups.get(name, 0) + other.groups.get(name, 0) for name in names}
        return Counts(self.tokens + other.tokens, self.sequences + other.sequences, groups)

    @classmethod
    def of(cls, prepared: "Prepared") -> "Counts":
        """What trains of a prepared batch."""
        batch = prepared.batch
        per_sequence = batch.segments.token_counts[prepared.trains]
        return cls(tokens=int(per_sequence.sum()), sequences=len(per_sequence), groups=_sizes(batch.group))


def share_of(part: Part, segments: Segments, counts: Counts) -> float:
    """The share of these sequences in the whole step, in the unit the weighting divides by."""
    unit = part.formula.divides_by
    if unit == "unknown":
        raise SignalError(
            f"{part.formula.name}: does not say what it divides by, so it cannot be shared by several calls. "
            'Declare divides_by="tokens" or "sequences", or give the whole step at once.'
        )
    if part.settings.get("over") == "kept":
        raise SignalError(
            f"{part.formula.name}: over = 'kept' divides by what is kept in the whole step, which one call cannot "
            "know. Use over = 'all', or prepare → updates → decide → token_loss on the whole step."
        )
    if unit == "nothing":
        return 1.0
    own = segments.num_tokens if unit == "tokens" else int(_filled(segments).sum())
    whole = counts.tokens if unit == "tokens" else counts.sequences
    if own > whole:
        raise SignalError(
            f"counts: the whole step has {whole} {unit} that train, but this call alone has {own}, so weights would "
            "add up to more than one. Add up trimtab.count(…) of every micro-batch of the step, on every rank."
        )
    return own / max(whole, 1)


def refuse_own_denominators(recipe: "Recipe") -> None:
    """A term that is divided by its own tokens cannot be shared by several calls: counts do not tell these."""
    own = [name for name in ("nll", "observed") if _is_apart(recipe, name)]
    if own:
        raise SignalError(
            f"counts: recipe {recipe.name!r} divides {own[0]} by its own tokens of the whole step, which one call "
            "cannot know. Use prepare → updates → decide → token_loss on the whole step."
        )


def _is_apart(recipe: "Recipe", name: str) -> bool:
    term = getattr(recipe, name)
    return term is not None and (name == "observed" or term.on == "rewarded")


def check_groups(counts: Counts, group: Tensor) -> None:
    """Every group of this call is here with all its episodes; otherwise its baseline would be another."""
    for name, size in _sizes(group).items():
        there = counts.groups.get(name, size)
        if there != size:
            raise SignalError(
                f"loss: group {name} has {there} answers in the whole step and {size} in this call, so its baseline "
                "would be computed from some of them. Keep groups together, or pass advantage=…."
            )


def _sizes(group: Tensor) -> dict[int, int]:
    return dict(Counter(cast("list[int]", group.tolist())))


def _filled(segments: Segments) -> Tensor:
    return segments.token_counts > 0
