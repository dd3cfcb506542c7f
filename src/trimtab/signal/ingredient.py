"""What a recipe is made of: the only place that says what a stage, a KL penalty and a term may hold, in which words.

Each is checked when it is made. It knows nothing of the recipe that they enter.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from trimtab.errors import SignalError, unknown_word
from trimtab.signal.catalogue import PAIR
from trimtab.signal.parts import Part
from trimtab.signal.tensors import as_number

Ratio = Literal["engine", "update", "total"]
Anchor = Literal["old", "rollout"]
Old = Literal["recompute", "current", "interpolated", "absent"]
Into = Literal["sequence_reward", "token_reward", "loss"]
On = Literal["all", "kept"]
TermOn = Literal["all", "kept", "rewarded"]
NotEnded = Literal["train", "suppress", "zero"]

FACTORS: dict[str, frozenset[str]] = {
    "engine": frozenset({"engine"}),
    "update": frozenset({"update"}),
    "total": frozenset({"engine", "update"}),
}
"""Which factors of current/rollout a ratio is made of: engine = old/rollout, update = current/old."""

REWARDED = "rewarded"
"""The token field that says which tokens are of an episode whose task reward is above 0."""

RATIO_TO: dict[Anchor, Ratio] = {"old": "update", "rollout": "total"}
"""The ratio of the current policy to an anchor."""


def check_word(where: str, name: str, given: object, choices: Any) -> None:
    if given not in get_args(choices):
        raise SignalError(unknown_word(where, name, given, get_args(choices)))


def check_part(where: str, name: str, given: object) -> None:
    if not isinstance(given, Part):
        raise SignalError(
            f"{where}: {name} = {given!r} is not a formula with its settings. Write part('name', setting=…), "
            f"or let recipe(…, {name}='name') read it."
        )


def _check_coef(where: str, given: object) -> float:
    return as_number(
        given, where, "coef", lambda coef: 0 <= coef < float("inf"),
        "The term would pull the wrong way or nowhere: it is a number, 0 or more, and finite.",
    )  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A part and the pair of policies it compares.

    `ratio` for a formula that reads `logratio` or its two ends; `anchor` for one that reads `logp_anchor`, against the
    current policy.
    """

    part: Part
    ratio: Ratio | None = None
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        check_part("Stage", "part", self.part)
        name, inputs = self.part.formula.name, self.part.formula.inputs
        for word, choices, needed in (
            ("ratio", Ratio, not set(PAIR).isdisjoint(inputs)),
            ("anchor", Anchor, "logp_anchor" in inputs),
        ):
            given = getattr(self, word)
            if given is not None:
                check_word(name, word, given, choices)
            if (given is not None) != needed:
                wanted = " or ".join(get_args(choices)) if word == "anchor" else "engine, update or total"
                does = f"needs {word} ({wanted})" if needed else f"compares no such pair; leave {word} out"
                raise SignalError(f"{name}: {does}.")

    @property
    def pair(self) -> Ratio | None:
        """The ratio this stage is about, whichever way it was named."""
        return self.ratio or (RATIO_TO[self.anchor] if self.anchor else None)

    @property
    def spends(self) -> frozenset[str]:
        return FACTORS[self.pair] if self.part.formula.consumes == "ratio" and self.pair else frozenset()

    def __str__(self) -> str:
        pair = f" on {self.pair}" if self.ratio else f" against {self.anchor}" if self.anchor else ""
        return f"{self.part}{pair}"


@dataclass(frozen=True)
class KL:
    """A penalty for leaving the reference: which estimator, how much, and where it acts."""

    part: Part
    coef: float
    into: Into
    anchor: Anchor | None = None
    """For an estimator that reads who sampled."""
    on: On = "all"
    target: float | None = None
    """KL per token that the coefficient is steered to from batch to batch, for a KL in the reward; None holds it."""
    horizon: float = 10_000.0
    """Episodes after which a KL that is 20 % or more off has changed the coefficient by about 20 %."""

    def __post_init__(self) -> None:
        check_part("kl", "formula", self.part)
        if self.part.formula.stage != "kl":
            raise SignalError(
                f"kl: holds {self.part.formula.name}, which is a {self.part.formula.stage} formula, so its numbers "
                "would be read as something else. Use one of kl."
            )
        object.__setattr__(self, "coef", _check_coef("kl", self.coef))
        check_word("kl", "into", self.into, Into)
        check_word("kl", "on", self.on, On)
        if self.anchor is not None:
            check_word("kl", "anchor", self.anchor, Anchor)
        _check_steering(self)
        if ("logp_anchor" in self.part.formula.inputs) != (self.anchor is not None):
            raise SignalError(
                f"kl: {self.part.formula.name} and anchor = {self.anchor!r} do not fit; "
                "only a KL that reads the policy which sampled has an anchor, and it needs one (old or rollout)."
            )


def _check_steering(kl: KL) -> None:
    if kl.target is None:
        return
    for name in ("target", "horizon"):
        _ = as_number(getattr(kl, name), "kl", name, lambda one: 0 < one < float("inf"), "It is above 0, and finite.")
    if kl.into == "loss":
        raise SignalError(
            f"kl: target = {kl.target} steers the coefficient by the KL of each batch before it is trained on, and "
            "into = 'loss' has none by then. Use into = 'token_reward' or 'sequence_reward', or leave target out."
        )
    if kl.coef == 0:
        raise SignalError("kl: coef = 0 stays 0 however it is steered. Begin with a number above 0.")


@dataclass(frozen=True)
class Term:
    """A regulariser of the loss with its coefficient; `part` is the formula of the value loss."""

    coef: float
    part: Part | None = None
    on: TermOn = "all"
    """rewarded: tokens of episodes whose task reward is above 0, divided by what there is of these (nll alone)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "coef", _check_coef("term", self.coef))
        check_word("term", "on", self.on, TermOn)
        if self.part is not None:
            check_part("term", "formula", self.part)
