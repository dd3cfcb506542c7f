"""What is measured of a batch while it is prepared: the only place that turns rewards and votes into metrics."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab.signal.batch import SignalBatch
from trimtab.signal.composition import Recipe
from trimtab.signal.credit import shaping_steps
from trimtab.signal.diagnostics import drift_by_age
from trimtab.signal.fields import Field
from trimtab.signal.layout import EpisodeFlag, PerToken
from trimtab.signal.metric_kind import Mean, Metric, Spread, larger, moments
from trimtab.signal.mismatch import explained, mismatch
from trimtab.signal.ratio import Ratio
from trimtab.signal.reduce import any_of
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import as_plain, host, in_precision


def by_age(batch: SignalBatch, ratios: Mapping[str, Ratio], version: int | None) -> dict[str, Metric]:
    """How far the sampler was from the trainer, for tokens of the current version and for older ones."""
    if version is None or batch.version is None or "engine" not in ratios:
        return {}
    return drift_by_age(ratios["engine"].logratio, batch.version, version)


def batch_metrics(
    tally: Tally, batch: SignalBatch, votes: EpisodeFlag, training: Field, has_signal: EpisodeFlag,
    constant: Tensor, advantage: Field, kl: PerToken | None,
) -> dict[str, Metric]:  # fmt: skip
    """What the batch is made of. Those about tokens and sequences are left to the tally."""
    group, num = host(batch.levels.group_of_episode), batch.levels.num_groups
    voting = host(votes)
    voted, signalled = any_of(voting, group, num), any_of(host(has_signal) & voting, group, num)
    tally.share_of_sequences("trains/sequence_fraction", training.values)
    tally.mean("advantage/token_mean", advantage, training)
    if batch.ended is not None:
        tally.share_of_sequences("ended/sequence_fraction", host(batch.ended))
    if kl is not None:
        tally.mean("kl_ref/token_mean", Field(kl, batch.segments), training)
    total, count, mean, m2 = moments(host(batch.reward), host(batch.scored))
    same, right = host(constant), any_of(voting & (host(batch.reward) > 0), group, num)
    return {
        "reward/episode_mean": Mean(total, count),
        "reward/episode_std": Spread(count, mean, m2),
        "votes/episode_fraction": Mean.fraction(voting),
        "groups_without_signal/group_fraction": Mean.fraction(~signalled),
        "constant_groups/group_fraction": Mean.fraction(same, voted),
        "constant_groups/all_right_group_fraction": Mean.fraction(same & right, voted),
        "constant_groups/all_wrong_group_fraction": Mean.fraction(same & ~right, voted),
        "advantage/token_std": _token_spread(advantage, training),
    }


def _token_spread(values: Field, among: Field) -> Spread:
    """The spread over tokens; of values held per sequence, each counts as often as the sequence has tokens."""
    if not (values.is_shared and among.is_shared):
        return Spread.of(values.tokens, among.tokens)
    times = values.segments.measures[:, 0] * among.values
    exact, count = in_precision(values.values, torch.float64), as_plain(times.sum())
    mean = as_plain(exact @ times) / larger(count, 1.0)
    return Spread(count, mean, as_plain((exact - mean) ** 2 @ times))


def shaping_metrics(batch: SignalBatch, recipe: Recipe, votes: EpisodeFlag) -> dict[str, Metric]:
    """How much each step of the reward shaping moves the reward of an episode that votes."""
    if not recipe.reward:
        return {}
    effects = (after - before for before, after in itertools.pairwise(shaping_steps(batch, recipe, votes)))
    return {
        f"{one.formula.name}/effect": Mean.of(effect.abs(), votes)
        for one, effect in zip(recipe.reward, effects, strict=True)
    }


def more_metrics(batch: SignalBatch, kept: Field, returns: Field, training: Field) -> dict[str, Metric]:
    """What is only measured where it is asked for."""
    found: dict[str, Metric] = {}
    if batch.logp_old is not None and batch.logp_rollout is not None:
        found |= mismatch(batch.logp_old, batch.logp_rollout, batch.segments, kept.tokens)
    if batch.value_old is not None:
        found |= explained(returns, batch.value_old, training)
    return found
