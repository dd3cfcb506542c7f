"""The door of `prepare`: the only place that asks whether batch, recipe and whatever else is given fit together."""

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.catalogue import EVERYWHERE
from trimtab.signal.composition import Recipe
from trimtab.signal.cookbook import recipe as named
from trimtab.signal.door import check_floats, check_tokens
from trimtab.signal.layout import PerToken, places
from trimtab.signal.reduce import sequence_any, to_tokens
from trimtab.signal.state import SignalState
from trimtab.signal.tensors import as_count, as_tensor

ORIGIN = {
    "logp_old": "logp_old is the trainer's own: a forward pass without gradient before the first update.",
    "logp_rollout": "logp_rollout is what the engine reported while sampling: record it.",
    "logp_ref": "logp_ref is the frozen reference's: a forward pass without gradient.",
    "value_old": "value_old is the critic's, before the first update.",
    "ended": "ended is the finish reason of each sequence: record it.",
    "rewards": "rewards has one row per episode and one column per reward function.",
    "observed": "observed is how many tokens of the environment each sequence holds.",
    "baseline": "baseline is one number per episode, e.g. the reward of a greedy answer to its prompt.",
    "role": "role is one number per episode, from 0: who the policy was in it.",
}
"""Where a field a recipe needs comes from."""

READERS = {
    "rewards": "reward.weighted_sum or normalize.each_key, or give the one reward of each episode as reward",
    "baseline": "normalize.minus_given, or give the one reward of each episode as reward",
    "role": "normalize.minus_role_average, or leave role out",
}
"""What reads a field of episodes that few formulas do."""


def checked_recipe(batch: SignalBatch, recipe: Recipe | str, *, given_advantage: bool) -> Recipe:
    """The recipe that runs on this batch, if everything it needs is there."""
    if not isinstance(batch, SignalBatch):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(
            f"prepare: takes a batch, not {type(batch).__name__}. Make one with SignalBatch.from_padded, from_list or "
            "from_packed."
        )
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(chosen, Recipe):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SignalError(
            f"prepare: recipe is a {type(chosen).__name__}. Give a name (trimtab catalog) or recipe(name, …)."
        )
    if given_advantage and chosen.value is not None:
        raise SignalError(
            f"prepare: recipe {chosen.name!r} trains a value, and its target comes with the advantage that you give. "
            "Let the recipe compute the advantage (reward, value_old, ended), or say value=None."
        )
    chosen = chosen.with_given_advantage if given_advantage else chosen
    _check_needs(batch, chosen)
    return chosen


def check_numbers(state: SignalState | None, version: int | None, seed: int) -> None:
    """Raise unless state, version and seed are what they are called."""
    if state is not None and not isinstance(state, SignalState):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SignalError(f"prepare: state is a {type(state).__name__}. Pass on the state that prepare returned.")
    if version is not None:
        _ = as_count(version, "prepare", "version", least=0)
    _ = as_count(seed, "prepare", "seed", least=0)


def read_advantage(advantage: PerToken, batch: SignalBatch) -> PerToken:
    """The caller's advantage, checked like any field of the batch."""
    values = as_tensor(advantage, "prepare: advantage", dtype=batch.dtype, device=batch.reward.device)
    if values.shape != (batch.num_tokens,):
        raise SignalError(
            f"prepare: advantage has shape {list(values.shape)} for {batch.num_tokens} trainable tokens. "
            "Give one number per trainable token, sequence after sequence."
        )
    check_floats("prepare", "advantage", values)
    check_tokens("prepare", "advantage", values, batch.segments, is_logp=False)
    return values.to(batch.dtype, copy=True)


def _check_needs(batch: SignalBatch, recipe: Recipe) -> None:
    carried = {
        "logp_old", "logp_rollout", "logp_ref", "value_old", "ended", "position", "turn", "version", "rewards",
        "baseline", "role", "observed",
    }  # fmt: skip
    missing = sorted(name for name in recipe.needs & carried if getattr(batch, name) is None)
    if missing:
        raise SignalError(
            f"prepare: recipe {recipe.name!r} needs {', '.join(missing)}, which the batch does not carry, "
            "so its correction or penalty would silently not act. "
            f"{' '.join(ORIGIN[name] for name in missing if name in ORIGIN)} "
            "Or choose a recipe that does without (trimtab explain)."
        )
    clash = sorted(n for n in batch.extra if n in {*EVERYWHERE, "importance", "voted"} or n.startswith("weight_"))
    if clash:
        raise SignalError(
            f"prepare: the batch's extra names {clash}, which the pipeline makes itself, so a formula would read yours "
            "instead. Choose other names."
        )


def refuse_unread(batch: SignalBatch, recipe: Recipe) -> None:
    """A reward, a baseline or a role that no formula reads would be lost."""
    read = {name for one in (*recipe.reward, recipe.normalize, recipe.advantage) for name in one.formula.inputs}
    read |= {"role"} if "role_average" in read else set()
    lost = [name for name in READERS if getattr(batch, name) is not None and name not in read]
    if lost:
        raise SignalError(
            f"prepare: the batch carries {lost[0]} but recipe {recipe.name!r} reads none, so it would be lost. "
            f"Use {READERS[lost[0]]}."
        )
    if batch.token_reward is not None and "token_reward" not in recipe.advantage.formula.inputs:
        raise SignalError(
            f"prepare: the batch carries token_reward but {recipe.advantage.formula.name} reads none, "
            "so it would be lost. Use advantage.reward_to_go or advantage.gae, or add it to the episode's reward."
        )


def refuse_varying(advantage: PerToken, batch: SignalBatch, recipe: Recipe) -> None:
    """Raise where a loss that shares one gradient per sequence meets credit that differs inside one."""
    if not batch.num_tokens:
        return
    first = to_tokens(advantage[batch.segments.first_token.clamp(max=advantage.shape[0] - 1)], batch.segments)
    varies = places(sequence_any(advantage != first, batch.segments))
    if varies:
        raise SignalError(
            f"prepare: the advantage varies inside sequences {varies[:8]}, but {recipe.loss.part.formula.name} shares "
            "one gradient among a sequence's tokens, so one token's credit would train another. "
            "Use policy_loss.geometric_clipped_token."
        )
