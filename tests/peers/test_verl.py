"""Where verl 0.9.1 defines the same thing, we compute the same thing: losses and gradients, advantages, corrections.

verl adds 1e-8 to the count under a mean, so what goes through its `masked_mean` or "seq-mean-token-mean" agrees to
that; the rest agrees to float64.
"""

from typing import Any

import pytest
import torch
from tests.peers.padded import SEEDS, Flat, Padded, assert_agree, ours, padded
from tests.peers.peer import Peer
from torch import Tensor

import trimtab
from trimtab.signal import Recipe, Stage, advantage, correction, kl, normalize, part, policy_loss, value_loss

ALGOS = "verl.trainer.ppo.core_algos"
ROLLOUT = "verl.trainer.ppo.rollout_corr_helper"
ACTOR = "verl.workers.config:ActorConfig"

FLOAT64 = 1e-12
COUNT_EPS = 1e-7

MODES = {
    "token-mean": ("weighting.token_mean", None, FLOAT64),
    "seq-mean-token-sum": ("weighting.sequence_mean_token_sum", None, FLOAT64),
    "seq-mean-token-mean": ("weighting.sequence_mean_token_mean", None, COUNT_EPS),
    # verl divides by the width of the padded batch unless told otherwise
    "seq-mean-token-sum-norm": ("weighting.constant_divisor", 9.0, FLOAT64),
}

pytestmark = pytest.mark.filterwarnings("ignore:the sampler differs from the trainer")


def actor(**settings: Any) -> dict[str, Any]:
    return Peer.new(ACTOR, strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **settings)


def theirs(verl: Peer, batch: Padded, name: str, mode: str, **settings: Any) -> Any:
    """verl's loss, gradient and metrics."""
    arguments = {key: settings.pop(key) for key in ("rollout_is_weights",) if key in settings}
    mask = settings.pop("response_mask", batch.mask)
    (loss, metrics), gradient = verl.call(
        f"{ALGOS}:compute_policy_loss_{name}",
        gradient=("log_prob",),
        old_log_prob=batch.old,
        log_prob=batch.current,
        advantages=batch.advantage,
        response_mask=mask,
        loss_agg_mode=mode,
        config=actor(**settings),
        **arguments,
    )
    return (loss, gradient["log_prob"]), metrics


BAND = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
CASES = {
    "vanilla": (BAND, "policy_loss.dual_clipped", {"band": (0.8, 1.28), "cap": 3.0}),
    "gspo": (
        {"clip_ratio_low": 0.05, "clip_ratio_high": 0.06},
        "policy_loss.geometric_clipped_token",
        {"band": (0.95, 1.06)},
    ),
    "cispo": (BAND, "policy_loss.clipped_importance", {"band": (0.8, 1.28)}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_policy_losses_agree_under_every_aggregation(verl: Peer, name: str, mode: str, seed: int) -> None:
    config, formula, settings = CASES[name]
    weight, divisor, tolerance = MODES[mode]
    batch = padded(seed)
    result, _ = theirs(verl, batch, name, mode, **config)
    assert_agree(ours(batch, formula, weight, divisor=divisor, **settings), result, tolerance=tolerance)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dual_clip_ceiling_agrees(verl: Peer, seed: int) -> None:
    """A cap low enough to act, and its share of tokens."""
    batch = padded(seed)
    result, metrics = theirs(verl, batch, "vanilla", "token-mean", clip_ratio_c=1.1, **BAND)
    settings = {"band": (0.8, 1.28), "cap": 1.1}
    assert_agree(ours(batch, "policy_loss.dual_clipped", "weighting.token_mean", **settings), result, tolerance=FLOAT64)
    flat = Flat.of(batch.mask)
    _, seen = policy_loss.dual_clipped(flat(batch.current), flat(batch.old), flat(batch.advantage), **settings)
    assert seen["capped_tokens"].any()
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(seen["capped_tokens"].double().mean().item(), abs=1e-6)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(seen["clipped_tokens"].double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_sapo_agrees(verl: Peer, seed: int) -> None:
    """verl aggregates SAPO by sequence whatever mode it is given."""
    batch = padded(seed)
    result, _ = theirs(verl, batch, "sapo", "token-mean", tau_pos=1.0, tau_neg=1.05)
    settings = {"temperature_positive": 1.0, "temperature_negative": 1.05}
    mine = ours(batch, "policy_loss.soft_gated", "weighting.sequence_mean_token_mean", **settings)
    # 1e-8 on the count of a one-token sequence is all that parts us.
    assert_agree(mine, result, tolerance=2e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_cov_agrees_where_every_eligible_token_is_drawn(verl: Peer, seed: int) -> None:
    batch = padded(seed)
    flat = Flat.of(batch.mask)
    num = flat.segments.num_tokens
    selected = policy_loss.covariance_in_band(
        flat(batch.current), flat(batch.old), flat(batch.advantage), torch.ones(num, dtype=torch.bool),
        torch.arange(num), band=(0.8, 1.28), covariance_low=0.05, covariance_high=0.5, fraction=1.0,
    )  # fmt: skip
    assert 0 < int(selected.sum()) < len(selected)
    chosen = Peer.new("verl.workers.config:PolicyLossConfig", clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=0.5)
    result, _ = theirs(verl, batch, "clip_cov", "token-mean", policy_loss=chosen, **BAND)
    mine = ours(batch, "policy_loss.covariance_clipped", "weighting.token_mean", selected=selected, band=(0.8, 1.28))
    assert_agree(mine, result, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_cov_agrees(verl: Peer, seed: int) -> None:
    batch = padded(seed)
    flat = Flat.of(batch.mask)
    num = flat.segments.num_tokens
    selected = policy_loss.covariance_largest(
        flat(batch.current), flat(batch.advantage), torch.ones(num, dtype=torch.bool), torch.arange(num), fraction=0.2
    )
    chosen = Peer.new("verl.workers.config:PolicyLossConfig", kl_cov_ratio=0.2, ppo_kl_coef=0.7)
    result, _ = theirs(verl, batch, "kl_cov", "token-mean", policy_loss=chosen)
    mine = ours(batch, "policy_loss.covariance_penalised", "weighting.token_mean", selected=selected, coef=0.7)
    assert_agree(mine, result, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_aggregations_agree_by_themselves(verl: Peer, mode: str, seed: int) -> None:
    """Also with a row without trainable tokens, which neither of us counts as a sequence."""
    batch = padded(seed)
    mask = batch.mask.index_fill(0, torch.tensor([2]), 0.0)
    weight, divisor, tolerance = MODES[mode]
    loss = verl.call(f"{ALGOS}:agg_loss", loss_mat=batch.advantage, loss_mask=mask, loss_agg_mode=mode)
    flat = Flat.of(mask)
    values = flat(batch.advantage)
    everything = torch.ones_like(values, dtype=torch.bool)
    available = {"advantage": values, "keep": everything, "segments": flat.segments}
    mine = (part(weight, **({"divisor": divisor} if divisor else {}))(available) * values).sum()
    assert_agree(mine, loss, tolerance=tolerance)


def spread_out(outcome: Tensor, batch: Padded) -> Tensor:
    flat = Flat.of(batch.mask)
    return flat.back(advantage.broadcast(outcome, flat.segments)[0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by_std", [True, False])
def test_grpo_advantages_agree(verl: Peer, by_std: bool, seed: int) -> None:
    batch = padded(seed)
    credit, _ = verl.call(
        f"{ALGOS}:compute_grpo_outcome_advantage",
        token_level_rewards=batch.token_reward,
        response_mask=batch.mask,
        index=batch.group.numpy(),
        epsilon=1e-6,
        norm_adv_by_std_in_grpo=by_std,
    )
    votes = torch.ones(6, dtype=torch.bool)
    outcome, _ = normalize.mean_std(
        batch.reward, votes, batch.group, 2, mean="group", std="group" if by_std else "none"
    )
    assert_agree(spread_out(outcome, batch), credit, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", ["rloo", "rloo_vectorized"])
def test_rloo_advantages_agree(verl: Peer, variant: str, seed: int) -> None:
    batch = padded(seed)
    credit, _ = verl.call(
        f"{ALGOS}:compute_{variant}_outcome_advantage",
        token_level_rewards=batch.token_reward,
        response_mask=batch.mask,
        index=batch.group.numpy(),
    )
    outcome, _ = normalize.leave_one_out(batch.reward, torch.ones(6, dtype=torch.bool), batch.group, 2)
    assert_agree(spread_out(outcome, batch), credit, tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_agrees_across_holes(verl: Peer, seed: int) -> None:
    """Whitened advantages and returns; time runs over trainable tokens for both of us."""
    batch = padded(seed)
    credit, returns = verl.call(
        f"{ALGOS}:compute_gae_advantage_return",
        token_level_rewards=batch.token_reward,
        values=batch.value_old,
        response_mask=batch.mask,
        gamma=0.9,
        lam=0.8,
    )
    flat = Flat.of(batch.mask)
    mine, my_returns = advantage.gae(
        flat(batch.token_reward), flat(batch.value_old), torch.zeros(6, dtype=torch.float64),
        torch.ones(6, dtype=torch.bool), flat.segments, gamma=0.9, lam=0.8,
    )  # fmt: skip
    whitened = normalize.whiten(mine, torch.ones_like(mine, dtype=torch.bool))
    assert_agree(my_returns, flat(returns), tolerance=FLOAT64)
    assert_agree(whitened, flat(credit), tolerance=COUNT_EPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_plus_plus_agrees_across_holes(verl: Peer, seed: int) -> None:
    batch = padded(seed)
    rewards = torch.where(batch.trainable, batch.returns / 10, batch.returns * 0) + batch.token_reward
    credit, returns = verl.call(
        f"{ALGOS}:compute_reinforce_plus_plus_outcome_advantage",
        token_level_rewards=rewards,
        response_mask=batch.mask,
        config=Peer.new("verl.trainer.config:AlgoConfig", gamma=0.9),
    )
    flat = Flat.of(batch.mask)
    mine, my_returns = advantage.reward_to_go(flat(rewards), flat.segments, gamma=0.9)
    whitened = normalize.whiten(mine, torch.ones_like(mine, dtype=torch.bool))
    assert_agree(my_returns, flat(returns), tolerance=FLOAT64)
    assert_agree(whitened, flat(credit), tolerance=COUNT_EPS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl_estimators_agree(verl: Peer, name: str, seed: int) -> None:
    batch = padded(seed)
    result, gradient = verl.call(
        f"{ALGOS}:kl_penalty", gradient=("logprob",), logprob=batch.current, ref_logprob=batch.ref, kl_penalty=name
    )
    flat = Flat.of(batch.mask)
    leaf = flat(batch.current).clone().requires_grad_()
    estimate = getattr(kl, name)(leaf, flat(batch.ref))
    estimate.sum().backward()
    assert leaf.grad is not None
    assert_agree((estimate.detach(), leaf.grad), (flat(result), flat(gradient["logprob"])), tolerance=FLOAT64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
def test_value_losses_agree(verl: Peer, mode: str, seed: int) -> None:
    batch = padded(seed)
    (loss, clipped), gradient = verl.call(
        f"{ALGOS}:compute_value_loss",
        gradient=("vpreds",),
        vpreds=batch.value,
        returns=batch.returns,
        values=batch.value_old,
        response_mask=batch.mask,
        cliprange_value=0.2,
        loss_agg_mode=mode,
    )
    flat = Flat.of(batch.mask)
    leaf = flat(batch.value).clone().requires_grad_()
    per_token, seen = value_loss.squared_clipped(leaf, flat(batch.value_old), flat(batch.returns), reach=0.2)
    weight = part(MODES[mode][0])(
        {"advantage": leaf, "keep": torch.ones_like(leaf, dtype=torch.bool), "segments": flat.segments}
    )
    total = (per_token * weight).sum()
    total.backward()
    assert leaf.grad is not None
    assert_agree((total.detach(), flat.back(leaf.grad)), (loss, gradient["vpreds"]), tolerance=FLOAT64)
    assert clipped.item() == pytest.approx(seen["clipped_tokens"].double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("level", "cap"), [("token", 1.2), ("sequence", 1.5)])
def test_truncated_importance_agrees(verl: Peer, level: str, cap: float, seed: int) -> None:
    """The weights, the loss and gradient under them, and the metrics that mean the same."""
    batch = padded(seed)
    weights, metrics = verl.call(
        f"{ROLLOUT}:compute_rollout_correction_weights",
        log_ratio=batch.old - batch.rollout,
        response_mask=batch.mask,
        rollout_is=level,
        rollout_is_threshold=cap,
    )
    flat = Flat.of(batch.mask)
    mine, _ = correction.truncated(flat(batch.old - batch.rollout), flat.segments, level=level, band=(0.0, cap))
    assert_agree(flat.back(mine), weights, tolerance=FLOAT64)
    assert int((mine == cap).sum()) > 0
    result, _ = theirs(verl, batch, "vanilla", "token-mean", rollout_is_weights=weights, **BAND)
    settings = {"band": (0.8, 1.28), "cap": 3.0}
    corrected = ours(batch, "policy_loss.dual_clipped", "weighting.token_mean", importance=mine, **settings)
    assert_agree(corrected, result, tolerance=FLOAT64)

    recipe = Recipe(
        name="tis",
        loss=Stage(part("policy_loss.dual_clipped", **settings), anchor="old"),
        normalize=part("normalize.raw"),
        weighting=part("weighting.token_mean"),
        correction=(Stage(part("importance.truncated", level=level, band=(0.0, cap)), ratio="engine"),),
    )
    _, seen = trimtab.loss(
        batch.current, recipe=recipe, mask=batch.mask, reward=batch.reward, group=batch.group, logp_old=batch.old,
        logp_rollout=batch.rollout,
    )  # fmt: skip
    high = f"importance.truncated/over_high_{level}s"
    assert seen["importance.truncated/importance_mean"] == pytest.approx(metrics["rollout_is_mean"], abs=1e-6)
    assert seen[high] == pytest.approx(metrics["rollout_is_ratio_fraction_high"], abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_outside_a_band_set_to_zero_are_a_band_keep(verl: Peer, seed: int) -> None:
    """verl's IcePop sets the weight to 0; our importance is never 0 and the keep says it."""
    batch = padded(seed)
    weights, metrics = verl.call(
        f"{ROLLOUT}:compute_rollout_correction_weights",
        log_ratio=batch.old - batch.rollout,
        response_mask=batch.mask,
        rollout_is="token",
        rollout_is_threshold="0.8_1.3",
    )
    flat = Flat.of(batch.mask)
    logratio = flat(batch.old - batch.rollout)
    importance, _ = correction.truncated(logratio, flat.segments, band=(0.0, float("inf")))
    keep, _ = correction.token_band(logratio, band=(0.8, 1.3))
    assert_agree(flat.back(importance * keep), weights, tolerance=FLOAT64)
    assert metrics["rollout_is_oob_ratio"] == pytest.approx(1 - keep.double().mean().item(), abs=1e-6)
    result, _ = theirs(verl, batch, "vanilla", "token-mean", rollout_is_weights=weights, **BAND)
    mine = ours(
        batch,
        "policy_loss.dual_clipped",
        "weighting.token_mean",
        importance=importance,
        keep=keep,
        band=(0.8, 1.28),
        cap=3.0,
    )
    assert_agree(mine, result, tolerance=FLOAT64)


REJECTIONS = {"token_k1": "keep.token_band", "seq_sum_k1": "keep.product_band", "seq_mean_k1": "keep.geometric_band"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("option", "bound"), [("token_k1", 1.2), ("seq_sum_k1", 1.6), ("seq_mean_k1", 1.1)])
def test_rejection_agrees_on_a_symmetric_band(verl: Peer, option: str, bound: float, seed: int) -> None:
    """One number C is the band (1/C, C), which is the same band for old/rollout and rollout/old."""
    batch = padded(seed)
    mask, metrics = verl.call(
        f"{ROLLOUT}:compute_rollout_rejection_mask",
        log_ratio=batch.old - batch.rollout,
        response_mask=batch.mask,
        rollout_rs=option,
        rollout_rs_threshold=bound,
    )
    flat = Flat.of(batch.mask)
    available = {"logratio": flat(batch.old - batch.rollout), "segments": flat.segments}
    keep, _ = part(REJECTIONS[option], band=(1 / bound, bound))(available)
    assert keep.any()
    assert not keep.all()
    assert_agree(flat.back(keep.double()), mask, tolerance=0)
    assert metrics["rollout_rs_masked_fraction"] == pytest.approx(1 - keep.double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rejected_batch_agrees_over_the_kept(verl: Peer, seed: int) -> None:
    """verl rejects by narrowing the mask, so its denominator is what is kept: our `over = "kept"`."""
    batch = padded(seed)
    flat = Flat.of(batch.mask)
    keep, _ = correction.geometric_band(flat(batch.old - batch.rollout), flat.segments, band=(1 / 1.1, 1.1))
    result, _ = theirs(verl, batch, "vanilla", "token-mean", response_mask=flat.back(keep.double()), **BAND)
    settings = {"band": (0.8, 1.28), "cap": 3.0}
    mine = ours(batch, "policy_loss.dual_clipped", "weighting.token_mean", keep=keep, over="kept", **settings)
    assert_agree(mine, result, tolerance=FLOAT64)
