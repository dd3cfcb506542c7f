"""From a run file's words to a `Recipe`: the fields of `[signal]` go to `recipe(…)` as they are written.

What a field may hold, and every sentence about what it may not, is the signal's own: Python and run files share it.
"""

from dataclasses import replace
from typing import Any

from pydantic import ConfigDict

from trimtab.config.correction import OffPolicyCorrection
from trimtab.config.table import Table
from trimtab.errors import ConfigError, SignalError
from trimtab.signal import Recipe, recipe


class SignalTable(Table):
    """Fields of the recipe that are your own; everything left out is the recipe's."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    reward: Any = None
    """Shaping of the task reward, in order: affine, clip, soft_overlong, not_ended_penalty, and others."""
    not_ended: Any = None
    """An episode that did not end: train as it is; suppress (no vote, no training); zero (task reward 0 after
    normalising)."""
    filter_constant_groups: Any = None
    """Drop groups whose answers all got the same reward: true or false."""
    group_mean_band: Any = None
    """Drop groups whose mean task reward is not strictly between [low, high], or "none"."""
    normalize: Any = None
    """Baseline and scale: raw, mean_std, leave_one_out, and others of the catalogue."""
    advantage: Any = None
    """Credit over tokens: broadcast, reward_to_go, gae, and others of the catalogue."""
    whiten_token_rewards: Any = None
    """Whiten token rewards over the batch's voting tokens, before they become advantages: true or false."""
    whiten: Any = None
    """Whiten advantages over the batch's voting tokens: true or false."""
    clip_advantage: Any = None
    """Bound on |advantage|, above 0, or "none"."""
    correction: Any = None
    """Off-policy correction: a list of tables, a recipe's name ("tis"), or "none"."""
    loss: Any = None
    """The policy loss: a formula's name, or a table of its settings."""
    weighting: Any = None
    """The denominator: token_mean, sequence_mean_token_mean, sequence_mean_token_sum, constant_divisor, token_sum;
    over all tokens or the kept ones."""
    kl: Any = None
    """Penalty for leaving the reference: its coefficient, a table, or "none"."""
    entropy: Any = None
    """Entropy bonus: its coefficient, a table, or "none"."""
    value: Any = None
    """Value loss of a critic: its coefficient, a table, or "none"."""
    nll: Any = None
    """Negative log-likelihood of the sampled tokens: its coefficient, a table, or "none"; of right answers alone with
    on = "rewarded"."""
    observed: Any = None
    """Negative log-likelihood of what the environment wrote: its coefficient, or "none". In your own trainer only."""
    old: Any = None
    """Where logp_old comes from: recompute (a forward pass before the first update), current, or absent."""
    allow_double_count: Any = None
    """Let two parts carry the same factor of current/rollout: true or false."""

    def changes(self) -> dict[str, Any]:
        """The fields that are set, as they were written; a name that is no field is left for the recipe to refuse."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


def build_recipe(name: str, table: SignalTable, block: OffPolicyCorrection) -> Recipe:
    """The recipe a run file asks for: its name, then its own fields, then the off-policy-correction block."""
    try:
        base = recipe(name, **table.changes())
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
    if one.group_mean_band is not None:
        rows.insert(len(one.reward) + 1, ("votes", f"group_mean_band = {one.group_mean_band}", ""))
    if one.whiten_token_rewards:
        rows.append(("whiten", "token rewards to mean 0 and variance 1 over voting tokens, before the advantage", ""))
    if one.whiten:
        rows.append(("whiten", "mean 0 and variance 1 over voting tokens", ""))
    for stage in one.correction:
        when = "every micro-batch" if one.is_late(stage) else "once per batch"
        when += "" if one.is_late(stage) else ", after the vote" if one.votes_first(stage) else ", before the vote"
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
        ("observed", one.observed),
    ):
        if term is not None:
            what = f"{term.coef:g} x {term.part or label} on {term.on}"
            rows.append((f"term {label}", what, term.part.formula.source if term.part else ""))
    return rows
