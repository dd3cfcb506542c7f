"""What a recipe is: a training signal as a whole, and the only place that tells from its fields what it needs and when.

Everything is checked when it is made, so a recipe that exists has a meaning. It has no arithmetic. It knows no paper
(recipes.py), no stage, KL or term from within (ingredient.py), no kind of a field (type_refusal.py), no rule about
parts that go together (rules.py), no shorthand (shorthand.py) and no file format (config).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from trimtab.signal.catalogue import AFTER_THE_VOTE, EVERYWHERE, NOW
from trimtab.signal.ingredient import KL, NotEnded, Old, Stage, Term
from trimtab.signal.parts import Part, part
from trimtab.signal.rules import refuse_senseless
from trimtab.signal.type_refusal import refuse_types

CARRIED = frozenset({"logp_ref", "value_old", "entropy", "position", "turn", "version", "rewards", "baseline", "role"})
"""Fields of a batch, or of the model, that formulas name as inputs and a trainer must supply."""


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
    observed: Term | None = None
    """Negative log-likelihood of the tokens that the environment wrote, over their own number."""
    old: Old = "recompute"
    """Where logp_old comes from: a forward pass before the first update, the current policy, between sampler and
    current policy by the age of each token, or nowhere."""
    allow_double_count: bool = False
    """Let two parts carry the same factor of current/rollout."""

    def __post_init__(self) -> None:
        refuse_types(self)
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
        wanted = {name for name in inputs if name not in EVERYWHERE}  # extra fields, by their own names
        wanted |= inputs & CARRIED
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
        if self.observed:
            wanted.add("observed")
        if "role_average" in inputs:
            wanted.add("role")
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
