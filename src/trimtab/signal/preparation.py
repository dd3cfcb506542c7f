"""`prepare`: everything about a batch that does not need the current policy. Once per batch, without gradient.

The order is the only one there is: shape rewards → status and votes → KL into the reward → normalise → token rewards →
advantages → whiten → clip. Corrections that read neither the advantage nor the current policy come before the vote, so
that what they reject moves nobody.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.batch_metrics import batch_metrics, by_age, shaping_metrics
from trimtab.signal.catalogue import INPUTS
from trimtab.signal.composition import Recipe
from trimtab.signal.cookbook import recipe as named
from trimtab.signal.diagnostics import Population, drift, stage_metrics
from trimtab.signal.door import check_floats, check_tokens
from trimtab.signal.fast.choice import are_many_watched, is_all_watched, is_fast
from trimtab.signal.fast.per_group import normalized
from trimtab.signal.fast.per_sequence import StageShortcuts
from trimtab.signal.fields import Field, Fields, everything, ones
from trimtab.signal.layout import (
    EpisodeFlag,
    Keep,
    PerEpisode,
    PerSequence,
    PerToken,
    Segments,
    SequenceFlag,
    places,
)
from trimtab.signal.metric_kind import Mean, Metric
from trimtab.signal.metrics import Metrics
from trimtab.signal.mismatch import explained, mismatch
from trimtab.signal.normalize import whiten
from trimtab.signal.parts import run
from trimtab.signal.proximal import CURRENT_SHARE, current_share
from trimtab.signal.ratio import EXACT_RATIO, EXACT_TOTAL, Ratio
from trimtab.signal.reduce import segment_sum, sequence_any, to_tokens
from trimtab.signal.reward import token_rewards
from trimtab.signal.stages import conjunction, product, run_stages
from trimtab.signal.state import SignalState, drift_warning
from trimtab.signal.steering import next_coef, next_moments, running, steered, steering_metrics
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import as_count, as_tensor, between, quiet
from trimtab.signal.update import Update, token_key, updates_of
from trimtab.signal.vote import constant_groups, ended_episodes, episode_fields, groups_outside, votes_and_trains

RESERVED = frozenset(name for names in INPUTS.values() for name in names)
"""Names the pipeline makes itself."""

ORIGIN = {
    "logp_old": "logp_old is the trainer's own: a forward pass without gradient before the first update.",
    "logp_rollout": "logp_rollout is what the engine reported while sampling: record it.",
    "logp_ref": "logp_ref is the frozen reference's: a forward pass without gradient.",
    "value_old": "value_old is the critic's, before the first update.",
    "ended": "ended is the finish reason of each sequence: record it.",
    "rewards": "rewards has one row per episode and one column per reward function.",
    "baseline": "baseline is one number per episode, e.g. the reward of a greedy answer to its prompt.",
}
"""Where a field a recipe needs comes from."""


@dataclass(frozen=True)
class Prepared:
    """A batch with its advantages, votes and early decisions; `updates` cuts it into optimiser steps."""

    batch: SignalBatch
    recipe: Recipe
    fields: Fields
    """Every token field that an update may read, as it is held."""
    votes: EpisodeFlag
    trains: SequenceFlag
    all_train: bool
    """Every sequence trains."""
    kl: PerToken | None
    """The raw KL of old to the reference, where the reward carries it: what is logged is what was computed."""
    metrics: Metrics
    warnings: tuple[str, ...]
    seed: int
    passes: list[int] = field(default_factory=list[int])
    """How often `updates` has begun; the one thing here that changes."""

    @property
    def advantage(self) -> PerToken:
        return self.fields["advantage"]

    @property
    def returns(self) -> PerToken:
        return self.fields["returns"]

    @property
    def keep(self) -> Keep:
        """What the corrections decided so far; the ones that need the current policy come later."""
        return self.fields["keep"]

    @property
    def importance(self) -> PerToken:
        return self.fields["importance"]

    @property
    def voted(self) -> Keep:
        """Tokens that stood when their episode voted: kept so far, of an episode that votes."""
        return self.fields["voted"]

    @property
    def num_training_groups(self) -> int:
        """The most updates that keep groups together; a filter may leave few groups, or none at all."""
        levels = self.batch.levels
        groups = levels.group_of_episode[levels.episode_of_sequence[self.trains]]
        return len(cast("Tensor", torch.unique(groups)))

    def updates(self, num: int = 1, *, together: str = "group") -> Iterator[Update]:
        """Cut the sequences that train into `num` optimiser steps; groups stay together unless together="sequence"."""
        return updates_of(self, num, together)


@quiet
@torch.no_grad()
def prepare(
    batch: SignalBatch,
    recipe: Recipe | str,
    state: SignalState | None = None,
    *,
    version: int | None = None,
    seed: int = 0,
    advantage: PerToken | None = None,
) -> tuple[Prepared, SignalState]:
    """From rollouts to advantages. `version` is the trainer's, to tell stale tokens; `seed` seeds random selection.

    `advantage` is for callers who have computed it: one number per trainable token, sequence after sequence. What the
    recipe does before the advantage is then the caller's: reward shaping, KL in the reward, normalisation, credit,
    whitening and clipping do not run.
    """
    recipe = _checked_recipe(batch, recipe, given_advantage=advantage is not None)
    _check_numbers(state, version, seed)
    known_so_far = state or SignalState()
    recipe = steered(recipe, known_so_far.memory)
    segments, levels = batch.segments, batch.levels
    available, ratios = _available(batch, recipe, seed), _engine_ratio(batch)
    shortcut = StageShortcuts(ratios) if is_fast() else None
    early = run_stages(recipe.stages_before_the_vote, available, shortcut)
    keep = conjunction(everything(segments), early.keeps)
    votes, trains = votes_and_trains(batch, recipe, keep)
    constant = constant_groups(batch, votes)
    if recipe.filter_constant_groups:
        trains = trains & ~levels.to_sequences(constant[levels.group_of_episode])
    outside = None
    if recipe.group_mean_band is not None:
        outside = groups_outside(batch, votes, recipe.group_mean_band)
        trains = trains & ~levels.to_sequences(outside[levels.group_of_episode])
    kl = _kl_of_old(batch, recipe)
    shaped = _with_kl(batch, recipe, kl, votes)
    moments = next_moments(recipe, shaped, votes, known_so_far.memory)
    outcome, has_signal = _normalize(batch, recipe, shaped, votes, running(moments, batch))
    voted = keep & Field(levels.to_sequences(votes), segments, True)
    training = Field(trains, segments, True)
    if advantage is None:
        voting = voted & training
        credit, returns = _credit(batch, recipe, outcome, kl, votes, trains, voting)
        credit = _settle(recipe, credit, voting)
    else:
        credit = Field(_taken(advantage, batch), segments)
        returns = Field(credit.values.clone(), segments)
    if recipe.loss.part.formula.constant_advantage and not credit.is_shared:
        _refuse_varying(credit.tokens, batch, recipe)
    known = ChainMap({"trains": trains}, cast("Any", Fields(segments, {"advantage": credit, "returns": returns})))
    after = run_stages(recipe.stages_after_the_vote, ChainMap(*known.maps, available), shortcut)
    stages = early.merge(after)
    tally, population = Tally(segments), Population(training, credit)
    entries = batch_metrics(tally, batch, votes, training, has_signal, constant, credit, kl)
    if outside is not None:
        entries["out_of_band_groups/group_fraction"] = Mean.fraction(outside)
    stage_metrics(tally, stages, population)
    entries |= tally.entries() | shaping_metrics(batch, recipe, votes) | by_age(batch, ratios, version)
    kept = conjunction(keep, after.keeps)
    entries |= steering_metrics(recipe)
    if are_many_watched():
        entries |= _more_metrics(batch, kept, returns, training)
    metrics = drift(ratios, segments).after(entries)
    numbers = metrics.numbers()
    state, said = known_so_far.observe(numbers)
    learned = next_coef(recipe, numbers, levels.num_episodes) | moments
    state = replace(state, memory={**state.memory, **learned}) if learned else state
    held = _exact_engine(ratios, segments) | _carried(batch) | _owners(batch) | _shares(batch, recipe, version)
    decided = {
        "advantage": credit, "returns": returns, "keep": kept, "voted": voted,
        "importance": product(ones(segments, batch.dtype), stages.importances),
    }  # fmt: skip
    prepared = Prepared(
        batch=batch,
        recipe=recipe,
        fields=Fields(segments, {**held, **decided}),
        votes=votes,
        trains=trains,
        all_train=numbers.get("trains/sequence_fraction") == 1.0,
        kl=kl,
        metrics=metrics,
        warnings=(*drift_warning(recipe, numbers.get("logratio_engine/token_abs_mean", 0.0)), *said),
        seed=seed,
    )
    return prepared, state


def _more_metrics(batch: SignalBatch, kept: Field, returns: Field, training: Field) -> dict[str, Metric]:
    """What is only measured where it is asked for."""
    found: dict[str, Metric] = {}
    if batch.logp_old is not None and batch.logp_rollout is not None:
        found |= mismatch(batch.logp_old, batch.logp_rollout, batch.segments, kept.tokens)
    if batch.value_old is not None:
        found |= explained(returns, batch.value_old, training)
    return found


def _carried(batch: SignalBatch) -> dict[str, Field]:
    """The token fields of the batch that an update may read."""
    held = {
        "logp_old": batch.logp_old, "logp_rollout": batch.logp_rollout, "logp_ref": batch.logp_ref,
        "value_old": batch.value_old, "position": batch.position, "turn": batch.turn, "version": batch.version,
        **batch.extra,
    }  # fmt: skip
    return {name: Field(values, batch.segments) for name, values in held.items() if values is not None}


def _shares(batch: SignalBatch, recipe: Recipe, version: int | None) -> dict[str, Field]:
    """Where the old policy of each token lies between sampler and current policy, if the recipe puts it there."""
    if recipe.old != "interpolated" or batch.version is None:
        return {}
    if version is None:
        raise SignalError(
            f"prepare: recipe {recipe.name!r} has old = 'interpolated', which goes by the age of each token, and "
            "nobody said which version trains. Give prepare(…, version=…), the number of the parameters to update."
        )
    return {CURRENT_SHARE: Field(current_share(batch.version, version, batch.dtype), batch.segments)}


def _owners(batch: SignalBatch) -> dict[str, Field]:
    """The episode and the group of each token, for weightings that count these."""
    levels = batch.levels
    group_of_sequence = levels.to_sequences(levels.group_of_episode)
    return {
        "episode_of_token": Field(levels.episode_of_sequence, batch.segments, True),
        "group_of_token": Field(group_of_sequence, batch.segments, True),
    }


def _checked_recipe(batch: SignalBatch, recipe: Recipe | str, *, given_advantage: bool) -> Recipe:
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


def _check_numbers(state: SignalState | None, version: int | None, seed: int) -> None:
    if state is not None and not isinstance(state, SignalState):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SignalError(f"prepare: state is a {type(state).__name__}. Pass on the state that prepare returned.")
    if version is not None:
        _ = as_count(version, "prepare", "version", least=0)
    _ = as_count(seed, "prepare", "seed", least=0)


def _taken(advantage: PerToken, batch: SignalBatch) -> PerToken:
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
        "baseline",
    }  # fmt: skip
    missing = sorted(name for name in recipe.needs & carried if getattr(batch, name) is None)
    if missing:
        raise SignalError(
            f"prepare: recipe {recipe.name!r} needs {', '.join(missing)}, which the batch does not carry, "
            "so its correction or penalty would silently not act. "
            f"{' '.join(ORIGIN[name] for name in missing if name in ORIGIN)} "
            "Or choose a recipe that does without (trimtab explain)."
        )
    clash = sorted(n for n in batch.extra if n in {*RESERVED, "importance", "voted"} or n.startswith("weight_"))
    if clash:
        raise SignalError(
            f"prepare: the batch's extra names {clash}, which the pipeline makes itself, so a formula would read yours "
            "instead. Choose other names."
        )


def _shaped(batch: SignalBatch, recipe: Recipe, votes: EpisodeFlag) -> PerEpisode:
    """Task rewards after shaping; unscored ones are set to 0 so that nothing undefined travels on."""
    reward = torch.where(batch.scored, batch.reward, 0.0)
    for step in recipe.reward:
        reward = run(step, {"reward": reward, **episode_fields(batch, votes)})
    return reward


def _token_fields(batch: SignalBatch) -> dict[str, Any]:
    """What the batch carries of every token."""
    return {
        "logp_old": batch.logp_old, "logp_rollout": batch.logp_rollout, "logp_ref": batch.logp_ref,
        "value_old": batch.value_old, "position": batch.position, "turn": batch.turn, "version": batch.version,
        "segments": batch.segments, **batch.extra,
    }  # fmt: skip


def _available(batch: SignalBatch, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What a correction can read before anything was decided."""
    key = token_key(batch.segments, batch.sequence_id, seed) if recipe.reads_token_key else None
    return {**dict.fromkeys(INPUTS["keep"]), **_token_fields(batch), "token_key": key}


def _kl_of_old(batch: SignalBatch, recipe: Recipe) -> PerToken | None:
    if recipe.kl is None or recipe.kl.into == "loss":
        return None
    return run(recipe.kl.part, {**_token_fields(batch), "logp_current": batch.logp_old, "logp_anchor": None})


def _with_kl(batch: SignalBatch, recipe: Recipe, kl: PerToken | None, votes: EpisodeFlag) -> PerEpisode:
    """Shaped rewards, minus the KL where it acts on them."""
    reward, levels = _shaped(batch, recipe, votes), batch.levels
    if recipe.kl is not None and kl is not None and recipe.kl.into == "sequence_reward":
        reward = reward - recipe.kl.coef * segment_sum(kl, levels.episode_of_token, levels.num_episodes)
    return reward


def _normalize(
    batch: SignalBatch, recipe: Recipe, reward: PerEpisode, votes: EpisodeFlag, moments: dict[str, Any]
) -> tuple[PerEpisode, EpisodeFlag]:
    """Shaped rewards against the voters' baseline and spread, and which episodes got one."""
    levels = batch.levels
    quick = normalized(recipe.normalize, reward, votes, levels.group_of_episode, levels.num_groups)
    if quick is None or not is_fast():
        quick = run(recipe.normalize, {"reward": reward, **episode_fields(batch, votes), **moments})
    outcome, has_signal = quick
    ended = ended_episodes(batch)
    if recipe.not_ended == "zero" and ended is not None:
        outcome = torch.where(ended, outcome, torch.zeros_like(outcome))
    return outcome, has_signal


def _credit(
    batch: SignalBatch,
    recipe: Recipe,
    outcome: PerEpisode,
    kl: PerToken | None,
    votes: EpisodeFlag,
    trains: SequenceFlag,
    voting: Field,
) -> tuple[Field, Field]:
    """Advantage and returns of every token."""
    _refuse_unread(batch, recipe)
    per_sequence = batch.levels.to_sequences(outcome).to(batch.dtype)
    reads_rewards = "token_reward" in recipe.advantage.formula.inputs
    if not reads_rewards and batch.token_reward is not None:
        raise SignalError(
            f"prepare: the batch carries token_reward but {recipe.advantage.formula.name} reads none, "
            "so it would be lost. Use advantage.reward_to_go or advantage.gae, or add it to the episode's reward."
        )
    if is_fast() and recipe.advantage.formula.name == "advantage.broadcast":
        return Field(per_sequence, batch.segments, True), Field(per_sequence, batch.segments, True)
    after = batch.value_after if batch.value_after is not None else torch.full_like(per_sequence, torch.nan)
    # A sequence that does not train owes no value, and its advantage is read by nobody.
    after = torch.where(trains, after, torch.zeros_like(after))
    advantage, returns = run(
        recipe.advantage,
        {
            **_token_fields(batch), **episode_fields(batch, votes), "ended": batch.ended, "trains": trains,
            "episode_of_sequence": batch.levels.episode_of_sequence, "outcome": per_sequence, "value_after": after,
            "token_reward": _token_rewards(batch, recipe, per_sequence, kl, voting) if reads_rewards else None,
        }
    )  # fmt: skip
    return Field(advantage, batch.segments), Field(returns, batch.segments)


def _refuse_unread(batch: SignalBatch, recipe: Recipe) -> None:
    """A reward or a baseline that no formula reads would be lost."""
    read = {name for one in (*recipe.reward, recipe.normalize, recipe.advantage) for name in one.formula.inputs}
    lost = [name for name in ("rewards", "baseline") if getattr(batch, name) is not None and name not in read]
    if lost:
        reader = {"rewards": "reward.weighted_sum or normalize.each_key", "baseline": "normalize.minus_given"}[lost[0]]
        raise SignalError(
            f"prepare: the batch carries {lost[0]} but recipe {recipe.name!r} reads none, so it would be lost. "
            f"Use {reader}, or give the one reward of each episode as reward."
        )


def _token_rewards(
    batch: SignalBatch, recipe: Recipe, outcome: PerSequence, kl: PerToken | None, voting: Field
) -> PerToken:
    coef = recipe.kl.coef if recipe.kl is not None and recipe.kl.into == "token_reward" else 0.0
    penalty = kl if kl is not None else outcome.new_zeros(batch.num_tokens)
    rewards = token_rewards(penalty, outcome, batch.segments, kl_coef=coef)
    paid = rewards if batch.token_reward is None else rewards + batch.token_reward
    return whiten(paid, voting.tokens) if recipe.whiten_token_rewards else paid


def _settle(recipe: Recipe, advantage: Field, voting: Field) -> Field:
    """Whiten and clip, where the recipe says so; only kept tokens of voters that train enter the statistics."""
    if recipe.whiten:
        advantage = Field(whiten(advantage.tokens, voting.tokens), advantage.segments)
    if recipe.clip_advantage is not None:
        bound = recipe.clip_advantage
        advantage = advantage.map(lambda values: between(values, -bound, bound))
    return advantage


def _refuse_varying(advantage: PerToken, batch: SignalBatch, recipe: Recipe) -> None:
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


def _engine_ratio(batch: SignalBatch) -> dict[str, Ratio]:
    if batch.logp_old is None or batch.logp_rollout is None:
        return {}
    is_factor = is_fast() and is_all_watched()
    return {"engine": Ratio(batch.logp_old - batch.logp_rollout, batch.segments, is_factor=is_factor)}


def _exact_engine(ratios: Mapping[str, Ratio], segments: Segments) -> dict[str, Field]:
    """ratio_engine as it was computed: ratio_total is its product with ratio_update. No formula can name these."""
    exact = ratios["engine"].exact() if "engine" in ratios else None
    if exact is None:
        return {}
    return {EXACT_RATIO: Field(exact.value, segments), EXACT_TOTAL: Field(exact.total, segments, True)}
