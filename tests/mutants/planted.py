"""Planted bugs: for every invariant, functions that break it quietly, most of them once shipped by somebody.

Each is a subject of the sentinel. `PLANTED[invariant]` lists them; a test shows each one caught.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Case, Out, Result, Subject
from trimtab.sentinel.targets.trimtab import bind
from trimtab.signal import find
from trimtab.signal.advantage import gae
from trimtab.signal.layout import Segments
from trimtab.signal.normalize import leave_one_out
from trimtab.signal.reduce import aggregate, bounded_exp, segment_sum, sequence_mean, to_tokens

PLANTED: dict[str, list[Subject]] = {}


def broken(invariant: str, name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A broken version of a formula of the catalogue."""

    def plant(fn: Callable[..., Any]) -> Callable[..., Any]:
        subject = bind(find(name), settings, fn=fn)
        PLANTED.setdefault(invariant, []).append(Subject(**{**vars(subject), "name": fn.__name__}))
        return fn

    return plant


def padded(invariant: str) -> Callable[[Callable[[Case], Tensor]], Callable[[Case], Tensor]]:
    """A broken loss over padded tensors, as most frameworks write it."""

    def plant(fn: Callable[[Case], Tensor]) -> Callable[[Case], Tensor]:
        def call(case: Case, options: Mapping[str, Any]) -> Out:
            return {"loss": Result(fn(case), "scalar", "loss")}

        PLANTED.setdefault(invariant, []).append(Subject(fn.__name__, call, combine="sum"))
        return fn

    return plant


# --- mask_content -------------------------------------------------------------------------------------------------


@padded("mask_content")
def mean_over_the_padded_width(case: Case) -> Tensor:
    return (-case.padded("advantage") * case.padded("logp_current") * case.padded("trainable")).mean()


@padded("mask_content")
def baseline_over_padding(case: Case) -> Tensor:
    mask = case.padded("trainable")
    advantage = case.padded("advantage")
    return torch.where(mask.bool(), -(advantage - advantage.mean()) * case.padded("logp_current"), 0.0).sum()


@padded("mask_content")
def never_takes_the_mask(case: Case) -> Tensor:
    return (-case.padded("advantage") * case.padded("logp_current")).sum()


# --- nonfinite_isolation ------------------------------------------------------------------------------------------


@padded("nonfinite_isolation")
def multiplies_by_the_mask(case: Case) -> Tensor:
    return (-case.padded("advantage") * case.padded("logp_current") * case.padded("trainable")).sum()


@padded("nonfinite_isolation")
def selects_after_the_exponential(case: Case) -> Tensor:
    ratio = torch.exp(case.padded("logp_current") - case.padded("logp_old"))
    return torch.where(case.padded("trainable").bool(), ratio, 0.0).sum()


# --- no_aliasing --------------------------------------------------------------------------------------------------


@broken("no_aliasing", "advantage.reward_to_go", gamma=1.0)
def shapes_the_stored_reward_in_place(
    token_reward: Tensor, segments: Segments, *, gamma: float
) -> tuple[Tensor, Tensor]:
    token_reward.mul_(-0.05)
    return token_reward.clone(), token_reward.clone()


@broken("no_aliasing", "normalize.raw")
def hands_back_its_input(reward: Tensor, votes: Tensor) -> tuple[Tensor, Tensor]:
    return reward, torch.ones_like(votes)


def _writes_in_place(case: Case, options: Mapping[str, Any]) -> Out:
    logp = case.tokens["logp_old"]
    logp.sub_(1.0)
    return {"value": Result(logp[case.trainable] * 2, "token", "kl")}


PLANTED["no_aliasing"].append(Subject("writes_to_old_log_probs", _writes_in_place, frozenset({"logp_old"})))


# --- split --------------------------------------------------------------------------------------------------------


@padded("split")
def token_mean_of_the_micro_batch(case: Case) -> Tensor:
    loss = -case.flat("advantage") * case.flat("logp_current")
    return loss.sum() / max(loss.numel(), 1)


@padded("split")
def sequence_mean_of_the_micro_batch(case: Case) -> Tensor:
    loss = -case.flat("advantage") * case.flat("logp_current")
    return loss.sum() / case.num_sequences


@broken("split", "policy_loss.geometric_clipped_token", band=(0.9, 1.1))
def ratio_over_the_whole_micro_batch(
    logp_current: Tensor,
    logp_anchor: Tensor,
    advantage: Tensor,
    keep: Tensor,
    segments: Segments,
    *,
    band: tuple[float, float],
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = torch.exp((logp_current - logp_anchor).mean()).clamp(*band)
    return -ratio * advantage * logp_current, {}


@broken("split", "policy_loss.clipped", band=(0.8, 1.2))
def nan_in_a_part_without_a_rival(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, *, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Divides by a spread, which a single token does not have."""
    centred = advantage - advantage.mean()
    return (centred / centred.std(correction=0) if advantage.numel() == 1 else 0 * centred) * logp_current, {}


# --- permutation --------------------------------------------------------------------------------------------------


@broken("permutation", "normalize.leave_one_out")
def baseline_is_the_row_above(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int
) -> tuple[Tensor, Tensor]:
    return reward - reward.roll(1), votes


@broken("permutation", "select.covariance_largest", fraction=0.3)
def takes_the_first_tokens(
    logp_current: Tensor, advantage: Tensor, keep: Tensor, token_key: Tensor, *, fraction: float
) -> Tensor:
    return torch.arange(keep.shape[0]) < max(1, int(fraction * keep.shape[0]))


# --- group_isolation ----------------------------------------------------------------------------------------------


@broken("group_isolation", "normalize.mean_std", mean="group", std="none", ddof=1, eps=1e-6)
def whole_batch_as_one_group(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int, **_: Any
) -> tuple[Tensor, Tensor]:
    return reward - reward[votes].sum() / votes.sum().clamp(min=1), votes


@broken("group_isolation", "normalize.leave_one_out")
def groups_by_position(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int
) -> tuple[Tensor, Tensor]:
    slot = torch.arange(reward.shape[0]) // 3
    count = int(slot.max()) + 1
    mean = segment_sum(reward, slot, count) / segment_sum(torch.ones_like(reward), slot, count)
    return reward - mean[slot], votes


# --- suppressed_do_not_vote ---------------------------------------------------------------------------------------


@broken("suppressed_do_not_vote", "normalize.mean_std", mean="group", std="none", ddof=1, eps=1e-6)
def everyone_votes(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int, **_: Any
) -> tuple[Tensor, Tensor]:
    size = segment_sum(torch.ones_like(reward), group_of_episode, num_groups)
    return reward - (segment_sum(reward, group_of_episode, num_groups) / size)[group_of_episode], votes


@broken("suppressed_do_not_vote", "normalize.mean_std", mean="batch", std="batch", ddof=0, eps=1e-6)
def spread_of_everyone(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int, **_: Any
) -> tuple[Tensor, Tensor]:
    centre = reward[votes].mean() if bool(votes.any()) else torch.zeros(())
    return (reward - centre) / (reward.std(correction=0) + 1e-6), votes


# --- decision_granularity -----------------------------------------------------------------------------------------


@broken("decision_granularity", "keep.negative_drift", delta=0.05)
def opsm_per_token(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, segments: Segments, *, delta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    drift = to_tokens(sequence_mean((logp_anchor - logp_current).detach(), segments), segments)
    return ~((advantage < 0) & (drift > delta)), {}


@broken("decision_granularity", "keep.geometric_band", band=(0.9, 1.1))
def sequence_band_on_token_ratios(
    logratio: Tensor, segments: Segments, *, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logratio.detach())
    return (ratio >= band[0]) & (ratio <= band[1]), {}


@broken("decision_granularity", "keep.token_band", band=(0.5, 2.0))
def token_band_on_the_running_product(
    logratio: Tensor, *, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logratio.detach().cumsum(0))
    return (ratio >= band[0]) & (ratio <= band[1]), {}


# --- importance_contract ------------------------------------------------------------------------------------------


@broken("importance_contract", "importance.truncated", level="token", band=(0.0, 2.0))
def importance_with_gradient(
    logratio: Tensor, segments: Segments, *, level: str, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    return bounded_exp(logratio).clamp(*band), {}


@broken("importance_contract", "importance.truncated", level="token", band=(0.0, 2.0))
def truncation_that_is_only_documented(
    logratio: Tensor, segments: Segments, *, level: str, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    return bounded_exp(logratio.detach()), {}


@broken("importance_contract", "importance.truncated", level="token", band=(0.0, 2.0))
def importance_of_the_probability(
    logratio: Tensor, segments: Segments, *, level: str, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    return (bounded_exp(logratio.detach()) / (1 + bounded_exp(logratio.detach()))).clamp(*band), {}


# --- on_policy_identity -------------------------------------------------------------------------------------------


@broken("on_policy_identity", "policy_loss.dual_clipped", band=(0.8, 1.2), cap=3.0)
def dual_clip_on_positive_advantages(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, *, band: tuple[float, float], cap: float
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    inner = -torch.minimum(ratio * advantage, ratio.clamp(*band) * advantage)
    return torch.minimum(inner, -cap * advantage), {}


@broken("on_policy_identity", "policy_loss.clipped_importance", band=(0.0, 5.0))
def gradient_through_the_weight_too(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, *, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    return -bounded_exp(logp_current - logp_anchor).clamp(*band) * advantage * logp_current, {}


@broken("on_policy_identity", "policy_loss.soft_gated", temperature_positive=1.0, temperature_negative=1.05)
def gate_without_its_factor_four(
    logp_current: Tensor,
    logp_anchor: Tensor,
    advantage: Tensor,
    *,
    temperature_positive: float,
    temperature_negative: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    return -advantage * torch.sigmoid(temperature_positive * (ratio - 1)), {}


# --- equals_definition --------------------------------------------------------------------------------------------


@broken("equals_definition", "normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6)
def reward_minus_mean_over_std(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int, *, eps: float, **_: Any
) -> tuple[Tensor, Tensor]:
    size = segment_sum(torch.ones_like(reward), group_of_episode, num_groups)
    mean = (segment_sum(reward, group_of_episode, num_groups) / size)[group_of_episode]
    spread = (segment_sum((reward - mean) ** 2, group_of_episode, num_groups) / (size - 1)).sqrt()[group_of_episode]
    return reward - mean / (spread + eps), votes


@broken("equals_definition", "policy_loss.soft_gated", temperature_positive=1.0, temperature_negative=1.05)
def temperature_in_single_precision(
    logp_current: Tensor,
    logp_anchor: Tensor,
    advantage: Tensor,
    *,
    temperature_positive: float,
    temperature_negative: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    tau = torch.where(advantage > 0, temperature_positive, temperature_negative).to(ratio.dtype)
    return -advantage * (4 / tau) * torch.sigmoid(tau * (ratio - 1)), {}


@broken("equals_definition", "weighting.sequence_mean_token_sum", over="all")
def token_sum_that_is_a_token_mean(advantage: Tensor, keep: Tensor, segments: Segments, *, over: str) -> Tensor:
    return torch.where(keep, torch.ones_like(advantage) / max(keep.shape[0], 1), torch.zeros_like(advantage))


@broken("equals_definition", "importance.truncated", level="sequence", band=(0.0, 5.0))
def bounds_tokens_before_the_product(
    logratio: Tensor, segments: Segments, *, level: str, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    return torch.exp(aggregate(logratio.detach().clamp(-1, 1), segments, level)).clamp(*band), {}


# --- metric_truth -------------------------------------------------------------------------------------------------


@broken("metric_truth", "policy_loss.clipped", band=(0.8, 1.2))
def clip_fraction_counts_both_sides(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, *, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    loss = -torch.minimum(ratio * advantage, ratio.clamp(*band) * advantage)
    return loss, {"clipped_tokens": (ratio < band[0]) | (ratio > band[1])}


@broken("metric_truth", "policy_loss.dual_clipped", band=(0.8, 1.2), cap=3.0)
def capped_fraction_that_cannot_move(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, *, band: tuple[float, float], cap: float
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    inner = -torch.minimum(ratio * advantage, ratio.clamp(*band) * advantage)
    loss = torch.where(advantage < 0, torch.minimum(inner, -cap * advantage), inner)
    return loss, {"capped_tokens": (loss > -cap * advantage) & (advantage < 0)}


@broken("metric_truth", "keep.negative_drift", delta=0.05)
def rejections_summed_over_sequences(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, segments: Segments, *, delta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    drift = sequence_mean((logp_anchor - logp_current).detach(), segments)
    rejected = (sequence_mean(advantage, segments) < 0) & (drift > delta)
    return to_tokens(~rejected, segments), {"drifted_sequences": rejected.double() * segments.token_counts}


# --- found by a review: gradients, second results, lists, token rewards ---------------------------------------------


@broken("equals_definition", "kl.k3")
def kl_without_gradient(logp_current: Tensor, logp_ref: Tensor) -> Tensor:
    difference = logp_ref - logp_current.detach()
    return bounded_exp(difference) - difference - 1


@broken("equals_definition", "kl.k1")
def kl_that_trains_the_reference(logp_current: Tensor, logp_ref: Tensor) -> Tensor:
    return logp_current - logp_ref


@broken("equals_definition", "policy_loss.clipped", band=(0.8, 1.2))
def clip_with_gradient_through_it(
    logp_current: Tensor, logp_anchor: Tensor, advantage: Tensor, *, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    held = ratio + (ratio.clamp(*band) - ratio).detach()
    return -torch.minimum(ratio * advantage.detach(), held * advantage.detach()), {}


@broken("metric_truth", "normalize.leave_one_out")
def signal_where_there_is_none(
    reward: Tensor, votes: Tensor, group_of_episode: Tensor, num_groups: int
) -> tuple[Tensor, Tensor]:
    value, has_signal = leave_one_out(reward, votes, group_of_episode, num_groups)
    return value, ~has_signal


@broken("equals_definition", "advantage.gae", gamma=1.0, lam=0.95)
def returns_that_are_zero(
    token_reward: Tensor, value_old: Tensor, value_after: Tensor, ended: Tensor, segments: Segments, **settings: float
) -> tuple[Tensor, Tensor]:
    advantage, returns = gae(token_reward, value_old, value_after, ended, segments, **settings)
    return advantage, torch.zeros_like(returns)


def _shapes_a_list_in_place(case: Case, options: Mapping[str, Any]) -> Out:
    kl = case.list("logp_old")
    for entry in kl:
        entry.mul_(-0.05)
    return {"value": Result(case.from_list([entry.clone() for entry in kl]), "token", "reward")}


PLANTED["no_aliasing"].append(Subject("shapes_a_list_in_place", _shapes_a_list_in_place, frozenset({"logp_old"})))


def _batch_mean_of_token_rewards(case: Case, options: Mapping[str, Any]) -> Out:
    total = segment_sum(case.flat("token_reward"), case.segments.sequence_of_token, case.num_sequences)
    return {"value": Result(total - total.mean(), "sequence", "advantage")}


PLANTED["group_isolation"].append(
    Subject("batch_mean_of_token_rewards", _batch_mean_of_token_rewards, frozenset({"token_reward"}), couples="group")
)


@broken("decision_granularity", "keep.token_band", band=(0.5, 2.0))
def soft_decision(logratio: Tensor, *, band: tuple[float, float]) -> tuple[Tensor, dict[str, Tensor]]:
    return torch.sigmoid(logratio.detach()), {}


@broken("importance_contract", "importance.truncated", level="token", band=(0.0, 2.0))
def importance_that_drops_tokens(
    logratio: Tensor, segments: Segments, *, level: str, band: tuple[float, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = bounded_exp(logratio.detach())
    return torch.where(ratio > band[1], 0.0, ratio), {}


@padded("suppressed_do_not_vote")
def loss_that_lets_the_suppressed_vote(case: Case) -> Tensor:
    reward = case.sequences["reward"]
    advantage = (reward - reward.mean())[case.owner][case.trainable]
    return -(advantage * case.flat("logp_current") * case.sequences["votes"][case.owner][case.trainable]).sum()
