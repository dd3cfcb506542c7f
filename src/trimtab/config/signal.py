"""From a run file's words to a `Recipe`: the only place that turns tables into parts, stages and terms."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from trimtab.config.correction import OffPolicyCorrection
from trimtab.errors import ConfigError, SignalError
from trimtab.signal import KL, Part, Recipe, Stage, Term, part, recipe

Off = Literal["none"]


class PartTable(BaseModel):
    """`{ formula = "clipped", band = [0.8, 1.28] }`; without a formula, other settings for the recipe's own."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    formula: str | None = None
    """A catalogue name ("clipped" or "policy_loss.clipped"), a dotted path of your own, or left out: the recipe's."""

    def part(self, stage: str | None, base: Part | None = None) -> Part:
        settings = self.model_extra or {}
        if self.formula is not None:
            return part(self.formula, stage, **settings)
        if base is None:
            raise ConfigError(
                f"signal: a table with {sorted(settings) or 'nothing'} names no formula, and the recipe has none here "
                'to change. Write { formula = "…", … }.'
            )
        return part(base.formula.name, stage, **{**base.settings, **settings})


class StageTable(PartTable):
    """A part and the policies it compares: `ratio` (engine, update, total) or `anchor` (old, rollout)."""

    ratio: Literal["engine", "update", "total"] | None = None
    """For a formula that reads a log-ratio."""
    anchor: Literal["old", "rollout"] | None = None
    """For a formula that compares the current policy with one of these; the recipe's when left out."""

    def stage(self, stage: str | None, base: Stage | None = None) -> Stage:
        made = self.part(stage, base.part if base else None)
        inherits = base is not None and "logp_anchor" in made.formula.inputs
        return Stage(made, ratio=self.ratio, anchor=self.anchor or (base.anchor if base and inherits else None))


class KLTable(PartTable):
    """`{ formula = "k3", coef = 0.001, into = "loss" }`; what is left out is the recipe's."""

    coef: float | None = None
    """Weight of the penalty, 0 or more."""
    into: Literal["sequence_reward", "token_reward", "loss"] | None = None
    """Where it acts."""
    anchor: Literal["old", "rollout"] | None = None
    """Who sampled, for the importance-weighted estimator."""
    on: Literal["all", "kept"] | None = None
    """Which tokens it acts on, in the loss."""

    def kl(self, base: KL | None) -> KL:
        coef = self.coef if self.coef is not None else base.coef if base else None
        into = self.into or (base.into if base else None)
        if coef is None or into is None:
            raise ConfigError('signal.kl: needs coef and into. Write { formula = "k3", coef = 0.001, into = "loss" }.')
        made = self.part("kl", base.part if base else None)
        anchored = "logp_anchor" in made.formula.inputs
        anchor = self.anchor or (base.anchor if base and anchored else None)
        return KL(made, coef, into, anchor, self.on or (base.on if base else "all"))


class TermTable(BaseModel):
    """A regulariser: `{ coef = 0.01 }`; the value term also names its formula."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    coef: float
    """Weight of the term."""
    formula: str | None = None
    """The value loss: squared or squared_clipped."""
    on: Literal["all", "kept"] = "all"
    """Which tokens it acts on."""

    def term(self) -> Term:
        settings = self.model_extra or {}
        if self.formula is None and settings:
            raise ConfigError(
                f"signal: term has no setting {sorted(settings)}; it takes coef, on and, for the value, formula."
            )
        return Term(self.coef, part(self.formula, "value_loss", **settings) if self.formula else None, self.on)


class SignalTable(BaseModel):
    """Fields of the recipe that are your own; everything left out is the recipe's."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    reward: list[PartTable] | None = None
    """Shaping of the task reward, in order: affine, clip, soft_overlong, not_ended_penalty, not_ended_scale."""
    not_ended: Literal["train", "suppress", "zero"] | None = None
    """An episode that did not end: trains as it is; neither votes nor trains; zero task reward after normalising."""
    filter_constant_groups: bool | None = None
    """Drop groups whose answers all got the same reward."""
    normalize: PartTable | None = None
    """Baseline and scale: raw, mean_std, leave_one_out."""
    advantage: PartTable | None = None
    """Credit over tokens: broadcast, reward_to_go, gae."""
    whiten: bool | None = None
    """Whiten advantages over the batch's voting tokens."""
    clip_advantage: float | None = None
    """Bound on |advantage|, above 0."""
    correction: list[StageTable] | None = None
    """Off-policy correction: importances multiply, keeps are and-ed."""
    loss: StageTable | None = None
    """The policy loss."""
    weighting: PartTable | None = None
    """The denominator: token_mean, sequence_mean_token_mean, sequence_mean_token_sum, constant_divisor;
    over all tokens or the kept ones."""
    kl: KLTable | Off | None = None
    """Penalty for leaving the reference, or "none"."""
    entropy: TermTable | Off | None = None
    """Entropy bonus, or "none"."""
    value: TermTable | Off | None = None
    """Value loss of a critic, or "none"."""
    nll: TermTable | Off | None = None
    """Negative log-likelihood of the sampled tokens, or "none"."""
    old: Literal["recompute", "current", "absent"] | None = None
    """Where logp_old comes from: a forward pass before the first update, the current policy, or nowhere."""
    allow_double_count: bool | None = None
    """Let two parts carry the same factor of current/rollout."""

    def changes(self, base: Recipe) -> dict[str, Any]:
        """The recipe fields this table sets; a table without a formula changes the recipe's own."""
        made: dict[str, Any] = {}
        for name in sorted(self.model_fields_set):
            given = getattr(self, name)
            if given is not None:
                made[name] = _made(name, given, base)
        return made


def _made(name: str, given: Any, base: Recipe) -> Any:
    if given == "none":
        return None
    if isinstance(given, StageTable):
        return given.stage("policy_loss", base.loss)
    if isinstance(given, KLTable):
        return given.kl(base.kl)
    if isinstance(given, TermTable):
        return given.term()
    if isinstance(given, PartTable):
        return given.part(name, getattr(base, name))
    if name == "reward":
        return tuple(table.part("reward") for table in given)
    if name == "correction":
        return tuple(table.stage(None) for table in given)
    return given


def build_recipe(name: str, table: SignalTable, block: OffPolicyCorrection) -> Recipe:
    """The recipe a run file asks for: its name, then its own fields, then the off-policy-correction block."""
    try:
        base = recipe(name, **table.changes(recipe(name)))
        stages = block.stages()
        return replace(base, correction=(*base.correction, *stages)) if stages else base
    except SignalError as error:
        raise ConfigError(str(error)) from error


def explain_recipe(one: Recipe) -> list[tuple[str, str, str]]:
    """What runs, in order: (moment, formula with settings, source)."""
    rows = [("reward", str(p), p.formula.source) for p in one.reward]
    rows += [("votes", f"not_ended = {one.not_ended}, filter_constant_groups = {one.filter_constant_groups}", "")]
    if one.kl and one.kl.into != "loss":
        rows.append((f"kl into {one.kl.into}", f"{one.kl.coef:g} x {one.kl.part}", one.kl.part.formula.source))
    for p in (one.normalize, one.advantage):
        rows.append((p.formula.stage, str(p), p.formula.source))
    if one.whiten:
        rows.append(("whiten", "mean 0 and variance 1 over voting tokens", ""))
    for stage in one.correction:
        when = "every micro-batch" if one.is_late(stage) else "once a batch, before the vote"
        if stage.part.formula.name == "keep.veto":
            when += "; stands alone, whatever else is on (in SkyRL it acts only beside a ratio or a mask)"
        rows.append((stage.part.formula.stage, f"{stage} ({when})", stage.part.formula.source))
    rows.append(("policy loss", str(one.loss), one.loss.part.formula.source))
    rows.append(("weighting", str(one.weighting), one.weighting.formula.source))
    for label, term in (
        ("kl", one.kl if one.kl and one.kl.into == "loss" else None),
        ("entropy", one.entropy),
        ("value", one.value),
        ("nll", one.nll),
    ):
        if term is not None:
            what = f"{term.coef:g} x {term.part or label} on {term.on}"
            rows.append((f"term {label}", what, term.part.formula.source if term.part else ""))
    return rows
