"""What a recipe is: the parts of one training signal, and the rules that refuse combinations without a meaning.

It has no arithmetic and knows no paper (those are in recipes.py) and no file format (that is config.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from trimtab.errors import SignalError
from trimtab.signal.part import Part, part

Ratio = Literal["engine", "update", "total"]
Anchor = Literal["old", "rollout"]
Old = Literal["recompute", "current", "absent"]
Into = Literal["sequence_reward", "token_reward", "loss"]
On = Literal["all", "kept"]

FACTORS: dict[str, frozenset[str]] = {
    "engine": frozenset({"engine"}),
    "update": frozenset({"update"}),
    "total": frozenset({"engine", "update"}),
}
"""Which factors of current/rollout a ratio is made of: engine = old/rollout, update = current/old."""

RATIO_TO: dict[Anchor, Ratio] = {"old": "update", "rollout": "total"}
"""The ratio of the current policy to an anchor."""


@dataclass(frozen=True)
class Stage:
    """A part and the pair of policies it compares.

    `ratio` for a formula that reads `logratio`; `anchor` for one that reads `logp_anchor`, against the current policy.
    """

    part: Part
    ratio: Ratio | None = None
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        inputs = self.part.formula.inputs
        for name, needed in (("ratio", "logratio" in inputs), ("anchor", "logp_anchor" in inputs)):
            if (getattr(self, name) is not None) != needed:
                wanted = {"ratio": "engine, update or total", "anchor": "old or rollout"}[name]
                does = f"needs {name} ({wanted})" if needed else f"compares no such pair; leave {name} out"
                raise SignalError(f"{self.part.formula.name}: {does}.")

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
    """For the importance-weighted estimator: who sampled."""
    on: On = "all"


@dataclass(frozen=True)
class Term:
    """A regulariser of the loss with its coefficient; `part` is the formula of the value loss."""

    coef: float
    part: Part | None = None
    on: On = "all"


@dataclass(frozen=True)
class Recipe:
    """One training signal, whole. `trimtab explain NAME` prints it with its sources."""

    name: str
    loss: Stage
    weighting: Part
    normalize: Part
    source: str = ""
    summary: str = ""
    reward: tuple[Part, ...] = ()
    not_ended: Literal["train", "suppress", "zero"] = "train"
    """An episode that did not end: trains as it is; neither votes nor trains; zero task reward after normalising."""
    filter_constant_groups: bool = False
    advantage: Part = field(default_factory=lambda: part("advantage.broadcast"))
    whiten: bool = False
    clip_advantage: float | None = None
    correction: tuple[Stage, ...] = ()
    kl: KL | None = None
    entropy: Term | None = None
    value: Term | None = None
    nll: Term | None = None
    old: Old = "recompute"
    allow_double_count: bool = False

    def __post_init__(self) -> None:
        _refuse_misplaced(self)
        _refuse_numbers(self)
        _refuse_double_count(self)
        _refuse_missing_old(self)
        _refuse_orders(self)

    @property
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

    @property
    def needs(self) -> frozenset[str]:
        """The fields a trainer must supply for this recipe."""
        pairs = {stage.pair for stage in self._stages()} - {None}
        inputs = {name for p in self._parts() for name in p.formula.inputs}
        wanted = {name for name in ("logp_ref", "value", "entropy") if name in inputs}
        if pairs & {"engine", "total"} or (self.kl and self.kl.anchor == "rollout"):
            wanted.add("logp_rollout")
        if inputs & {"logp_rollout"}:
            wanted.add("logp_rollout")
        in_reward = self.kl is not None and self.kl.into != "loss"
        reads_old = pairs & {"engine", "update"} or inputs & {"logp_old"} or (self.kl and self.kl.anchor == "old")
        if in_reward or (reads_old and self.old == "recompute"):
            wanted.add("logp_old")
        if inputs & {"value_old"} or self.value:
            wanted.add("value")
        if self.entropy:
            wanted.add("entropy")
        if self.not_ended != "train" or "ended" in inputs:
            wanted.add("ended")
        return frozenset(wanted)

    @property
    def reads_old(self) -> bool:
        """Whether a stage compares with the old policy."""
        return any(stage.pair in ("engine", "update") for stage in self._stages())

    def _parts(self) -> Iterator[Part]:
        yield from self.reward
        yield from (self.normalize, self.advantage, self.weighting, self.loss.part)
        yield from (stage.part for stage in self.correction)
        yield from (term.part for term in (self.kl, self.value) if term is not None and term.part is not None)

    def is_late(self, stage: Stage) -> bool:
        """Whether a stage needs the policy that is being updated."""
        return "logp_current" in stage.part.formula.inputs or stage.pair in ("update", "total") or self.old == "current"

    @property
    def needs_logp_now(self) -> bool:
        """Whether an optimiser step after the batch's first costs a forward pass without gradient (`decide`)."""
        counts_kept = self.weighting.settings.get("over") == "kept" or any(
            term is not None and term.on == "kept" for term in (self.kl, self.entropy, self.value, self.nll)
        )
        late = any(self.is_late(s) and s.part.formula.stage == "keep" for s in self.correction)
        wide = any(self.is_late(s) and s.part.formula.scope in ("update", "batch") for s in self.correction)
        return self.loss.part.selector is not None or wide or (counts_kept and late)


def _refuse_misplaced(recipe: Recipe) -> None:
    """Every slot takes formulas of its own stage: a loss is no importance, whatever its inputs fit."""
    slots: dict[str, tuple[tuple[Part, ...], tuple[str, ...]]] = {
        "reward": (recipe.reward, ("reward",)),
        "normalize": ((recipe.normalize,), ("normalize",)),
        "advantage": ((recipe.advantage,), ("advantage",)),
        "correction": (tuple(stage.part for stage in recipe.correction), ("importance", "keep")),
        "loss": ((recipe.loss.part,), ("policy_loss",)),
        "weighting": ((recipe.weighting,), ("weighting",)),
        "kl": ((recipe.kl.part,) if recipe.kl else (), ("kl",)),
        "value": ((recipe.value.part,) if recipe.value and recipe.value.part else (), ("value_loss",)),
    }
    for slot, (parts, stages) in slots.items():
        for one in parts:
            if one.formula.stage not in stages:
                raise SignalError(
                    f"recipe {recipe.name!r}: {slot} holds {one.formula.name}, which is a {one.formula.stage} formula, "
                    f"so its numbers would be read as something else. Use one of {' or '.join(stages)}."
                )
    if recipe.value and recipe.value.part is None:
        raise SignalError(f"recipe {recipe.name!r}: the value term names no formula. Use value_loss.squared.")
    for name in ("entropy", "nll"):
        term = getattr(recipe, name)
        if term is not None and term.part is not None:
            raise SignalError(f"recipe {recipe.name!r}: the {name} term takes no formula; it has one meaning.")


def _refuse_numbers(recipe: Recipe) -> None:
    for name in ("kl", "entropy", "value", "nll"):
        term = getattr(recipe, name)
        if term is not None and not 0 <= term.coef < float("inf"):
            raise SignalError(
                f"recipe {recipe.name!r}: {name}.coef = {term.coef}, so the term would pull the wrong way or nowhere. "
                "It is 0 or more, and finite."
            )
    bound = recipe.clip_advantage
    if bound is not None and not 0 < bound < float("inf"):
        raise SignalError(f"recipe {recipe.name!r}: clip_advantage = {bound}, so no advantage is left. It is above 0.")


def _refuse_double_count(recipe: Recipe) -> None:
    spent: dict[str, str] = {}
    for stage in (recipe.loss, *recipe.correction):
        for factor in stage.spends:
            if factor in spent and not recipe.allow_double_count:
                pair = {"engine": "old/rollout", "update": "current/old"}[factor]
                raise SignalError(
                    f"recipe {recipe.name!r}: {spent[factor]} already carries {pair} and {stage} would count that "
                    "factor twice, so every off-policy token is corrected past the truth. Drop one of them, "
                    "choose another ratio or anchor, or say allow_double_count = true."
                )
            spent[factor] = str(stage)


def _refuse_missing_old(recipe: Recipe) -> None:
    if recipe.old != "absent":
        return
    for stage in (recipe.loss, *recipe.correction):
        if stage.pair in ("engine", "update"):
            raise SignalError(
                f"recipe {recipe.name!r}: old = 'absent' but {stage} compares with the old policy, "
                "which is then unknown. Use ratio = 'total' or anchor = 'rollout', or old = 'recompute'."
            )
    if recipe.kl and (recipe.kl.into != "loss" or recipe.kl.anchor == "old"):
        raise SignalError(
            f"recipe {recipe.name!r}: old = 'absent', and a KL in the reward or anchored at old needs the old policy. "
            "Use into = 'loss' and anchor = 'rollout'."
        )


def _refuse_orders(recipe: Recipe) -> None:
    tokenwise = "token_reward" in recipe.advantage.formula.inputs
    kl = recipe.kl
    if kl and kl.into == "token_reward" and not tokenwise:
        raise SignalError(
            f"recipe {recipe.name!r}: kl.into = 'token_reward' with {recipe.advantage.formula.name}, "
            "which reads no token rewards, so the penalty would act nowhere. "
            "Use advantage.reward_to_go or advantage.gae, or into = 'sequence_reward'."
        )
    if kl and kl.into != "loss" and kl.on == "kept":
        raise SignalError(
            f"recipe {recipe.name!r}: kl.on = 'kept' chooses tokens of the loss, and kl.into = {kl.into!r} is no "
            "part of it. Leave on out."
        )
    if kl and kl.into != "loss" and kl.part.formula.name == "kl.importance_weighted_k3":
        raise SignalError(
            f"recipe {recipe.name!r}: an importance-weighted KL reweights a gradient and has none in a reward. "
            "Use into = 'loss'."
        )
    if kl and kl.into == "sequence_reward" and recipe.not_ended == "zero":
        raise SignalError(
            f"recipe {recipe.name!r}: not_ended = 'zero' keeps the KL penalty and drops the task reward, "
            "but kl.into = 'sequence_reward' has merged the two before. "
            "Use kl.into = 'token_reward' or 'loss', or not_ended = 'suppress'."
        )
    if kl and ("logp_anchor" in kl.part.formula.inputs) != (kl.anchor is not None):
        raise SignalError(
            f"recipe {recipe.name!r}: {kl.part.formula.name} and kl.anchor = {kl.anchor!r} do not fit; "
            "only the importance-weighted KL has an anchor."
        )
    if recipe.value and "value_old" not in recipe.advantage.formula.inputs:
        raise SignalError(
            f"recipe {recipe.name!r}: has a value term but {recipe.advantage.formula.name} makes no value target. "
            "Use advantage.gae."
        )
    if recipe.loss.part.formula.constant_advantage:
        for stage in recipe.correction:
            level = stage.part.settings.get("level", stage.part.formula.scope)
            if stage.part.formula.stage == "importance" and level == "token":
                raise SignalError(
                    f"recipe {recipe.name!r}: {recipe.loss.part.formula.name} shares one gradient among a sequence's "
                    f"tokens, and {stage} varies inside it, so tokens would leak weight into one another. "
                    "Use level = 'sequence' or 'geometric', or policy_loss.geometric_clipped_token."
                )
