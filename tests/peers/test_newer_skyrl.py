"""The formulas that came later, against SkyRL 0.3.0: same numbers and gradients where it defines the same thing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.peers.padded import SEEDS, Flat, assert_agree, ours, padded
from tests.peers.peer import Peer
from tests.peers.test_newer import EVERYONE, FAR, FLOAT32, FLOAT64, REGIONS, UNBOUNDED, kept
from tests.peers.test_skyrl import CONFIG, LOSSES, theirs
from tests.peers.test_verl import spread_out

from trimtab.signal import part

DPPO: dict[str, Any] = {"binary_tv": REGIONS["dppo_tv"], "binary_kl": REGIONS["dppo_kl"]}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DPPO)
def test_dppo_of_skyrl_agrees(skyrl: Peer, name: str, seed: int) -> None:
    """The sampler is the anchor, and the gradient goes through the ratio."""
    formula, settings, limit = DPPO[name]
    batch = padded(seed, spread=FAR)
    config = Peer.new(f"{CONFIG}:DPPOConfig", dppo_type=name, delta_low=limit, delta_high=limit)
    result, metrics = theirs(skyrl, batch, "dppo_policy_loss", dppo=config)
    keep = kept(batch, formula, batch.current, batch.rollout, **settings)
    sampler = replace(batch, old=batch.rollout)
    assert_agree(ours(sampler, "policy_loss.clipped", None, keep=keep, band=UNBOUNDED), result, tolerance=1e-5)
    assert metrics["clip_ratio"] == pytest.approx(1 - keep.double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_rollout_is_of_skyrl_agrees(skyrl: Peer, seed: int) -> None:
    batch = padded(seed)
    result, _ = theirs(skyrl, batch, "rollout_is_policy_loss", eps_clip_low=0.2, eps_clip_high=0.28)
    keep = kept(batch, "keep.token_band", batch.current, batch.rollout, band=(0.8, 1.28))
    sampler = replace(batch, old=batch.rollout)
    mine = ours(sampler, "policy_loss.clipped_importance", None, keep=keep, band=UNBOUNDED)
    assert_agree(mine, result, tolerance=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sum_of_ratios_of_skyrl_agrees(skyrl: Peer, seed: int) -> None:
    """Tinker's loss: the unbounded ratio, and no denominator."""
    batch = padded(seed)
    result, _ = theirs(skyrl, batch, "importance_sampling_loss")
    mine = ours(batch, "policy_loss.clipped", None, band=UNBOUNDED)
    assert_agree(mine, result, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_maxrl_of_skyrl_agrees(skyrl: Peer, seed: int) -> None:
    """Rewards of 1 and more: SkyRL adds 1e-6 to their mean, and takes it in float32."""
    batch = padded(seed)
    batch.reward.copy_(batch.reward.abs() + 1)
    credit, _ = skyrl.call(
        f"{LOSSES}:compute_maxrl_advantage", token_level_rewards=batch.token_reward, response_mask=batch.mask,
        index=batch.group.numpy(), epsilon=0.0,
    )  # fmt: skip
    outcome, _ = part("normalize.over_mean")(
        {"reward": batch.reward, "votes": EVERYONE, "group_of_episode": batch.group, "num_groups": 2}
    )
    assert_agree(spread_out(outcome, batch), credit, tolerance=FLOAT32)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mean_by_prompt_of_skyrl_agrees(skyrl: Peer, seed: int) -> None:
    batch = padded(seed)
    scaled = skyrl.call(
        f"{LOSSES}:apply_loss_reduction_to_advantages_minibatch", advantages=batch.advantage, loss_mask=batch.mask,
        loss_reduction="prompt_mean", micro_batch_size=2, max_seq_len=32, prompt_boundaries=[[0, 3], [3, 6]],
    )  # fmt: skip
    flat = Flat.of(batch.mask)
    values = flat(batch.advantage)
    weight = part("weighting.prompt_mean")(
        {"advantage": values, "keep": torch.ones_like(values, dtype=torch.bool), "segments": flat.segments,
         "group_of_token": batch.group[flat.segments.sequence_of_token]}
    )  # fmt: skip
    assert_agree(weight * values, flat(scaled), tolerance=FLOAT64)
