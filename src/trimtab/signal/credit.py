"""From rewards to advantages: the only place that shapes, normalises and spreads a batch's rewards as a recipe says."""

from typing import Any

import torch

from trimtab.signal.batch import SignalBatch
from trimtab.signal.composition import Recipe
from trimtab.signal.fast.choice import is_fast
from trimtab.signal.fast.per_group import normalized
from trimtab.signal.fields import Field
from trimtab.signal.layout import EpisodeFlag, PerEpisode, PerSequence, PerToken, SequenceFlag
from trimtab.signal.normalize import whiten
from trimtab.signal.parts import run
from trimtab.signal.recipe_door import refuse_unread
from trimtab.signal.reduce import segment_sum
from trimtab.signal.reward import token_rewards
from trimtab.signal.supply import token_fields
from trimtab.signal.tensors import between
from trimtab.signal.vote import ended_episodes, episode_fields


def kl_of_old(batch: SignalBatch, recipe: Recipe) -> PerToken | None:
    """KL of the old policy to the reference, where it acts on rewards."""
    if recipe.kl is None or recipe.kl.into == "loss":
        return None
    return run(recipe.kl.part, {**token_fields(batch), "logp_current": batch.logp_old, "logp_anchor": None})


def rewards_with_kl(batch: SignalBatch, recipe: Recipe, kl: PerToken | None, votes: EpisodeFlag) -> PerEpisode:
    """Shaped rewards, minus the KL where it acts on them."""
    reward, levels = shaping_steps(batch, recipe, votes)[-1], batch.levels
    if recipe.kl is not None and kl is not None and recipe.kl.into == "sequence_reward":
        reward = reward - recipe.kl.coef * segment_sum(kl, levels.episode_of_token, levels.num_episodes)
    return reward


def shaping_steps(batch: SignalBatch, recipe: Recipe, votes: EpisodeFlag) -> list[PerEpisode]:
    """Task rewards, then what each step of the shaping makes of them; unscored ones are 0, so nothing undefined
    travels on."""
    steps = [torch.where(batch.scored, batch.reward, 0.0)]
    for one in recipe.reward:
        steps.append(run(one, {"reward": steps[-1], **episode_fields(batch, votes)}))
    return steps


def outcomes_of(
    batch: SignalBatch, recipe: Recipe, reward: PerEpisode, votes: EpisodeFlag, so_far: dict[str, Any]
) -> tuple[PerEpisode, EpisodeFlag]:
    """Shaped rewards against the voters' baseline and spread, and which episodes got one."""
    levels = batch.levels
    quick = normalized(recipe.normalize, reward, votes, levels.group_of_episode, levels.num_groups)
    if quick is None or not is_fast():
        quick = run(recipe.normalize, {"reward": reward, **episode_fields(batch, votes), **so_far})
    outcome, has_signal = quick
    ended = ended_episodes(batch)
    if recipe.not_ended == "zero" and ended is not None:
        outcome = torch.where(ended, outcome, torch.zeros_like(outcome))
    return outcome, has_signal


def credit_of(
    batch: SignalBatch,
    recipe: Recipe,
    outcome: PerEpisode,
    kl: PerToken | None,
    votes: EpisodeFlag,
    trains: SequenceFlag,
    voting: Field,
) -> tuple[Field, Field]:
    """Advantage and returns of every token."""
    refuse_unread(batch, recipe)
    per_sequence = batch.levels.to_sequences(outcome).to(batch.dtype)
    reads_rewards = "token_reward" in recipe.advantage.formula.inputs
    if is_fast() and recipe.advantage.formula.name == "advantage.broadcast":
        return Field(per_sequence, batch.segments, True), Field(per_sequence, batch.segments, True)
    after = batch.value_after if batch.value_after is not None else torch.full_like(per_sequence, torch.nan)
    # A sequence that does not train owes no value, and its advantage is read by nobody.
    after = torch.where(trains, after, torch.zeros_like(after))
    advantage, returns = run(
        recipe.advantage,
        {
            **token_fields(batch), **episode_fields(batch, votes), "ended": batch.ended, "trains": trains,
            "episode_of_sequence": batch.levels.episode_of_sequence, "outcome": per_sequence, "value_after": after,
            "token_reward": _token_rewards(batch, recipe, per_sequence, kl, voting) if reads_rewards else None,
        }
    )  # fmt: skip
    return Field(advantage, batch.segments), Field(returns, batch.segments)


def _token_rewards(
    batch: SignalBatch, recipe: Recipe, outcome: PerSequence, kl: PerToken | None, voting: Field
) -> PerToken:
    coef = recipe.kl.coef if recipe.kl is not None and recipe.kl.into == "token_reward" else 0.0
    penalty = kl if kl is not None else outcome.new_zeros(batch.num_tokens)
    rewards = token_rewards(penalty, outcome, batch.segments, kl_coef=coef)
    paid = rewards if batch.token_reward is None else rewards + batch.token_reward
    return whiten(paid, voting.tokens) if recipe.whiten_token_rewards else paid


def settled(recipe: Recipe, advantage: Field, voting: Field) -> Field:
    """Whiten and clip, where the recipe says so; only kept tokens of voters that train enter the statistics."""
    if recipe.whiten:
        advantage = Field(whiten(advantage.tokens, voting.tokens), advantage.segments)
    if recipe.clip_advantage is not None:
        bound = recipe.clip_advantage
        advantage = advantage.map(lambda values: between(values, -bound, bound))
    return advantage
