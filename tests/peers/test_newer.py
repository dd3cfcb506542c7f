"""The formulas that came later, against verl 0.9.1: same numbers and gradients where it defines the same thing."""

from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from tests.peers import test_verl
from tests.peers.padded import SEEDS, Flat, Padded, assert_agree, ours, padded
from tests.peers.peer import Peer
from tests.peers.test_verl import ALGOS, COUNT_EPS, MODES, ROLLOUT, spread_out
from torch import Tensor

from trimtab.signal import advantage, kl, normalize, part

FLOAT32, FLOAT64 = 2e-6, 1e-12
EVERYONE = torch.ones(6, dtype=torch.bool)
UNBOUNDED = (0.0, float("inf"))
FAR = 0.9
"""A spread at which a divergence and its inverse are told apart."""


def by_row(batch: Padded) -> Padded:
    """One advantage per row, as losses on a sequence's ratio need it."""
    return replace(batch, advantage=batch.advantage[:, :1].expand_as(batch.mask).clone())


def kept(batch: Padded, formula: str, later: Tensor, earlier: Tensor, **settings: Any) -> Tensor:
    """The tokens that a keep of ours keeps; some, and not all."""
    flat = Flat.of(batch.mask)
    available = {
        "logp_later": flat(later), "logp_earlier": flat(earlier), "logratio": flat(later - earlier),
        "advantage": flat(batch.advantage), "segments": flat.segments,
        "token_key": torch.arange(flat.segments.num_tokens),
    }  # fmt: skip
    keep, _ = part(formula, **settings)(available)
    assert keep.any()
    assert not keep.all()
    return keep


# --------------------------------------------------------------------------------------------------------------- losses

PENALTY = {"policy_loss": Peer.new("verl.workers.config:PolicyLossConfig", dro_beta=0.3)}
WITHOUT_RATIO: dict[str, Any] = {
    "gpg": ({}, "policy_loss.reinforce", {}),
    "dro": (PENALTY, "policy_loss.quadratic", {"coef": 0.3}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WITHOUT_RATIO)
def test_verl_losses_without_a_ratio_agree(verl: Peer, name: str, mode: str, seed: int) -> None:
    config, formula, settings = WITHOUT_RATIO[name]
    weight, divisor, tolerance = MODES[mode]
    batch = padded(seed)
    result, _ = test_verl.theirs(verl, batch, name, mode, **config)
    assert_agree(ours(batch, formula, weight, divisor=divisor, **settings), result, tolerance=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_gmpo_of_verl_agrees(verl: Peer, seed: int) -> None:
    """Its bands are log-ratios. Every row has a token, so its mean over rows is a mean over sequences."""
    batch = by_row(padded(seed))
    result, metrics = test_verl.theirs(
        verl, batch, "geo_mean", "token-mean", clip_ratio_low=0.2, clip_ratio_high=0.3, clip_ratio=0.4
    )
    settings = {"band": (exp(-0.2), exp(0.3))}
    mine = ours(batch, "policy_loss.geometric_of_clipped", "weighting.sequence_mean_token_mean", **settings)
    assert_agree(mine, result, tolerance=COUNT_EPS)
    assert metrics["actor/pg_clipfrac"] > 0


REGIONS: dict[str, Any] = {
    "dppo_tv": ("keep.probability_band", {"low": 0.06, "high": 0.06}, 0.06),
    "dppo_kl": ("keep.binary_kl", {"limit": 0.04}, 0.04),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", REGIONS)
def test_dppo_of_verl_agrees(verl: Peer, name: str, seed: int) -> None:
    """Its loss is a bounded importance times the log-prob, inside the region that the keep draws."""
    formula, settings, limit = REGIONS[name]
    batch = padded(seed, spread=FAR)
    bounds = {"clip_ratio_low": limit, "clip_ratio_high": limit, "clip_ratio_c": 1.2}
    result, metrics = test_verl.theirs(verl, batch, name, "token-mean", **bounds)
    keep = kept(batch, formula, batch.current, batch.old, **settings)
    mine = ours(batch, "policy_loss.clipped_importance", "weighting.token_mean", keep=keep, band=(0.0, 1.2))
    assert_agree(mine, result, tolerance=FLOAT64)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 - keep.double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["abs", "k1+", "k3+"])
def test_further_kl_penalties_of_verl_agree(verl: Peer, name: str, seed: int) -> None:
    batch = padded(seed)
    result, gradient = verl.call(
        f"{ALGOS}:kl_penalty", gradient=("logprob",), logprob=batch.current, ref_logprob=batch.ref, kl_penalty=name
    )
    flat = Flat.of(batch.mask)
    leaf = flat(batch.current).clone().requires_grad_()
    if name == "abs":
        estimate = kl.absolute(leaf, flat(batch.ref))
    else:
        estimate = kl.k2_gradient(leaf, flat(batch.ref), value="k1" if name == "k1+" else "k3")
    estimate.sum().backward()
    assert leaf.grad is not None
    assert_agree((estimate.detach(), leaf.grad), (flat(result), flat(gradient["logprob"])), tolerance=FLOAT64)


# ----------------------------------------------------------------------------------------------------------- advantages


def credited(verl: Peer, batch: Padded, name: str, /, **given: Any) -> Tensor:
    """verl's advantages at the tokens that train."""
    result, _ = verl.call(
        f"{ALGOS}:compute_{name}_advantage", token_level_rewards=batch.token_reward, response_mask=batch.mask,
        **{"index": batch.group.numpy(), **given},
    )  # fmt: skip
    return Flat.of(batch.mask)(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_remax_of_verl_agrees(verl: Peer, seed: int) -> None:
    batch = padded(seed)
    greedy = batch.value[:, 0]
    theirs = credited(verl, batch, "remax_outcome", reward_baselines=greedy)
    outcome, _ = part("normalize.minus_given")({"reward": batch.reward, "votes": EVERYONE, "baseline": greedy})
    assert_agree(Flat.of(batch.mask)(spread_out(outcome, batch)), theirs, tolerance=FLOAT64)


COMPARED: dict[str, Any] = {
    "opo": ("normalize.length_weighted_mean", {}, FLOAT64),
    # verl's factor is one integer over another, which torch divides in float32
    "gpg": ("normalize.rescaled_mean", {"counted": "nonzero_rewards"}, FLOAT32),
    "grpo_passk": ("normalize.best_minus_second", {}, FLOAT64),
    "grpo_passk without std": ("normalize.best_minus_second", {"std": "none"}, FLOAT64),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", COMPARED)
def test_further_baselines_of_verl_agree(verl: Peer, name: str, seed: int) -> None:
    formula, settings, tolerance = COMPARED[name]
    batch = padded(seed)
    batch.reward[1] = 0.0
    config = {"norm_adv_by_std_in_grpo": settings.get("std") != "none"}
    theirs = credited(verl, batch, f"{name.partition(' ')[0]}_outcome", config=config)
    available = {
        "reward": batch.reward, "votes": EVERYONE, "length": batch.mask.sum(1), "group_of_episode": batch.group,
        "num_groups": 2,
    }  # fmt: skip
    outcome, _ = part(formula, **settings)(available)
    assert_agree(Flat.of(batch.mask)(spread_out(outcome, batch)), theirs, tolerance=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whitened_baseline_of_verl_agrees(verl: Peer, seed: int) -> None:
    """REINFORCE++ with a baseline is a group's mean, then whitening over tokens."""
    batch = padded(seed)
    theirs = credited(verl, batch, "reinforce_plus_plus_baseline_outcome")
    outcome, _ = normalize.mean_std(batch.reward, EVERYONE, batch.group, 2, mean="group", std="none")
    mine, _ = advantage.broadcast(outcome, Flat.of(batch.mask).segments)
    assert_agree(normalize.whiten(mine, torch.ones_like(mine, dtype=torch.bool)), theirs, tolerance=COUNT_EPS)


def two_rewards(batch: Padded) -> dict[str, Any]:
    """What verl's GDPO reads: two rewards by name, weighed 1 and 0.5."""
    return {
        "config": {"gdpo_reward_keys": ["right", "short"], "gdpo_reward_weights": [1.0, 0.5]},
        "non_tensor_batch": {"right": batch.reward.numpy(), "short": batch.value[:, 0].numpy()},
        "batch": {"prompts": torch.zeros(6, 2), "attention_mask": torch.ones(6, 11, dtype=torch.long)},
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_gdpo_of_verl_agrees_before_and_after_its_whitening(verl: Peer, seed: int) -> None:
    batch = padded(seed)
    theirs = credited(verl, batch, "gdpo_outcome", **two_rewards(batch))
    rewards = torch.stack([batch.reward, batch.value[:, 0]], 1)
    outcome, _ = part("normalize.each_key", weights=(1.0, 0.5), whitened=False)(
        {"rewards": rewards, "rewards_scored": torch.ones_like(rewards, dtype=torch.bool), "votes": EVERYONE,
         "group_of_episode": batch.group, "num_groups": 2}
    )  # fmt: skip
    mine, _ = advantage.broadcast(outcome, Flat.of(batch.mask).segments)
    # verl reads these rewards in float32.
    assert_agree(normalize.whiten(mine, torch.ones_like(mine, dtype=torch.bool)), theirs, tolerance=FLOAT32)


def optimal_token_baseline(batch: Padded, pi_squared: Tensor) -> Tensor:
    flat = Flat.of(batch.mask)
    mine, _ = part("advantage.optimal_token_baseline")(
        {"token_reward": flat(batch.token_reward), "logp_old": flat(batch.old), "pi_squared": flat(pi_squared),
         "votes": EVERYONE, "episode_of_sequence": torch.arange(6), "group_of_episode": batch.group, "num_groups": 2,
         "segments": flat.segments}
    )  # fmt: skip
    return mine


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "holes"), [("optimal_token_baseline", False), ("multi_turn_optimal_token_baseline", True)]
)
def test_the_optimal_token_baseline_of_verl_agrees(verl: Peer, name: str, holes: bool, seed: int) -> None:
    batch = padded(seed, holes=holes)
    squares = batch.ref.exp()
    theirs = credited(verl, batch, name, old_log_probs=batch.old, sum_pi_squared=squares)
    assert_agree(optimal_token_baseline(batch, squares), theirs, tolerance=FLOAT64)


# ---------------------------------------------------------------------------------------------------------- corrections


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("total", "limit"), [("sum", 1.0), ("mean", 0.35)])
@pytest.mark.parametrize("measure", ["k2", "k3"])
def test_divergence_limits_of_verl_agree(verl: Peer, measure: str, total: str, limit: float, seed: int) -> None:
    batch = padded(seed, spread=FAR)
    mask, _ = verl.call(
        f"{ROLLOUT}:compute_rollout_rejection_mask", log_ratio=batch.old - batch.rollout, response_mask=batch.mask,
        rollout_rs=f"seq_{total}_{measure}", rollout_rs_threshold=str(limit),
    )  # fmt: skip
    settings = {"limit": limit, "measure": measure, "total": total}
    keep = kept(batch, "keep.divergence", batch.old, batch.rollout, **settings)
    assert_agree(Flat.of(batch.mask).back(keep.double()), mask, tolerance=0)


K2 = (0.5, exp(-1), exp(1))
"""d^2 / 2 is at most 0.5 where d is between -1 and 1."""
BANDS: dict[str, Any] = {
    "token_k2": ("keep.token_band", {"band": K2[1:]}),
    "seq_max_k2": ("keep.veto", {"low": K2[1], "high": K2[2]}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("option", BANDS)
def test_limits_of_verl_on_one_token_are_bands(verl: Peer, option: str, seed: int) -> None:
    formula, settings = BANDS[option]
    batch = padded(seed, spread=FAR)
    mask, _ = verl.call(
        f"{ROLLOUT}:compute_rollout_rejection_mask", log_ratio=batch.old - batch.rollout, response_mask=batch.mask,
        rollout_rs=option, rollout_rs_threshold=str(K2[0]),
    )  # fmt: skip
    keep = kept(batch, formula, batch.old, batch.rollout, **settings)
    assert_agree(Flat.of(batch.mask).back(keep.double()), mask, tolerance=0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("level", "cap"), [("token", 1.2), ("sequence", 1.5)])
def test_normalised_importance_of_verl_agrees(verl: Peer, level: str, cap: float, seed: int) -> None:
    batch = padded(seed)
    weights, _ = verl.call(
        f"{ROLLOUT}:compute_rollout_correction_weights", log_ratio=batch.old - batch.rollout, response_mask=batch.mask,
        rollout_is=level, rollout_is_threshold=cap, rollout_is_batch_normalize=True,
    )  # fmt: skip
    flat = Flat.of(batch.mask)
    mine, _ = part("importance.self_normalised", level=level, band=(0.0, cap))(
        {"logratio": flat(batch.old - batch.rollout), "segments": flat.segments, "trains": EVERYONE}
    )
    assert_agree(mine, flat(weights), tolerance=COUNT_EPS)
