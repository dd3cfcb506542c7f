"""`prepare`: everything about a batch that does not need the current policy. Once per batch, without gradient.

The order is the only one there is: shape rewards → status and votes → KL into the reward → normalise → token rewards →
advantages → whiten → clip. Corrections that read neither the advantage nor the current policy come before the vote, so
that what they reject moves nobody.
"""

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.signal.batch import SignalBatch
from trimtab.signal.batch_metrics import batch_metrics, by_age, more_metrics, shaping_metrics
from trimtab.signal.composition import Recipe
from trimtab.signal.credit import credit_of, kl_of_old, outcomes_of, rewards_with_kl, settled
from trimtab.signal.diagnostics import Population, drift, stage_metrics
from trimtab.signal.fast.choice import are_many_watched, is_fast
from trimtab.signal.fast.per_sequence import StageShortcuts
from trimtab.signal.fields import Field, Fields, everything, ones
from trimtab.signal.layout import EpisodeFlag, Keep, PerToken, SequenceFlag
from trimtab.signal.metric_kind import Mean
from trimtab.signal.metrics import Metrics
from trimtab.signal.recipe_door import check_numbers, checked_recipe, read_advantage, refuse_varying
from trimtab.signal.source import by_source
from trimtab.signal.stages import conjunction, product, run_stages
from trimtab.signal.state import SignalState, drift_warning
from trimtab.signal.steering import (
    next_coef,
    next_moments,
    next_role_averages,
    role_averages,
    running,
    steered,
    steering_metrics,
)
from trimtab.signal.supply import available_early, carried, engine_ratio, exact_engine, owners, populations, shares
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import quiet
from trimtab.signal.update import Update, updates_of
from trimtab.signal.vote import constant_groups, groups_outside, votes_and_trains


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
    recipe = checked_recipe(batch, recipe, given_advantage=advantage is not None)
    check_numbers(state, version, seed)
    known_so_far = state or SignalState()
    recipe = steered(recipe, known_so_far.memory)
    segments, levels = batch.segments, batch.levels
    available, ratios = available_early(batch, recipe, seed), engine_ratio(batch)
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
    kl = kl_of_old(batch, recipe)
    shaped = rewards_with_kl(batch, recipe, kl, votes)
    moments = next_moments(recipe, shaped, votes, known_so_far.memory)
    so_far = running(moments, batch) | role_averages(recipe, batch, known_so_far.memory)
    outcome, has_signal = outcomes_of(batch, recipe, shaped, votes, so_far)
    moments |= next_role_averages(recipe, batch, shaped, votes, known_so_far.memory)
    voted = keep & Field(levels.to_sequences(votes), segments, True)
    training = Field(trains, segments, True)
    if advantage is None:
        voting = voted & training
        credit, returns = credit_of(batch, recipe, outcome, kl, votes, trains, voting)
        credit = settled(recipe, credit, voting)
    else:
        credit = Field(read_advantage(advantage, batch), segments)
        returns = Field(credit.values.clone(), segments)
    if recipe.loss.part.formula.constant_advantage and not credit.is_shared:
        refuse_varying(credit.tokens, batch, recipe)
    known = ChainMap({"trains": trains}, cast("Any", Fields(segments, {"advantage": credit, "returns": returns})))
    after = run_stages(recipe.stages_after_the_vote, ChainMap(*known.maps, available), shortcut)
    stages = early.merge(after)
    tally, population = Tally(segments), Population(training, credit)
    entries = batch_metrics(tally, batch, votes, training, has_signal, constant, credit, kl)
    if outside is not None:
        entries["out_of_band_groups/group_fraction"] = Mean.fraction(outside)
    stage_metrics(tally, stages, population)
    entries |= (
        tally.entries() | shaping_metrics(batch, recipe, votes) | by_age(batch, ratios, version) | by_source(batch)
    )
    kept = conjunction(keep, after.keeps)
    entries |= steering_metrics(recipe)
    if are_many_watched():
        entries |= more_metrics(batch, kept, returns, training)
    metrics = drift(ratios, segments).after(entries)
    numbers = metrics.numbers()
    state, said = known_so_far.observe(numbers)
    learned = next_coef(recipe, numbers, levels.num_episodes) | moments
    state = replace(state, memory={**state.memory, **learned}) if learned else state
    held = exact_engine(ratios, segments) | carried(batch) | owners(batch) | shares(batch, recipe, version)
    held |= populations(batch, recipe)
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
