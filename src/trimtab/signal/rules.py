"""Which parts go together: the only place that refuses a recipe whose parts are right and whose sum has no meaning."""

from typing import TYPE_CHECKING

from trimtab.errors import SignalError
from trimtab.signal.catalogue import EVERYWHERE, INPUTS
from trimtab.signal.parts import Part

if TYPE_CHECKING:
    from trimtab.signal.composition import Recipe


def refuse_senseless(recipe: "Recipe") -> None:
    """Raise unless every part is in its place, can read what it needs, and counts no factor twice."""
    _refuse_misplaced(recipe)
    _refuse_unreadable(recipe)
    _refuse_double_count(recipe)
    _refuse_missing_old(recipe)
    _refuse_lost_reward(recipe)
    _refuse_orders(recipe)


def _refuse_misplaced(recipe: "Recipe") -> None:
    """Every slot takes formulas of its own stage: a loss is no importance, whatever its inputs fit."""
    slots: dict[str, tuple[tuple[Part, ...], tuple[str, ...]]] = {
        "reward": (recipe.reward, ("reward",)),
        "normalize": ((recipe.normalize,), ("normalize",)),
        "advantage": ((recipe.advantage,), ("advantage",)),
        "correction": (tuple(stage.part for stage in recipe.correction), ("importance", "keep")),
        "loss": ((recipe.loss.part,), ("policy_loss",)),
        "weighting": ((recipe.weighting,), ("weighting",)),
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
    for name in ("entropy", "nll", "observed"):
        term = getattr(recipe, name)
        if term is not None and term.part is not None:
            raise SignalError(f"recipe {recipe.name!r}: the {name} term takes no formula; it has one meaning.")
    if recipe.observed is not None and recipe.observed.on != "all":
        raise SignalError(
            f"recipe {recipe.name!r}: observed.on = {recipe.observed.on!r} chooses tokens of the environment, about "
            "which nothing is decided. Leave on out."
        )
    for name in ("entropy", "value"):
        term = getattr(recipe, name)
        if term is not None and term.on == "rewarded":
            raise SignalError(
                f"recipe {recipe.name!r}: {name}.on = 'rewarded' would act where answers are right and nowhere else. "
                "Only nll does that. Use on = 'all' or 'kept'."
            )


def _refuse_unreadable(recipe: "Recipe") -> None:
    """A formula that reads what exists only at another moment can never run, whatever the batch carries."""
    for one in recipe.parts():
        there = INPUTS[one.formula.stage]
        lost = [name for name in one.formula.inputs if name in EVERYWHERE and name not in there]
        if lost:
            raise SignalError(
                f"recipe {recipe.name!r}: {one.formula.name} reads {lost}, which is not there when a "
                f"{one.formula.stage} formula runs. It may read {', '.join(there)}, and the batch's extra fields."
            )


def _refuse_double_count(recipe: "Recipe") -> None:
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


def _refuse_missing_old(recipe: "Recipe") -> None:
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


def _refuse_lost_reward(recipe: "Recipe") -> None:
    """What comes before a formula that replaces the reward would be lost."""
    lost = [str(one) for one in recipe.reward[1:] if "reward" not in one.formula.inputs]
    if lost:
        raise SignalError(
            f"recipe {recipe.name!r}: {lost[0]} replaces the reward, so the shaping before it would be lost. "
            "Put it first."
        )
    if "reward" in recipe.normalize.formula.inputs:
        return
    shaped = [str(one) for one in recipe.reward]
    if recipe.kl and recipe.kl.into == "sequence_reward":
        shaped.append("kl.into = 'sequence_reward'")
    if shaped:
        raise SignalError(
            f"recipe {recipe.name!r}: {recipe.normalize.formula.name} reads the batch's rewards and not the shaped "
            f"reward, so {shaped[0]} would be lost. Use reward.weighted_sum with another normalisation, or leave it "
            "out."
        )


def _refuse_orders(recipe: "Recipe") -> None:
    tokenwise = "token_reward" in recipe.advantage.formula.inputs
    kl = recipe.kl
    if recipe.whiten_token_rewards and not tokenwise:
        raise SignalError(
            f"recipe {recipe.name!r}: whiten_token_rewards with {recipe.advantage.formula.name}, which reads no token "
            "rewards, so it would act nowhere. Use advantage.reward_to_go or advantage.gae."
        )
    if recipe.whiten_token_rewards and "outcome" in recipe.advantage.formula.inputs:
        raise SignalError(
            f"recipe {recipe.name!r}: whiten_token_rewards with {recipe.advantage.formula.name}, which finds the "
            "outcome among the token rewards, and whitened ones no longer hold it. Leave whiten_token_rewards out."
        )
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
    if kl and kl.into != "loss" and "logp_anchor" in kl.part.formula.inputs:
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
    if recipe.value and "value_old" not in recipe.advantage.formula.inputs:
        raise SignalError(
            f"recipe {recipe.name!r}: has a value term but {recipe.advantage.formula.name} makes no value target. "
            "Use advantage.gae."
        )
    if recipe.loss.part.formula.constant_advantage:
        for stage in recipe.correction:
            level = stage.part.settings.get("level", stage.part.formula.scope)
            varies = level == "token" or "turn" in stage.part.formula.inputs
            if stage.part.formula.stage == "importance" and varies:
                raise SignalError(
                    f"recipe {recipe.name!r}: {recipe.loss.part.formula.name} shares one gradient among a sequence's "
                    f"tokens, and {stage} varies inside it, so tokens would leak weight into one another. "
                    "Use level = 'sequence' or 'geometric', or policy_loss.geometric_clipped_token."
                )
