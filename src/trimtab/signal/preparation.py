"""`prepare`: everything about a batch that does not need the current policy. Once a batch, without gradient.

The order is the only one there is: shape rewards → status and votes → KL into the reward → normalise → token rewards →
advantages → whiten → clip. Corrections that read neither the advantage nor the current policy come before the vote, so
that what they reject moves nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.diagnostics import drift, drift_by_age, stage_metrics
from trimtab.signal.formula import INPUTS
from trimtab.signal.layout import EpisodeFlag, Keep, PerEpisode, PerToken, SequenceFlag, places
from trimtab.signal.metrics import Mean, Metric, Metrics, Spread
from trimtab.signal.normalize import whiten
from trimtab.signal.recipe import Recipe, Stage
from trimtab.signal.recipes import recipe as named
from trimtab.signal.reduce import segment_sum, sequence_any, to_tokens
from trimtab.signal.reward import token_rewards
from trimtab.signal.stages import conjunction, product, run_stages
from trimtab.signal.state import SignalState, drift_warning
from trimtab.signal.update import Update, updates_of
from trimtab.signal.vote import constant_groups, ended_episodes, votes_and_trains

ORIGIN = {
    "logp_old": "logp_old is the trainer's own: a forward pass without gradient before the first update.",
    "logp_rollout": "logp_rollout is what the engine reported while sampling: record it.",
    "logp_ref": "logp_ref is the frozen reference's: a forward pass without gradient.",
    "value": "The value is the critic's, before the first update.",
    "ended": "ended is the finish reason of each sequence: record it.",
}
"""Where a field a recipe needs comes from."""


@dataclass(frozen=True)
class Prepared:
    """A batch with its advantages, votes and early decisions; `updates` cuts it into optimiser steps."""

    batch: SignalBatch
    recipe: Recipe
    advantage: PerToken
    returns: PerToken
    votes: EpisodeFlag
    trains: SequenceFlag
    keep: Keep
    """What the corrections decided so far; the ones that need the current policy come later."""
    importance: PerToken
    kl: PerToken | None
    """The raw KL of old to the reference, where the reward carries it: what is logged is what was computed."""
    metrics: Metrics
    voted: Keep
    """Tokens that stood when their episode voted: kept so far, of an episode that votes."""
    warnings: tuple[str, ...]
    seed: int = 0
    passes: list[int] = field(default_factory=list[int])
    """How often `updates` has begun; the one thing here that changes."""

    @property
    def num_training_groups(self) -> int:
        """The most updates that keep groups together; a filter may leave few groups, or none at all."""
        levels = self.batch.levels
        groups = levels.group_of_episode[levels.episode_of_sequence[self.trains]]
        return len(cast("Tensor", torch.unique(groups)))

    def updates(self, num: int = 1, *, together: str = "group") -> Iterator[Update]:
        """Cut the sequences that train into `num` optimiser steps; groups stay together unless together="sequence"."""
        return updates_of(self, num, together)


@torch.no_grad()
def prepare(
    batch: SignalBatch,
    recipe: Recipe | str,
    state: SignalState | None = None,
    *,
    version: int | None = None,
    seed: int = 0,
) -> tuple[Prepared, SignalState]:
    """From rollouts to advantages. `version` is the trainer's, to tell stale tokens; `seed` seeds random selection."""
    if isinstance(recipe, str):
        recipe = named(recipe)
    _check_needs(batch, recipe)
    everything = torch.ones(batch.num_tokens, dtype=torch.bool, device=batch.reward.device)
    early = run_stages(_stages(recipe, reads_advantage=False), _available(batch))
    keep = conjunction(everything, early.keeps)
    votes, trains = votes_and_trains(batch, recipe, keep)
    constant = constant_groups(batch, votes)
    if recipe.filter_constant_groups:
        trains = trains & ~constant[batch.levels.group_of_episode][batch.levels.episode_of_sequence]
    kl = _kl_of_old(batch, recipe)
    outcome, has_signal = _normalised(batch, recipe, kl, votes)
    advantage, returns = _credit(batch, recipe, outcome, kl, trains)
    voted = keep & votes[batch.levels.episode_of_token]
    advantage = _settled(batch, recipe, advantage, voted & trains[batch.segments.sequence_of_token])
    after = run_stages(_stages(recipe, reads_advantage=True), {**_available(batch), "advantage": advantage})
    stages = early.merge(after)
    entries = _batch_metrics(batch, votes, trains, has_signal, constant, advantage, kl)
    entries |= stage_metrics(stages, advantage, trains[batch.segments.sequence_of_token], batch.segments)
    metrics = Metrics(entries, {}).merge(_drift_metrics(batch, version))
    state, said = (state or SignalState()).observe(metrics.values())
    prepared = Prepared(
        batch=batch,
        recipe=recipe,
        advantage=advantage,
        returns=returns,
        votes=votes,
        trains=trains,
        keep=conjunction(keep, after.keeps),
        importance=product(torch.ones_like(advantage), stages.importances),
        kl=kl,
        metrics=metrics,
        voted=voted,
        warnings=(*_uncorrected(batch, recipe), *said),
        seed=seed,
    )
    return prepared, state


def _check_needs(batch: SignalBatch, recipe: Recipe) -> None:
    carried = {"logp_old", "logp_rollout", "logp_ref", "value", "ended"}
    missing = sorted(name for name in recipe.needs & carried if getattr(batch, name) is None)
    if missing:
        raise SignalError(
            f"prepare: recipe {recipe.name!r} needs {', '.join(missing)}, which the batch does not carry, "
            "so its correction or penalty would silently not act. "
            f"{' '.join(ORIGIN[name] for name in missing)} Or choose a recipe that does without (trimtab explain)."
        )
    clash = sorted(
        n for n in batch.extra if n in {*INPUTS, "importance", "voted"} or n.startswith(("weight_", "decided:"))
    )
    if clash:
        raise SignalError(
            f"prepare: the batch's extra names {clash}, which the pipeline makes itself, so a formula would read yours "
            "instead. Choose other names."
        )


def _shaped(batch: SignalBatch, recipe: Recipe) -> PerEpisode:
    """Task rewards after shaping; unscored ones are set to 0 so that nothing undefined travels on."""
    levels = batch.levels
    reward = torch.where(batch.scored, batch.reward, torch.zeros_like(batch.reward))
    length = segment_sum(batch.length.to(reward.dtype), levels.episode_of_sequence, levels.num_episodes)
    for step in recipe.reward:
        reward = step({"reward": reward, "ended": ended_episodes(batch), "length": length})
    return reward


def _stages(recipe: Recipe, *, reads_advantage: bool) -> dict[str, Stage]:
    """Correction stages that do not need the current policy: those before the vote, or those after it."""
    return {
        label: stage
        for label, stage in recipe.labelled.items()
        if not recipe.is_late(stage) and ("advantage" in stage.part.formula.inputs) == reads_advantage
    }


def _available(batch: SignalBatch) -> dict[str, Any]:
    return {
        "logp_old": batch.logp_old, "logp_rollout": batch.logp_rollout, "logp_ref": batch.logp_ref,
        "segments": batch.segments, **batch.extra,
    }  # fmt: skip


def _kl_of_old(batch: SignalBatch, recipe: Recipe) -> PerToken | None:
    if recipe.kl is None or recipe.kl.into == "loss":
        return None
    return recipe.kl.part({"logp_current": batch.logp_old, "logp_ref": batch.logp_ref})


def _normalised(
    batch: SignalBatch, recipe: Recipe, kl: PerToken | None, votes: EpisodeFlag
) -> tuple[PerEpisode, EpisodeFlag]:
    """Shaped rewards against the voters' baseline and spread, and which episodes got one."""
    reward = _shaped(batch, recipe)
    levels = batch.levels
    if recipe.kl is not None and kl is not None and recipe.kl.into == "sequence_reward":
        reward = reward - recipe.kl.coef * segment_sum(kl, levels.episode_of_token, levels.num_episodes)
    inputs = {
        "reward": reward,
        "votes": votes,
        "group_of_episode": levels.group_of_episode,
        "num_groups": levels.num_groups,
    }
    outcome, has_signal = recipe.normalize(inputs)
    ended = ended_episodes(batch)
    if recipe.not_ended == "zero" and ended is not None:
        outcome = torch.where(ended, outcome, torch.zeros_like(outcome))
    return outcome, has_signal


def _credit(
    batch: SignalBatch, recipe: Recipe, outcome: PerEpisode, kl: PerToken | None, trains: SequenceFlag
) -> tuple[PerToken, PerToken]:
    per_sequence = outcome[batch.levels.episode_of_sequence].to(batch.dtype)
    if "token_reward" not in recipe.advantage.formula.inputs and batch.token_reward is not None:
        raise SignalError(
            f"prepare: the batch carries token_reward but {recipe.advantage.formula.name} reads none, "
            "so it would be lost. Use advantage.reward_to_go or advantage.gae, or add it to the episode's reward."
        )
    coef = recipe.kl.coef if recipe.kl is not None and recipe.kl.into == "token_reward" else 0.0
    penalty = kl if kl is not None and coef else per_sequence.new_zeros(batch.num_tokens)
    rewards = token_rewards(penalty, per_sequence, batch.segments, kl_coef=coef)
    if batch.token_reward is not None:
        rewards = rewards + batch.token_reward
    after = batch.value_after if batch.value_after is not None else torch.full_like(per_sequence, torch.nan)
    # A sequence that does not train owes no value, and its advantage is read by nobody.
    after = torch.where(trains, after, torch.zeros_like(after))
    return recipe.advantage(
        {
            "outcome": per_sequence, "token_reward": rewards, "segments": batch.segments, "value_old": batch.value,
            "value_after": after, "ended": batch.ended,
        }
    )  # fmt: skip


def _settled(batch: SignalBatch, recipe: Recipe, advantage: PerToken, voting: Keep) -> PerToken:
    """Whitened and clipped, where the recipe says so; whitening counts kept tokens of voters that train."""
    if recipe.whiten:
        advantage = whiten(advantage, voting)
    if recipe.clip_advantage is not None:
        advantage = advantage.clamp(-recipe.clip_advantage, recipe.clip_advantage)
    if recipe.loss.part.formula.constant_advantage:
        _refuse_varying(advantage, batch, recipe)
    return advantage


def _refuse_varying(advantage: PerToken, batch: SignalBatch, recipe: Recipe) -> None:
    if not batch.num_tokens:
        return
    first = to_tokens(advantage[batch.segments.first_token.clamp(max=max(advantage.shape[0] - 1, 0))], batch.segments)
    varies = places(sequence_any(advantage != first, batch.segments))
    if varies:
        raise SignalError(
            f"prepare: the advantage varies inside sequences {varies[:8]}, but {recipe.loss.part.formula.name} shares "
            "one gradient among a sequence's tokens, so one token's credit would train another. "
            "Use policy_loss.geometric_clipped_token."
        )


def _drift_metrics(batch: SignalBatch, version: int | None) -> Metrics:
    if batch.logp_old is None or batch.logp_rollout is None:
        return Metrics.empty()
    logratio = batch.logp_old - batch.logp_rollout
    metrics = drift("engine", logratio, batch.segments)
    if version is not None and batch.version is not None:
        metrics = metrics.merge(Metrics(drift_by_age(logratio, batch.version, version), {}))
    return metrics


def _batch_metrics(
    batch: SignalBatch, votes: EpisodeFlag, trains: SequenceFlag, has_signal: EpisodeFlag, constant: Tensor,
    advantage: PerToken, kl: PerToken | None,
) -> dict[str, Metric]:  # fmt: skip
    levels = batch.levels
    tokens = trains[batch.segments.sequence_of_token]
    voted = segment_sum(votes.to(torch.long), levels.group_of_episode, levels.num_groups) > 0
    with_signal = segment_sum((has_signal & votes).to(torch.long), levels.group_of_episode, levels.num_groups) > 0
    entries: dict[str, Metric] = {
        "reward/episode_mean": Mean.of(batch.reward, batch.scored),
        "reward/episode_std": Spread.of(
            torch.where(batch.scored, batch.reward, torch.zeros_like(batch.reward)), batch.scored
        ),
        "votes/episode_fraction": Mean.fraction(votes),
        "trains/sequence_fraction": Mean.fraction(trains),
        "groups_without_signal/group_fraction": Mean.fraction(~with_signal),
        "constant_groups/group_fraction": Mean.fraction(constant, voted),
        "advantage/token_mean": Mean.of(advantage, tokens),
        "advantage/token_std": Spread.of(advantage, tokens),
    }
    if batch.ended is not None:
        entries["ended/sequence_fraction"] = Mean.fraction(batch.ended)
    if kl is not None:
        entries["kl_ref/token_mean"] = Mean.of(kl, tokens)
    return entries


def _uncorrected(batch: SignalBatch, recipe: Recipe) -> tuple[str, ...]:
    if batch.logp_old is None or batch.logp_rollout is None or not batch.num_tokens:
        return ()
    return drift_warning(recipe, (batch.logp_old - batch.logp_rollout).abs().mean().item())
