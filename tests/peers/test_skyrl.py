"""Where SkyRL 0.3.0 defines the same thing, we compute the same thing: losses and gradients, advantages, corrections.

SkyRL exponentiates in float32 whatever it is given, so a loss with its `safe_exp_delta` agrees to float32; the rest
agrees to float64.
"""

from typing import Any

import numpy as np
import pytest
import torch
from tests.peers.padded import SEEDS, Flat, Padded, assert_agree, ours, padded
from tests.peers.peer import Peer
from torch import Tensor

import trimtab
from trimtab.signal import Recipe, Stage, advantage, correction, kl, normalize, part, policy_loss, value_loss, weighting

LOSSES = "skyrl.backends.skyrl_train.utils.ppo_utils"
CORRECTION = "skyrl.backends.skyrl_train.utils.off_policy_correction_utils"
CONFIG = "skyrl.train.config"

FLOAT32 = 2e-6
FLOAT64 = 1e-12

REDUCTIONS = {
    "token_mean": ("weighting.token_mean", None),
    "sequence_mean": ("weighting.sequence_mean_token_mean", None),
    "seq_mean_token_sum_norm": ("weighting.constant_divisor", 32.0),
}

pytestmark = pytest.mark.filterwarnings("ignore:the sampler differs from the trainer")


def off_policy(**settings: Any) -> dict[str, Any]:
    return Peer.new(f"{CONFIG}:OffPolicyCorrectionConfig", **settings)


def reduced(skyrl: Peer, batch: Padded, reduction: str) -> Tensor:
    """SkyRL scales the advantages so that a plain sum is the mean it wants."""
    return skyrl.call(
        f"{LOSSES}:apply_loss_reduction_to_advantages_minibatch",
        advantages=batch.advantage,
        loss_mask=batch.mask,
        loss_reduction=reduction,
        micro_batch_size=2,
        max_seq_len=32,
    )


def theirs(skyrl: Peer, batch: Padded, function: str, *, reduction: str | None = None, **settings: Any) -> Any:
    """SkyRL's loss, gradient and metrics."""
    config = Peer.new(f"{CONFIG}:AlgorithmConfig", loss_reduction=reduction or "sequence_mean", **settings)
    (loss, metrics), gradient = skyrl.call(
        f"{LOSSES}:{function}",
        gradient=("log_probs",),
        log_probs=batch.current,
        old_log_probs=batch.old,
        advantages=batch.advantage if reduction is None else reduced(skyrl, batch, reduction),
        config=config,
        loss_mask=batch.mask,
        rollout_logprobs=batch.rollout,
    )
    return (loss, gradient["log_probs"]), metrics


PPO = {"eps_clip_low": 0.2, "eps_clip_high": 0.28}
CASES = {
    "regular": ("ppo_policy_loss", PPO, "policy_loss.clipped", {"band": (0.8, 1.28)}, FLOAT32),
    "dual_clip": (
        "ppo_policy_loss",
        {**PPO, "clip_ratio_c": 1.3},
        "policy_loss.dual_clipped",
        {"band": (0.8, 1.28), "cap": 1.3},
        FLOAT32,
    ),
    "gspo": (
        "gspo_policy_loss",
        {"eps_clip_low": 0.05, "eps_clip_high": 0.06},
        "policy_loss.geometric_clipped_token",
        {"band": (0.95, 1.06)},
        FLOAT64,
    ),
    "cispo": (
        "compute_policy_loss_cispo",
        {"cispo": Peer.new(f"{CONFIG}:CISPOConfig", cispo_eps_clip_low=0.2, cispo_eps_clip_high=0.28)},
        "policy_loss.clipped_importance",
        {"band": (0.8, 1.28)},
        FLOAT32,
    ),
    "sapo": (
        "sapo_policy_loss",
        {"sapo": Peer.new(f"{CONFIG}:SAPOConfig", tau_pos=1.0, tau_neg=1.05)},
        "policy_loss.soft_gated",
        {"temperature_positive": 1.0, "temperature_negative": 1.05},
        FLOAT64,
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_policy_losses_agree_under_every_reduction(skyrl: Peer, name: str, reduction: str, seed: int) -> None:
    function, config, formula, settings, tolerance = CASES[name]
    batch = padded(seed)
    weight, divisor = REDUCTIONS[reduction]
    result, _ = theirs(skyrl, batch, function, reduction=reduction, policy_loss_type=name, **config)
    assert_agree(ours(batch, formula, weight, divisor=divisor, **settings), result, tolerance=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_cross_entropy_agrees(skyrl: Peer, seed: int) -> None:
    batch = padded(seed)
    result, _ = theirs(skyrl, batch, "cross_entropy_loss")
    assert_agree(ours(batch, "policy_loss.cross_entropy", None), result, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_cov_agrees_where_every_eligible_token_is_drawn(skyrl: Peer, seed: int) -> None:
    """SkyRL draws at random among the eligible; with a fraction of 1 all of them go, whatever the draw."""
    batch = padded(seed)
    flat = Flat.of(batch.mask)
    num = flat.segments.num_tokens
    selected = policy_loss.covariance_in_band(
        flat(batch.current), flat(batch.old), flat(batch.advantage), torch.ones(num, dtype=torch.bool),
        torch.arange(num), band=(0.8, 1.28), covariance_low=0.05, covariance_high=0.5, fraction=1.0,
    )  # fmt: skip
    assert 0 < int(selected.sum()) < len(selected)
    chosen = Peer.new(f"{CONFIG}:ClipCovConfig", clip_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=0.5)
    result, metrics = theirs(skyrl, batch, "compute_policy_loss_clip_cov", clip_cov=chosen, **PPO)
    mine = ours(batch, "policy_loss.covariance_clipped", None, selected=selected, band=(0.8, 1.28))
    assert_agree(mine, result, tolerance=FLOAT64)
    assert metrics["clip_ratio"] == pytest.approx(selected.double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_cov_agrees(skyrl: Peer, seed: int) -> None:
    batch = padded(seed)
    flat = Flat.of(batch.mask)
    num = flat.segments.num_tokens
    selected = policy_loss.covariance_largest(
        flat(batch.current), flat(batch.advantage), torch.ones(num, dtype=torch.bool), torch.arange(num), fraction=0.2
    )
    chosen = Peer.new(f"{CONFIG}:KLCovConfig", kl_cov_frac=0.2, ppo_kl_coef=0.7)
    result, _ = theirs(skyrl, batch, "compute_policy_loss_kl_cov", kl_cov=chosen)
    mine = ours(batch, "policy_loss.covariance_penalised", None, selected=selected, coef=0.7)
    assert_agree(mine, result, tolerance=FLOAT64)


# Each correction with SkyRL's keys on one side and our stages on the other; bands chosen so that each does something.
CORRECTIONS: dict[str, tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]] = {
    "token_tis": (
        {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.2},
        [("importance.truncated", {"level": "token", "band": (0.0, 1.2)})],
    ),
    "sequence_tis": (
        {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 1.5},
        [("importance.truncated", {"level": "sequence", "band": (0.0, 1.5)})],
    ),
    "geometric": (
        {"sequence_mask_metric": "geometric", "geo_mask_low": 0.93, "geo_mask_high": 1.08},
        [("keep.geometric_band", {"band": (0.93, 1.08)})],
    ),
    "product": (
        {"sequence_mask_metric": "product", "product_mask_low": 0.7, "product_mask_high": 1.8},
        [("keep.product_band", {"band": (0.7, 1.8)})],
    ),
    "veto": (
        {"outlier_token_is_threshold_low": 0.65, "outlier_token_is_threshold_high": 1.6},
        [("keep.veto", {"low": 0.65, "high": 1.6})],
    ),
    "token_mask": (
        {"token_mask_is_threshold_low": 0.8, "token_mask_is_threshold_high": 1.3},
        [("keep.token_band", {"band": (0.8, 1.3)})],
    ),
    "token_tis_geometric_veto": (
        {
            "tis_ratio_type": "token",
            "token_tis_ratio_clip_high": 1.2,
            "sequence_mask_metric": "geometric",
            "geo_mask_low": 0.9,
            "geo_mask_high": 1.1,
            "outlier_token_is_threshold_low": 0.6,
        },
        [
            ("importance.truncated", {"level": "token", "band": (0.0, 1.2)}),
            ("keep.geometric_band", {"band": (0.9, 1.1)}),
            ("keep.veto", {"low": 0.6}),
        ],
    ),
}


def corrected(batch: Padded, stages: list[tuple[str, dict[str, Any]]]) -> tuple[Tensor, Tensor]:
    """Our importance and keep for a list of stages on the engine ratio."""
    flat = Flat.of(batch.mask)
    logratio = flat(batch.old) - flat(batch.rollout)
    importance, keep = torch.ones_like(logratio), torch.ones_like(logratio, dtype=torch.bool)
    for name, settings in stages:
        result, _ = part(name, **settings)({"logratio": logratio, "segments": flat.segments})
        importance, keep = (importance, keep & result) if name.startswith("keep.") else (importance * result, keep)
    return importance, keep


@pytest.mark.parametrize("name", CORRECTIONS)
def test_every_correction_compared_here_does_something(name: str) -> None:
    for seed in SEEDS:
        importance, keep = corrected(padded(seed), CORRECTIONS[name][1])
        assert keep.any(), "it rejects everything, so losses would agree at 0"
        assert not keep.all() or importance.max() in (1.2, 1.5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_correction_block_agrees(skyrl: Peer, name: str, seed: int) -> None:
    """Importance and mask themselves, before any loss."""
    batch = padded(seed)
    config, stages = CORRECTIONS[name]
    ratio, _, mask = skyrl.call(
        f"{CORRECTION}:compute_off_policy_correction",
        old_log_probs=batch.old,
        rollout_logprobs=batch.rollout,
        loss_mask=batch.mask,
        off_policy_correction=off_policy(**config),
    )
    importance, keep = corrected(batch, stages)
    flat = Flat.of(batch.mask)
    assert_agree(flat.back(keep.double()), mask, tolerance=0)
    if ratio is not None:
        assert_agree(flat.back(importance) * mask, ratio.expand_as(mask) * mask, tolerance=FLOAT32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", ["regular", "dual_clip", "cispo", "sapo"])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrected_losses_agree(skyrl: Peer, name: str, loss: str, seed: int) -> None:
    """Value and gradient, over the denominators of all tokens (`over = "all"`), as SkyRL has them today."""
    batch = padded(seed)
    config, stages = CORRECTIONS[name]
    function, own, formula, settings, _ = CASES[loss]
    result, _ = theirs(
        skyrl,
        batch,
        function,
        reduction="token_mean",
        policy_loss_type=loss,
        off_policy_correction=off_policy(**config),
        **own,
    )
    importance, keep = corrected(batch, stages)
    mine = ours(batch, formula, "weighting.token_mean", importance=importance, keep=keep, **settings)
    assert_agree(mine, result, tolerance=FLOAT32)


METRICS = {
    "token_tis": {"tis_token_clip_high_ratio": "importance.truncated/over_high_tokens"},
    "sequence_tis": {"tis_seq_clip_high_ratio": "importance.truncated/over_high_sequences"},
    "geometric": {
        "geo_sequence_mask_masked_ratio": "keep.geometric_band/rejected_sequences",
        "geo_sequence_mask_over_high_ratio": "keep.geometric_band/over_high_sequences",
        "geo_sequence_mask_under_low_ratio": "keep.geometric_band/under_low_sequences",
    },
    "product": {
        "product_sequence_mask_masked_ratio": "keep.product_band/rejected_sequences",
        "product_sequence_mask_over_high_ratio": "keep.product_band/over_high_sequences",
        "product_sequence_mask_under_low_ratio": "keep.product_band/under_low_sequences",
    },
    "veto": {
        "outlier_seq_masked_ratio": "keep.veto/rejected_sequences",
        "outlier_seq_over_high_ratio": "keep.veto/over_high_sequences",
        "outlier_seq_under_low_ratio": "keep.veto/under_low_sequences",
    },
    "token_mask": {"token_mask_ratio": "keep.token_band/rejected_tokens"},
}
ALWAYS = {"is_ratio_mean": "ratio_engine/token_mean", "is_ratio_max": "ratio_engine/token_max"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_the_correction_agree(skyrl: Peer, name: str, seed: int) -> None:
    batch = padded(seed)
    config, stages = CORRECTIONS[name]
    _, metrics = theirs(skyrl, batch, "ppo_policy_loss", off_policy_correction=off_policy(**config))
    _, mine = trimtab.loss(
        batch.current, recipe=grpo(stages), mask=batch.mask, reward=batch.reward, group=batch.group, logp_old=batch.old,
        logp_rollout=batch.rollout,
    )  # fmt: skip
    pairs = {**ALWAYS, **METRICS[name]}
    assert {n: mine[our_name] for n, our_name in pairs.items()} == pytest.approx(
        {n: metrics[n] for n in pairs}, abs=1e-6
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_clip_fraction_agrees(skyrl: Peer, seed: int) -> None:
    batch = padded(seed)
    credit = batch.reward[:, None].expand_as(batch.mask).contiguous()
    same = Padded(**{**vars(batch), "advantage": credit})
    _, metrics = theirs(skyrl, same, "ppo_policy_loss", **PPO)
    raw = Recipe(
        name="raw",
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.28)), anchor="old"),
        normalize=part("normalize.raw"),
        weighting=part("weighting.token_mean"),
    )
    _, mine = trimtab.loss(
        batch.current, recipe=raw, mask=batch.mask, reward=batch.reward, group=batch.group, logp_old=batch.old
    )
    assert mine["policy_loss.clipped/clipped_tokens"] == pytest.approx(metrics["clip_ratio"], abs=1e-6)
    assert metrics["clip_ratio"] > 0


def grpo(stages: list[tuple[str, dict[str, Any]]]) -> Recipe:
    return Recipe(
        name="grpo_with_correction",
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.28)), anchor="old"),
        normalize=part("normalize.mean_std", mean="group", std="group"),
        weighting=part("weighting.token_mean"),
        correction=tuple(Stage(part(name, **settings), ratio="engine") for name, settings in stages),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_from_reward_to_gradient_the_whole_path_agrees(skyrl: Peer, seed: int) -> None:
    """GRPO, PPO clip and token TIS in one call of ours against three of SkyRL's."""
    batch = padded(seed)
    config, stages = CORRECTIONS["token_tis"]
    credit, _ = skyrl.call(
        f"{LOSSES}:compute_grpo_outcome_advantage",
        token_level_rewards=batch.token_reward,
        response_mask=batch.mask,
        index=batch.group.numpy(),
    )
    same = Padded(**{**vars(batch), "advantage": credit})
    result, _ = theirs(
        skyrl, same, "ppo_policy_loss", reduction="token_mean", off_policy_correction=off_policy(**config), **PPO
    )
    leaf = batch.current.clone().requires_grad_()
    loss, _ = trimtab.loss(
        leaf, recipe=grpo(stages), mask=batch.mask, reward=batch.reward, group=batch.group, logp_old=batch.old,
        logp_rollout=batch.rollout,
    )  # fmt: skip
    loss.backward()
    assert leaf.grad is not None
    assert_agree((loss.detach(), leaf.grad), result, tolerance=FLOAT32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by_std", [True, False])
def test_grpo_advantages_agree(skyrl: Peer, by_std: bool, seed: int) -> None:
    batch = padded(seed)
    credit, _ = skyrl.call(
        f"{LOSSES}:compute_grpo_outcome_advantage",
        token_level_rewards=batch.token_reward,
        response_mask=batch.mask,
        index=batch.group.numpy(),
        epsilon=1e-6,
        grpo_norm_by_std=by_std,
    )
    votes = torch.ones(6, dtype=torch.bool)
    outcome, _ = normalize.mean_std(
        batch.reward, votes, batch.group, 2, mean="group", std="group" if by_std else "none"
    )
    assert_agree(spread_out(outcome, batch), credit, tolerance=FLOAT32)


def spread_out(outcome: Tensor, batch: Padded) -> Tensor:
    flat = Flat.of(batch.mask)
    return flat.back(advantage.broadcast(outcome, flat.segments)[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_advantages_agree(skyrl: Peer, seed: int) -> None:
    batch = padded(seed)
    credit, _ = skyrl.call(
        f"{LOSSES}:compute_rloo_outcome_advantage",
        token_level_rewards=batch.token_reward,
        response_mask=batch.mask,
        index=batch.group.numpy(),
    )
    outcome, _ = normalize.leave_one_out(batch.reward, torch.ones(6, dtype=torch.bool), batch.group, 2)
    assert_agree(spread_out(outcome, batch), credit, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_agrees_where_padding_is_worth_nothing(skyrl: Peer, seed: int) -> None:
    """Whitened advantages and returns, on rows without holes whose padding has value 0."""
    batch = padded(seed, holes=False)
    credit, returns = skyrl.call(
        f"{LOSSES}:compute_gae_advantage_return",
        token_level_rewards=batch.token_reward,
        values=batch.value_old * batch.mask,
        response_mask=batch.mask,
        gamma=0.9,
        lambd=0.8,
    )
    flat = Flat.of(batch.mask)
    mine, my_returns = advantage.gae(
        flat(batch.token_reward), flat(batch.value_old), torch.zeros(6, dtype=torch.float64),
        torch.ones(6, dtype=torch.bool), flat.segments, gamma=0.9, lam=0.8,
    )  # fmt: skip
    whitened = normalize.whiten(mine, torch.ones_like(mine, dtype=torch.bool))
    assert_agree((whitened, my_returns), (flat(credit), flat(returns)), tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_plus_plus_agrees_without_holes(skyrl: Peer, seed: int) -> None:
    batch = padded(seed, holes=False)
    rewards = torch.where(batch.trainable, batch.returns / 10, batch.returns * 0) + batch.token_reward
    credit, returns = skyrl.call(
        f"{LOSSES}:compute_reinforce_plus_plus_outcome_advantage",
        token_level_rewards=rewards,
        response_mask=batch.mask,
        gamma=0.9,
    )
    flat = Flat.of(batch.mask)
    mine, my_returns = advantage.reward_to_go(flat(rewards), flat.segments, gamma=0.9)
    whitened = normalize.whiten(mine, torch.ones_like(mine, dtype=torch.bool))
    assert_agree((whitened, my_returns), (flat(credit), flat(returns)), tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl_estimators_agree(skyrl: Peer, name: str, seed: int) -> None:
    batch = padded(seed)
    result, gradient = skyrl.call(
        f"{LOSSES}:compute_approx_kl",
        gradient=("log_probs",),
        log_probs=batch.current,
        log_probs_base=batch.ref,
        loss_mask=batch.mask,
        kl_estimator_type=name,
    )
    flat = Flat.of(batch.mask)
    leaf = flat(batch.current).clone().requires_grad_()
    estimate = getattr(kl, name)(leaf, flat(batch.ref))
    estimate.sum().backward()
    assert leaf.grad is not None
    mine = (flat.back(estimate.detach()), flat.back(leaf.grad))
    assert_agree(mine, (result, gradient["log_probs"]), tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reach", [0.2, None])
def test_value_losses_agree(skyrl: Peer, reach: float | None, seed: int) -> None:
    batch = padded(seed)
    (loss, clipped), gradient = skyrl.call(
        f"{LOSSES}:ppo_critic_loss",
        gradient=("values",),
        values=batch.value,
        old_values=batch.value_old,
        returns=batch.returns,
        config=Peer.new(f"{CONFIG}:AlgorithmConfig", value_clip=reach),
        loss_mask=batch.mask,
    )
    flat = Flat.of(batch.mask)
    leaf = flat(batch.value).clone().requires_grad_()
    if reach is None:
        per_token, seen = value_loss.squared(leaf, flat(batch.returns))
    else:
        per_token, seen = value_loss.squared_clipped(leaf, flat(batch.value_old), flat(batch.returns), reach=reach)
        assert seen["clipped_tokens"].double().mean().item() == pytest.approx(clipped, abs=1e-6)
    weight = weighting.sequence_mean_token_mean(leaf, torch.ones_like(leaf, dtype=torch.bool), flat.segments)
    total = (per_token * weight).sum()
    total.backward()
    assert leaf.grad is not None
    assert_agree((total.detach(), flat.back(leaf.grad)), (loss, gradient["values"]), tolerance=FLOAT64)


def test_sequence_ratios_bound_the_sum_and_not_its_tokens(skyrl: Peer) -> None:
    """Log-ratios of +30 and -29: both of us read a product of e, since the bound of 20 is on the sum."""
    old, rollout = (
        torch.tensor([[-1.0, -30.0]], dtype=torch.float64),
        torch.tensor([[-31.0, -1.0]], dtype=torch.float64),
    )
    ratio, _ = skyrl.call(
        f"{CORRECTION}:compute_tis_ratio",
        old_log_probs=old,
        rollout_logprobs=rollout,
        loss_mask=torch.ones(1, 2, dtype=torch.float64),
        tis_ratio_type="sequence",
        off_policy_correction=off_policy(),
    )
    flat = Flat.of(torch.ones(1, 2))
    mine, _ = correction.truncated((old - rollout)[0], flat.segments, level="sequence", band=(0.0, 5.0))
    assert ratio.item() == pytest.approx(np.e, abs=1e-6)
    assert mine.tolist() == pytest.approx([np.e, np.e], abs=1e-12)
