"""The formulas that came later, against OpenRLHF 0.11.2, AReaL 1.0.4 and TRL 1.16.0: same numbers, same gradients."""

from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from tests.peers.padded import SEEDS, Flat, Padded, assert_agree, ours, padded
from tests.peers.peer import Peer
from tests.peers.test_newer import EVERYONE, FAR, UNBOUNDED, by_row, kept
from tests.peers.test_verl import spread_out
from torch import Tensor

from trimtab.signal import correction, kl, normalize, part
from trimtab.signal.proximal import current_share, interpolated

FLOAT32, FLOAT64 = 2e-6, 1e-12
AREAL = "areal.utils.functional.functional"
AREAL_ACTOR = "areal.trainer.ppo.actor"
Pair = tuple[Tensor, Tensor]


# ------------------------------------------------------------------------------------------------------------ OpenRLHF


def in_openrlhf(others: Peer, batch: Padded, level: str, gating: str, limit: float) -> tuple[Pair, Any]:
    settings = {"clip_eps_high": 0.28, "is_correction_level": level, "is_correction_gating": gating,
                "is_correction_threshold": [0.0, limit]}  # fmt: skip
    (loss, filtered), gradient = others.call(
        "methods:openrlhf_loss", gradient=("log_probs",), log_probs=batch.current, settings=settings,
        old_log_probs=batch.old, advantages=batch.advantage, action_mask=batch.mask, rollout_log_probs=batch.rollout,
    )  # fmt: skip
    return (loss, gradient["log_probs"]), filtered


GATES: dict[tuple[str, str], Any] = {
    ("token", "binary_kl"): ("keep.binary_kl", {"by_sign": False, "limit": 0.04}),
    ("seq", "binary_kl"): ("keep.binary_kl", {"level": "sequence", "by_sign": False, "limit": 0.045}),
    ("token", "tv"): ("keep.probability_band", {"by_sign": False, "low": 0.06, "high": 0.06}),
    ("seq", "tv"): ("keep.total_variation", {"limit": 0.06}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("level", "gating"), GATES)
def test_the_gates_of_openrlhf_agree(others: Peer, level: str, gating: str, seed: int) -> None:
    """What survives keeps its unbounded ratio to the sampler."""
    formula, settings = GATES[level, gating]
    batch = padded(seed, spread=FAR)
    limit = settings.get("limit", settings.get("low"))
    result, filtered = in_openrlhf(others, batch, level, gating, limit)
    keep = kept(batch, formula, batch.old, batch.rollout, **settings)
    importance = Flat.of(batch.mask)(batch.old - batch.rollout).exp()
    mine = ours(
        batch, "policy_loss.clipped", "weighting.token_mean", keep=keep, importance=importance, band=(0.8, 1.28)
    )
    assert_agree(mine, result, tolerance=1e-7)
    if level == "token":
        assert filtered.item() == pytest.approx(1 - keep.double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("value", ["k1", "k2", "k3"])
@pytest.mark.parametrize("anchored", [True, False])
def test_the_unbiased_kl_of_openrlhf_agrees(others: Peer, anchored: bool, value: Any, seed: int) -> None:
    batch = padded(seed)
    old = {"log_probs_old": batch.old} if anchored else {}
    result, gradient = others.call(
        "openrlhf.models.utils:compute_approx_kl", gradient=("log_probs",), log_probs=batch.current,
        log_probs_base=batch.ref, kl_estimator=value, unbiased_gradient=True, **old,
    )  # fmt: skip
    flat = Flat.of(batch.mask)
    leaf = flat(batch.current).clone().requires_grad_()
    if anchored:
        estimate = kl.importance_weighted_k2_gradient(leaf, flat(batch.ref), flat(batch.old), value=value)
    else:
        estimate = kl.k2_gradient(leaf, flat(batch.ref), value=value)
    estimate.sum().backward()
    assert leaf.grad is not None
    assert_agree((estimate.detach(), leaf.grad), (flat(result), flat(gradient["log_probs"])), tolerance=FLOAT32)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_baseline_of_flash_reinforce_agrees(others: Peer, seed: int) -> None:
    batch = padded(seed)
    credit = others.call(
        "methods:openrlhf_advantage", rewards=batch.reward, action_mask=batch.mask, estimator="flash_reinforce",
        samples=1,
    )  # fmt: skip
    outcome, _ = normalize.mean_std(batch.reward, EVERYONE, torch.arange(6), 6, mean="batch", std="none")
    flat = Flat.of(batch.mask)
    assert_agree(flat(spread_out(outcome, batch)), flat(credit), tolerance=FLOAT64)


# --------------------------------------------------------------------------------------------------------------- AReaL


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", [0.01, 0.03, 1e-9])
def test_m2po_of_areal_agrees(others: Peer, limit: float, seed: int) -> None:
    batch = padded(seed)
    mask = others.call(
        f"{AREAL_ACTOR}:_apply_m2po_masking", old_logp=batch.rollout, prox_logp=batch.old, loss_mask=batch.trainable,
        m2_threshold=limit,
    )  # fmt: skip
    keep = kept(batch, "keep.second_moment", batch.old, batch.rollout, limit=limit)
    assert_agree(Flat.of(batch.mask).back(keep.double()), mask, tolerance=0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("metric", "agg", "limit"), [("k2", "sum", 1.0), ("k2", "mean", 0.35), ("k3", "mean", 0.35)])
def test_divergence_limits_of_areal_agree(others: Peer, metric: str, agg: str, limit: float, seed: int) -> None:
    """Its k3 is that of rollout/old."""
    batch = padded(seed, spread=FAR)
    mask = others.call(
        "methods:areal_rejection", proximal=batch.old, behaviour=batch.rollout, mask=batch.mask, metric=f"kl_{metric}",
        agg=agg, upper=limit,
    )  # fmt: skip
    ends = (batch.rollout, batch.old) if metric == "k3" else (batch.old, batch.rollout)
    keep = kept(batch, "keep.divergence", *ends, limit=limit, measure=metric, total=agg)
    assert_agree(Flat.of(batch.mask).back(keep.double()), mask, tolerance=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_sapo_of_areal_on_the_sequence_agrees(others: Peer, seed: int) -> None:
    batch = by_row(padded(seed))
    (loss, _), gradient = others.call(
        f"{AREAL}:sapo_loss_fn", gradient=("logprobs",), logprobs=batch.current, old_logprobs=batch.old,
        advantages=batch.advantage, tau_pos=1.0, tau_neg=1.05, loss_mask=batch.trainable,
        importance_sampling_level="sequence",
    )  # fmt: skip
    mine = ours(batch, "policy_loss.geometric_soft_gated", "weighting.token_mean")
    assert_agree(mine, (loss, gradient["logprobs"]), tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interpolated_policy_of_areal_agrees(others: Peer, seed: int) -> None:
    batch = padded(seed)
    version = torch.randint(0, 6, batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    found = others.call(
        f"{AREAL_ACTOR}:compute_prox_logp_approximations", old_logp=batch.rollout, logprobs=batch.current,
        versions=version, current_version=5, method="loglinear",
    )["loglinear"]  # fmt: skip
    flat = Flat.of(batch.mask)
    share = current_share(flat(version), 5, torch.float64)
    mine = interpolated(flat(batch.current), flat(batch.rollout), share)
    # AReaL divides versions in float32.
    assert_agree(mine, flat(found), tolerance=FLOAT32)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_huber_value_loss_of_areal_agrees(others: Peer, seed: int) -> None:
    batch = padded(seed, dtype=torch.float32)
    far = batch.returns * 15
    (loss, seen), gradient = others.call(
        f"{AREAL}:ppo_critic_loss_fn", gradient=("value",), value=batch.value, old_value=batch.value_old,
        target_value=far, value_eps_clip=0.2, loss_mask=batch.trainable, loss_fn_type="huber",
    )  # fmt: skip
    flat = Flat.of(batch.mask)
    assert ((flat(batch.value) - flat(far)).abs() > 10).any()
    leaf = flat(batch.value).clone().requires_grad_()
    per_token, mine = part("value_loss.huber_clipped")(
        {"value": leaf, "value_old": flat(batch.value_old), "returns": flat(far)}
    )
    per_token.mean().backward()
    assert leaf.grad is not None
    pair = (per_token.mean().detach(), flat.back(leaf.grad))
    assert_agree(pair, (loss, gradient["value"]), tolerance=1e-4)
    assert torch.equal(flat(seen["clip_mask"]), mine["clipped_tokens"])


# ----------------------------------------------------------------------------------------------------------------- TRL


def in_trl(others: Peer, batch: Padded, *, gmpo: bool = False, entropy: Tensor | None = None, **settings: Any) -> Pair:
    loss, gradient = others.call(
        "methods:trl_loss", gradient=("logps",), logps=batch.current, mask=batch.mask, settings=settings, gmpo=gmpo,
        entropy=entropy, advantages=batch.advantage[:, 0], old_per_token_logps=batch.old,
        sampling_per_token_logps=batch.rollout, ref_per_token_logps=batch.ref,
    )  # fmt: skip
    return loss, gradient["logps"]


SEQUENCE_SUM, SEQUENCE_MEAN = "weighting.sequence_mean_token_sum", "weighting.sequence_mean_token_mean"
LOSSES: dict[str, Any] = {
    "vespo": ({}, "policy_loss.gamma_weighted", "weighting.token_mean", {}),
    "luspo": ({"importance_sampling_level": "sequence"}, "policy_loss.geometric_clipped", SEQUENCE_SUM,
              {"band": (0.8, 1.28)}),
    "gmpo": ({}, "policy_loss.geometric_of_clipped", SEQUENCE_MEAN, {"band": (exp(-0.2), exp(0.28))}),
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LOSSES)
def test_further_losses_of_trl_agree(others: Peer, name: str, seed: int) -> None:
    config, formula, weight, settings = LOSSES[name]
    batch = by_row(padded(seed))
    result = in_trl(others, batch, gmpo=name == "gmpo", loss_type=name, **config)
    assert_agree(ours(batch, formula, weight, **settings), result, tolerance=1e-11)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("level", "formula"), [("token", "importance_weighted_k3"), ("sequence", "geometric_weighted_k3")]
)
def test_the_corrected_kl_of_trl_agrees(others: Peer, level: str, formula: str, seed: int) -> None:
    """Without advantages, TRL's loss is its KL."""
    batch = replace(padded(seed), advantage=torch.zeros(6, 9, dtype=torch.float64))
    result = in_trl(others, batch, beta=1.0, use_bias_correction_kl=True, importance_sampling_level=level)
    flat = Flat.of(batch.mask)
    leaf = flat(batch.current).clone().requires_grad_()
    available = {"logp_current": leaf, "logp_ref": flat(batch.ref), "logp_anchor": flat(batch.old)}
    estimate = part(f"kl.{formula}")({**available, "segments": flat.segments}).mean()
    estimate.backward()
    assert leaf.grad is not None
    assert_agree((estimate.detach(), flat.back(leaf.grad)), result, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_off_policy_mask_of_trl_agrees(others: Peer, seed: int) -> None:
    batch = by_row(padded(seed))
    result = in_trl(others, batch, off_policy_mask_threshold=-0.05, epsilon_low=1.0, epsilon_high=1e9)
    flat = Flat.of(batch.mask)
    keep, _ = correction.negative_drift(
        flat(batch.current), flat(batch.rollout), flat(batch.advantage), flat.segments, delta=-0.05
    )
    assert not keep.all()
    mine = ours(batch, "policy_loss.clipped", "weighting.token_mean", keep=keep, band=UNBOUNDED)
    assert_agree(mine, result, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_entropy_quantile_of_trl_agrees_on_whole_counts(others: Peer, seed: int) -> None:
    """TRL interpolates the quantile, so elsewhere it may keep one token more."""
    batch = by_row(padded(seed))
    entropy, flat = batch.ref.exp(), Flat.of(batch.mask)
    num = flat.segments.num_tokens
    fraction = (num // 3 + 0.1) / num
    result = in_trl(others, batch, entropy=entropy, top_entropy_quantile=fraction)
    keep, _ = part("keep.high_entropy", fraction=fraction)({"entropy": flat(entropy)})
    assert int(keep.sum()) == num // 3
    mine = ours(batch, "policy_loss.clipped", "weighting.token_mean", keep=keep, band=(0.8, 1.28))
    assert_agree(mine, result, tolerance=FLOAT64)
