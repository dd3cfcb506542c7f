"""What a recipe is: the parts of one training signal, each of the kind it must be.

Everything is checked when it is made, so a recipe that exists has a meaning. It has no arithmetic. It knows no paper
(recipes.py), no rule about parts that go together (rules.py), no shorthand (shorthand.py) and no file format (config).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast, get_args

from trimtab.errors import SignalError, unknown_word
from trimtab.signal.catalogue import AFTER_THE_VOTE, NOW, PAIR
from trimtab.signal.parts import Part, part
from trimtab.signal.rules import refuse_senseless
from trimtab.signal.tensors import as_number

Ratio = Literal["engine", "update", "total"]
Anchor = Literal["old", "rollout"]
Old = Literal["recompute", "current", "interpolated", "absent"]
Into = Literal["sequence_reward", "token_reward", "loss"]
On = Literal["all", "kept"]
NotEnded = Literal["train", "suppress", "zero"]

FACTORS: dict[str, frozenset[str]] = {
    "engine": frozenset({"engine"}),
    "update": frozenset({"update"}),
    "total": frozenset({"engine", "update"}),
}
"""Which factors of current/rollout a ratio is made of: engine = old/rollout, update = current/old."""

RATIO_TO: dict[Anchor, Ratio] = {"old": "update", "rollout": "total"}
"""The ratio of the current policy to an anchor."""


def _check_word(where: str, name: str, given: object, choices: Any) -> None:
    if given not in get_args(choices):
        raise SignalError(unknown_word(where, name, given, get_args(choices)))


def _check_part(where: str, name: str, given: object) -> None:
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
        _check_part("Stage", "part", self.part)
        name, inputs = self.part.formula.name, self.part.formula.inputs
        for word, choices, needed in (
            ("ratio", Ratio, not set(PAIR).isdisjoint(inputs)),
            ("anchor", Anchor, "logp_anchor" in inputs),
        ):
            given = getattr(self, word)
            if given is not None:
                _check_word(name, word, given, choices)
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
        _check_part("kl", "formula", self.part)
        if self.part.formula.stage != "kl":
            raise SignalError(
                f"kl: holds {self.part.formula.name}, which is a {self.part.formula.stage} formula, so its numbers "
                "would be read as something else. Use one of kl."
            )
        object.__setattr__(self, "coef", _check_coef("kl", self.coef))
        _check_word("kl", "into", self.into, Into)
        _check_word("kl", "on", self.on, On)
        if self.anchor is not None:
            _check_word("kl", "anchor", self.anchor, Anchor)
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
    on: On = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "coef", _check_coef("term", self.coef))
        _check_word("term", "on", self.on, On)
        if self.part is not None:
            _check_part("term", "formula", self.part)


@dataclass(frozen=True)
class Recipe:
    """One training signal, whole. `trimtab explain NAME` prints it with its sources."""

    name: str
    loss: Stage
    """The policy loss."""
    weighting: Part
    """The denominator: token_mean, sequence_mean_token_mean, sequence_mean_token_sum, constant_divisor, token_sum."""
    normalize: Part
    """Baseline and scale of rewards: raw, mean_std, leave_one_out, and others of the catalogue."""
    source: str = ""
    summary: str = ""
    reward: tuple[Part, ...] = ()
    """Shaping of the task reward, in order: affine, clip, soft_overlong, not_ended_penalty, and others."""
    not_ended: NotEnded = "train"
    """An episode that did not end: trains as it is; neither votes nor trains; zero task reward after normalising."""
    filter_constant_groups: bool = False
    """Drop groups whose answers all got the same reward."""
    group_mean_band: tuple[float, float] | None = None
    """Drop groups whose mean task reward is not strictly between (low, high): too hard, or too easy."""
    advantage: Part = field(default_factory=lambda: part("advantage.broadcast"))
    """Credit over tokens: broadcast, reward_to_go, gae, and others of the catalogue."""
    whiten_token_rewards: bool = False
    """Whiten token rewards over the batch's voting tokens, before they become advantages."""
    whiten: bool = False
    """Whiten advantages over the batch's voting tokens."""
    clip_advantage: float | None = None
    """Bound on |advantage|, above 0."""
    correction: tuple[Stage, ...] = ()
    """Off-policy correction: importances multiply, keeps are and-ed."""
    kl: KL | None = None
    """Penalty for leaving the reference."""
    entropy: Term | None = None
    """Entropy bonus."""
    value: Term | None = None
    """Value loss of a critic."""
    nll: Term | None = None
    """Negative log-likelihood of the sampled tokens."""
    old: Old = "recompute"
    """Where logp_old comes from: a forward pass before the first update, the current policy, between sampler and
    current policy by the age of each token, or nowhere."""
    allow_double_count: bool = False
    """Let two parts carry the same factor of current/rollout."""

    def __post_init__(self) -> None:
        _refuse_types(self)
        refuse_senseless(self)

    @cached_property
    def labelled(self) -> dict[str, Stage]:
        """Correction stages by the label their metrics carry; a formula used twice is numbered."""
        labels: dict[str, Stage] = {}
        for stage in self.correction:
            name = stage.part.formula.name
            count = sum(1 for label in labels if label.split("#")[0] == name)
            labels[f"{name}#{count + 1}" if count else name] = stage
        return labels

    def _stages(self) -> Iterator[Stage]:
        yield self.loss
        yield from self.correction

    @cached_property
    def needs(self) -> frozenset[str]:
        """The fields a trainer must supply for this recipe."""
        pairs = {stage.pair for stage in self._stages()} - {None}
        inputs = {name for p in self.parts() for name in p.formula.inputs}
        wanted = inputs & {"logp_ref", "value_old", "entropy", "position", "turn", "version", "rewards", "baseline"}
        if pairs & {"engine", "total"} or (self.kl and self.kl.anchor == "rollout"):
            wanted.add("logp_rollout")
        if inputs & {"logp_rollout"}:
            wanted.add("logp_rollout")
        in_reward = self.kl is not None and self.kl.into != "loss"
        reads_old = pairs & {"engine", "update"} or inputs & {"logp_old"} or (self.kl and self.kl.anchor == "old")
        if in_reward or (reads_old and self.old == "recompute"):
            wanted.add("logp_old")
        if reads_old and self.old == "interpolated":
            wanted |= {"version", "logp_rollout"}
        if self.value:
            wanted |= {"value", "value_old"}
        if self.entropy:
            wanted.add("entropy")
        if self.not_ended != "train" or "ended" in inputs:
            wanted.add("ended")
        return frozenset(wanted)

    @cached_property
    def reads_old(self) -> bool:
        """Whether a stage compares with the old policy."""
        return any(stage.pair in ("engine", "update") for stage in self._stages())

    def parts(self) -> Iterator[Part]:
        """Every formula of the recipe with its settings."""
        yield from self.reward
        yield from (self.normalize, self.advantage, self.weighting, self.loss.part)
        yield from (stage.part for stage in self.correction)
        yield from (term.part for term in (self.kl, self.value) if term is not None and term.part is not None)

    @cached_property
    def reads_token_key(self) -> bool:
        """Whether a formula chooses tokens at random; keys cost a pass over the batch."""
        selector = self.loss.part.selector
        return any("token_key" in one.formula.inputs for one in (*self.parts(), *([selector] if selector else [])))

    @property
    def old_moves(self) -> bool:
        """Whether the old policy is made from the current one, so that what was recorded says nothing about it."""
        return self.old in ("current", "interpolated")

    def is_late(self, stage: Stage) -> bool:
        """Whether a stage needs the policy that is being updated."""
        inputs = stage.part.formula.inputs
        follows = self.old_moves and (stage.pair is not None or "logp_old" in inputs)
        return follows or stage.pair in ("update", "total") or not NOW.isdisjoint(inputs)

    def votes_first(self, stage: Stage) -> bool:
        """Whether a stage reads what exists only after the vote."""
        return not AFTER_THE_VOTE.isdisjoint(stage.part.formula.inputs)

    @cached_property
    def stages_before_the_vote(self) -> dict[str, Stage]:
        """Correction stages that need neither the vote nor the current policy, by label."""
        return {name: one for name, one in self.labelled.items() if not self.is_late(one) and not self.votes_first(one)}

    @cached_property
    def stages_after_the_vote(self) -> dict[str, Stage]:
        """Correction stages that need the vote and not the current policy, by label."""
        return {name: one for name, one in self.labelled.items() if not self.is_late(one) and self.votes_first(one)}

    @cached_property
    def late_stages(self) -> dict[str, Stage]:
        """Correction stages that need the current policy, by label."""
        return {name: one for name, one in self.labelled.items() if self.is_late(one)}

    @cached_property
    def with_given_advantage(self) -> "Recipe":
        """What is left of the recipe where the caller has computed the advantage: everything that comes after it."""
        return replace(
            self,
            reward=(),
            normalize=part("normalize.raw"),
            advantage=part("advantage.broadcast"),
            whiten_token_rewards=False,
            whiten=False,
            clip_advantage=None,
            not_ended="train" if self.not_ended == "zero" else self.not_ended,
            kl=self.kl if self.kl and self.kl.into == "loss" else None,
        )

    @cached_property
    def needs_logp_now(self) -> bool:
        """Whether an optimiser step after the batch's first costs a forward pass without gradient (`decide`)."""
        counts_kept = self.weighting.settings.get("over") == "kept" or any(
            term is not None and term.on == "kept" for term in (self.kl, self.entropy, self.value, self.nll)
        )
        late = any(self.is_late(s) and s.part.formula.stage == "keep" for s in self.correction)
        wide = any(self.is_late(s) and s.part.formula.scope in ("update", "batch") for s in self.correction)
        return self.loss.part.selector is not None or wide or (counts_kept and late)

    @cached_property
    def decides_across(self) -> bool:
        """Whether something is decided about the whole optimiser step at once, so that a part of it cannot be run."""
        return self.needs_logp_now or any(s.part.formula.scope in ("update", "batch") for s in self.correction)

    @cached_property
    def needs_entropy_now(self) -> bool:
        """Whether `decide` reads the entropy of the current policy."""
        late = [stage.part.formula for stage in self.correction if self.is_late(stage)]
        selector = self.loss.part.selector
        deciding = late + ([selector.formula] if selector else [])
        return self.needs_logp_now and any("entropy" in one.inputs for one in deciding)


def _refuse_types(recipe: Recipe) -> None:
    """Every field holds what it is declared to hold; a word that looks like a switch is not one."""
    where = f"recipe {recipe.name!r}"
    for name in ("name", "source", "summary"):
        if not isinstance(getattr(recipe, name), str):
            raise SignalError(f"{where}: {name} = {getattr(recipe, name)!r} is not a text.")
    for name in ("filter_constant_groups", "whiten_token_rewards", "whiten", "allow_double_count"):
        if not isinstance(getattr(recipe, name), bool):
            raise SignalError(f"{where}: {name} = {getattr(recipe, name)!r} is not possible. It is true or false.")
    _check_word(where, "not_ended", recipe.not_ended, NotEnded)
    _check_word(where, "old", recipe.old, Old)
    for name in ("weighting", "normalize", "advantage"):
        _check_part(where, name, getattr(recipe, name))
    _check_all(where, "loss", (recipe.loss,), Stage, "Stage(part('clipped', …), anchor='old')")
    _check_all(where, "reward", recipe.reward, Part, "(part('reward.clip', …),)")
    _check_all(
        where, "correction", recipe.correction, Stage, "(Stage(part('importance.truncated', …), ratio='engine'),)"
    )
    if recipe.kl is not None:
        _check_all(where, "kl", (recipe.kl,), KL, "KL(part('kl.k3'), 0.001, 'loss')")
    for name in ("entropy", "value", "nll"):
        if getattr(recipe, name) is not None:
            _check_all(where, name, (getattr(recipe, name),), Term, "Term(0.01)")
    _check_band(where, recipe.group_mean_band)
    if recipe.clip_advantage is not None:
        says = "No advantage is left otherwise: it is a number above 0, and finite."
        _ = as_number(recipe.clip_advantage, where, "clip_advantage", lambda bound: 0 < bound < float("inf"), says)


def _check_band(where: str, given: object) -> None:
    if given is None:
        return
    bounds = cast("tuple[object, ...]", given) if isinstance(given, tuple) else ()
    is_band = len(bounds) == 2 and all(isinstance(b, int | float) and not isinstance(b, bool) for b in bounds)
    low, high = cast("tuple[float, float]", bounds) if is_band else (0.0, 0.0)
    if not low < high:
        raise SignalError(
            f"{where}: group_mean_band = {given!r} is not possible. It is (low, high) with low < high, as rewards go: "
            "(0, 1) drops groups that are all wrong or all right."
        )


def _check_all(where: str, name: str, given: object, kind: type, example: str) -> None:
    entries = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given,)
    wrong = [entry for entry in entries if not isinstance(entry, kind)]
    if wrong or not isinstance(given, tuple):
        shown = wrong[0] if wrong else entries[0]
        raise SignalError(f"{where}: {name} = {shown!r} is not possible. Write for instance {example}.")
