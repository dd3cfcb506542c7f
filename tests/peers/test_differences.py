"""Where we differ from SkyRL 0.3.0 and verl 0.9.1 on purpose: both numbers, side by side. docs/peers.md says why."""

from dataclasses import replace
from math import e, exp, inf, log, nan, sqrt

import pytest
import torch
from tests.peers import test_skyrl, test_verl
from tests.peers.padded import Flat, Padded, ours, padded
from tests.peers.peer import Peer, PeerError
from tests.peers.test_skyrl import CONFIG, CORRECTION, LOSSES, off_policy
from tests.peers.test_verl import ALGOS, ROLLOUT
from torch import Tensor

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import Recipe, Stage, advantage, correction, kl, normalize, part, policy_loss

pytestmark = pytest.mark.filterwarnings("ignore:the sampler differs from the trainer")


def row(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([values], dtype=dtype)


def small(mask: Tensor, **fields: Tensor) -> Padded:
    """A batch of which only the given fields matter."""
    blank = torch.zeros_like(mask)
    names = ("current", "old", "rollout", "ref", "advantage", "value", "value_old", "returns")
    rows = mask.shape[0]
    given = {"mask": mask, "reward": torch.zeros(rows, dtype=mask.dtype), "group": torch.zeros(rows, dtype=torch.long)}
    return Padded(**{name: fields.get(name, blank) for name in names}, **given)


def alone(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool)


# ----------------------------------------------------------------------------------------- populations and denominators


def test_skyrl_ratio_minimum_and_spread_include_padding(skyrl: Peer) -> None:
    # ratios 2 and 4 and two padded cells: their minimum is the 0 of padding; their std that of 2, 4, 0, 0 with ddof 1
    mask, old = row(1, 1, 0, 0), row(log(2), log(4), 0, 0)
    _, metrics, _ = skyrl.call(
        f"{CORRECTION}:compute_off_policy_correction",
        old_log_probs=old - 3,
        rollout_logprobs=old * 0 - 3,
        loss_mask=mask,
        off_policy_correction=off_policy(tis_ratio_type="token"),
    )
    assert metrics["is_ratio_min"] == 0.0
    assert metrics["is_ratio_std"] == pytest.approx(sqrt((0.25 + 6.25 + 2.25 + 2.25) / 3), abs=1e-6)
    _, mine = trimtab.loss(
        old - 3, recipe=trimtab.recipe("tis", normalize=part("normalize.raw")), mask=mask, reward=row(1.0)[0],
        group=torch.tensor([0]), logp_old=old - 3, logp_rollout=old * 0 - 3,
    )  # fmt: skip
    assert mine["ratio_engine/token_min"] == pytest.approx(2.0, abs=1e-12)
    assert mine["ratio_engine/token_std"] == pytest.approx(1.0, abs=1e-12)


def test_skyrl_counts_a_row_without_tokens_as_a_sequence(skyrl: Peer) -> None:
    # one row of two tokens with advantage 1 and one empty row: they divide by 2 sequences, we by 1
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    scaled = skyrl.call(
        f"{LOSSES}:apply_loss_reduction_to_advantages_minibatch",
        advantages=torch.ones_like(mask),
        loss_mask=mask,
        loss_reduction="sequence_mean",
        micro_batch_size=2,
        max_seq_len=8,
    )
    assert scaled[0].tolist() == [0.25, 0.25]
    flat = Flat.of(mask)
    weight = part("weighting.sequence_mean_token_mean")(
        {"advantage": flat(mask), "keep": alone(2), "segments": flat.segments}
    )
    assert weight.tolist() == [0.5, 0.5]


def test_skyrl_legacy_token_mean_depends_on_the_micro_batch(skyrl: Peer) -> None:
    # rows of 1 and 3 tokens: a token of the first weighs 1/4 in one micro-batch of two rows and 1/2 in two of one row
    mask = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    arguments = {"advantages": torch.ones_like(mask), "loss_mask": mask, "max_seq_len": 8}
    name = f"{LOSSES}:apply_loss_reduction_to_advantages_minibatch"
    once, twice = (
        skyrl.call(name, loss_reduction="token_mean_legacy", micro_batch_size=size, **arguments)[0, 0].item()
        for size in (2, 1)
    )
    assert (once, twice) == (0.25, 0.5)
    flat = Flat.of(mask)
    weight = part("weighting.token_mean")({"advantage": flat(mask), "keep": alone(4), "segments": flat.segments})
    assert weight.tolist() == [0.25] * 4


def test_verl_divides_by_what_is_kept(verl: Peer) -> None:
    # four tokens of loss -1 (ratio 1, advantage 1), one rejected: they say -1, our default says -3/4
    batch = small(row(1, 1, 1, 1), advantage=row(1, 1, 1, 1))
    (loss, _), _ = test_verl.theirs(verl, batch, "vanilla", "token-mean", response_mask=row(1, 1, 1, 0))
    keep = torch.tensor([True, True, True, False])
    mine, _ = ours(batch, "policy_loss.dual_clipped", "weighting.token_mean", keep=keep)
    over_kept, _ = ours(batch, "policy_loss.dual_clipped", "weighting.token_mean", keep=keep, over="kept")
    assert (loss.item(), mine.item(), over_kept.item()) == (-1.0, -0.75, -1.0)


def test_verl_adds_to_the_count_under_a_mean(verl: Peer) -> None:
    # one token of loss 1: its mean is 1 / (1 + 1e-8)
    one = row(1.0)
    loss = verl.call(f"{ALGOS}:agg_loss", loss_mat=one, loss_mask=one, loss_agg_mode="seq-mean-token-mean")
    assert loss.item() == pytest.approx(1 / (1 + 1e-8), abs=1e-15)
    assert loss.item() != 1.0
    mine, _ = ours(small(one, advantage=-one), "policy_loss.dual_clipped", "weighting.sequence_mean_token_mean")
    assert mine.item() == 1.0


def test_skyrl_clip_fraction_counts_rejected_tokens(skyrl: Peer) -> None:
    # ratio 2 at A > 0 is clipped in both rows; the second row is vetoed. They report 1, as we do, but over two rows:
    # with the surviving row unclipped they report 1/2 although every token that trains is free.
    mask = torch.ones(2, 1, dtype=torch.float64)
    old = torch.tensor([[-1.0], [-1.0]], dtype=torch.float64)
    current, rollout = old + torch.tensor([[0.0], [log(2)]]), old - torch.tensor([[0.0], [2.0]])
    batch = small(mask, current=current, old=old, rollout=rollout, advantage=mask)
    veto = off_policy(outlier_token_is_threshold_high=2.0)
    _, metrics = test_skyrl.theirs(skyrl, batch, "ppo_policy_loss", off_policy_correction=veto)
    recipe = Recipe(
        name="veto",
        loss=Stage(part("policy_loss.clipped"), anchor="old"),
        normalize=part("normalize.raw"),
        weighting=part("weighting.token_mean"),
        correction=(Stage(part("keep.veto", high=2.0), ratio="engine"),),
    )
    reward = torch.ones(2, dtype=torch.float64)
    _, mine = trimtab.loss(
        current, recipe=recipe, mask=mask, reward=reward, group=torch.tensor([0, 0]), logp_old=old, logp_rollout=rollout
    )
    assert metrics["clip_ratio"] == 0.5
    assert mine["policy_loss.clipped/clipped_tokens"] == 0.0


def test_verl_effective_sample_size_is_that_of_the_truncated_weights(verl: Peer) -> None:
    # ratios 1 and 9, truncated at 2: (1 + 2)^2 / (2 * 5) = 0.9 against (1 + 9)^2 / (2 * 82) = 0.6098
    old = row(-3.0, -3.0 + log(9))
    _, metrics = verl.call(
        f"{ROLLOUT}:compute_rollout_correction_weights",
        log_ratio=old + 3,
        response_mask=row(1, 1),
        rollout_is="token",
        rollout_is_threshold=2.0,
    )
    assert metrics["rollout_is_eff_sample_size"] == pytest.approx(0.9, abs=1e-6)
    _, mine = trimtab.loss(
        old, recipe=trimtab.recipe("tis", normalize=part("normalize.raw")), mask=row(1, 1), reward=row(1.0)[0],
        group=torch.tensor([0]), logp_old=old, logp_rollout=row(-3, -3),
    )  # fmt: skip
    assert mine["ess_engine/token"] == pytest.approx(100 / 164, abs=1e-12)


# --------------------------------------------------------------------------------------------- what a rejection reaches


def test_skyrl_lets_a_rejected_token_into_the_sequence_ratio(skyrl: Peer) -> None:
    # update ratios 1 and 4; the engine ratio of the second token is out of band, so it is masked. Their sequence ratio
    # is sqrt(4) = 2 nevertheless, ours that of the kept token: 1.
    old = row(-3.0, -3.0)
    batch = small(row(1, 1), current=old + row(0, log(4)), old=old, rollout=old - row(0, 2.0), advantage=row(1, 1))
    token_mask = off_policy(token_mask_is_threshold_low=0.5, token_mask_is_threshold_high=2.0)
    (loss, _), _ = test_skyrl.theirs(
        skyrl, batch, "gspo_policy_loss", off_policy_correction=token_mask, eps_clip_low=0.9, eps_clip_high=9.0
    )
    keep, _ = correction.token_band((old - batch.rollout)[0], band=(0.5, 2.0))
    mine, _ = ours(batch, "policy_loss.geometric_clipped_token", None, keep=keep, band=(0.1, 10.0))
    assert loss.item() == pytest.approx(-2.0, abs=1e-12)
    assert mine.item() == pytest.approx(-1.0, abs=1e-12)


def test_skyrl_stages_see_one_another(skyrl: Peer) -> None:
    # engine ratios 1.5 and 4, the second masked by itself: their product is then 1.5, our stages both read 1.5 * 4 = 6
    old, rollout = row(-3.0, -3.0), row(-3.0 - log(1.5), -3.0 - log(4))
    both = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0, "tis_ratio_type": "sequence"}
    ratio, _, _ = skyrl.call(
        f"{CORRECTION}:compute_off_policy_correction",
        old_log_probs=old,
        rollout_logprobs=rollout,
        loss_mask=row(1, 1),
        off_policy_correction=off_policy(sequence_tis_ratio_clip_high=10.0, **both),
    )
    mine, _ = correction.truncated((old - rollout)[0], Flat.of(row(1, 1)).segments, level="sequence", band=(0.0, 10.0))
    assert ratio.item() == pytest.approx(1.5, abs=1e-6)
    assert mine.tolist() == pytest.approx([6.0, 6.0], abs=1e-12)


def test_skyrl_does_not_count_a_vetoed_sequence_as_truncated(skyrl: Peer) -> None:
    # product ratios 6 and 1; the first row is vetoed, so its product is taken over no token: 0 of 2 truncated; ours 1
    old, rollout = torch.full((2, 1), -3.0), torch.tensor([[-3.0 - log(6)], [-3.0]])
    _, metrics, _ = skyrl.call(
        f"{CORRECTION}:compute_off_policy_correction",
        old_log_probs=old,
        rollout_logprobs=rollout,
        loss_mask=torch.ones(2, 1),
        off_policy_correction=off_policy(tis_ratio_type="sequence", outlier_token_is_threshold_high=2.0),
    )
    segments = Flat.of(torch.ones(2, 1)).segments
    _, seen = correction.truncated((old - rollout)[:, 0], segments, level="sequence", band=(0.0, 5.0))
    assert metrics["tis_seq_clip_high_ratio"] == 0.0
    assert seen["over_high_sequences"].tolist() == [True, False]


def test_verl_rejection_bands_are_on_the_inverse_ratio(verl: Peer) -> None:
    # old/rollout = 1.5 with the band "0.5_1.2": they test rollout/old = 0.667 and keep it, we test 1.5 and reject it;
    # (1/1.2, 1/0.5) is their band in our words
    logratio = row(log(1.5))
    for option, name in test_verl.REJECTIONS.items():
        mask, _ = verl.call(
            f"{ROLLOUT}:compute_rollout_rejection_mask",
            log_ratio=logratio,
            response_mask=row(1),
            rollout_rs=option,
            rollout_rs_threshold="0.5_1.2",
        )
        available = {"logratio": logratio[0], "segments": Flat.of(row(1)).segments}
        assert mask.item() == 1.0
        assert part(name, band=(0.5, 1.2))(available)[0].tolist() == [False]
        assert part(name, band=(1 / 1.2, 2.0))(available)[0].tolist() == [True]


# ------------------------------------------------------------------------------------------------ bounds and precision


def test_skyrl_exponentiates_in_single_precision(skyrl: Peer) -> None:
    batch = padded(0)
    (loss, _), _ = test_skyrl.theirs(skyrl, batch, "ppo_policy_loss", eps_clip_low=0.2, eps_clip_high=0.28)
    mine, _ = ours(batch, "policy_loss.clipped", None, band=(0.8, 1.28))
    (exact, _), _ = test_skyrl.theirs(skyrl, batch, "importance_sampling_loss")
    assert 1e-10 < abs(loss.item() - mine.item()) < 1e-5
    free, _ = ours(batch, "policy_loss.clipped", None, band=(0.0, inf))
    assert exact.item() == pytest.approx(free.item(), abs=1e-12)


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_hold_the_geometric_ratio_at_e_to_the_10(peer: str, request: pytest.FixtureRequest) -> None:
    # a mean log-ratio of 12 at A = -1: e^10 without gradient, against e^12 with gradient e^12
    batch = small(row(1, 1), current=row(-1, -1), old=row(-13, -13), advantage=row(-1, -1))
    other: Peer = request.getfixturevalue(peer)
    if peer == "skyrl":
        (loss, gradient), _ = test_skyrl.theirs(other, batch, "gspo_policy_loss")
    else:
        (loss, gradient), _ = test_verl.theirs(other, batch, "gspo", "seq-mean-token-sum")
    mine = ours(batch, "policy_loss.geometric_clipped_token", None)
    assert loss.item() == pytest.approx(2 * exp(10))
    assert gradient.tolist() == [[0.0, 0.0]]
    assert mine[0].item() == pytest.approx(2 * exp(12))
    assert mine[1].flatten().tolist() == pytest.approx([exp(12), exp(12)])


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_hold_k3_at_10(peer: str, request: pytest.FixtureRequest) -> None:
    # d = ref - current = 3: e^3 - 4 = 16.1 is held at 10 without gradient; ours has the gradient 1 - e^3
    other: Peer = request.getfixturevalue(peer)
    current, ref = row(-4.0), row(-1.0)
    if peer == "skyrl":
        value, gradient = other.call(
            f"{LOSSES}:compute_approx_kl",
            gradient=("log_probs",),
            log_probs=current,
            log_probs_base=ref,
            loss_mask=row(1),
        )
    else:
        value, gradient = other.call(
            f"{ALGOS}:kl_penalty", gradient=("logprob",), logprob=current, ref_logprob=ref, kl_penalty="k3"
        )
    leaf = current[0].clone().requires_grad_()
    mine = kl.k3(leaf, ref[0])
    mine.sum().backward()
    assert leaf.grad is not None
    assert (value.item(), next(iter(gradient.values())).item()) == (10.0, 0.0)
    assert mine.item() == pytest.approx(e**3 - 4, abs=1e-12)
    assert leaf.grad.item() == pytest.approx(1 - e**3, abs=1e-12)


def test_verl_bounds_tokens_before_it_sums_them(verl: Peer) -> None:
    # log-ratios +30 and -29 are a product of e^1. Held at ±20 token by token they would be e^0, inside (1/2, 2).
    logratio = row(30.0, -29.0)
    mask, _ = verl.call(
        f"{ROLLOUT}:compute_rollout_rejection_mask",
        log_ratio=logratio,
        response_mask=row(1, 1),
        rollout_rs="seq_sum_k1",
        rollout_rs_threshold=2.0,
    )
    keep, _ = correction.product_band(logratio[0], Flat.of(row(1, 1)).segments, band=(0.5, 2.0))
    assert mask.tolist() == [[1.0, 1.0]]
    assert keep.tolist() == [False, False]


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_bound_no_ratio_in_the_covariance_losses(peer: str, request: pytest.FixtureRequest) -> None:
    # a log-ratio of 100 at A = -1 in float32: infinite, against e^20
    single = {"dtype": torch.float32}
    batch = small(
        row(1, 1, **single), current=row(-1, -1, **single), old=row(-101, -1, **single), advantage=row(-1, 1, **single)
    )
    other: Peer = request.getfixturevalue(peer)
    if peer == "skyrl":
        (loss, _), _ = test_skyrl.theirs(other, batch, "compute_policy_loss_clip_cov")
    else:
        (loss, _), _ = test_verl.theirs(other, batch, "clip_cov", "token-mean")
    assert loss.item() == inf
    nothing = torch.zeros(2, dtype=torch.bool)
    mine, gradient = ours(batch, "policy_loss.covariance_clipped", None, selected=nothing)
    assert mine.item() == pytest.approx(exp(20), rel=1e-6)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_let_nan_in_padding_through(peer: str, request: pytest.FixtureRequest) -> None:
    # an engine that reports nan for a padded cell: nan * 0 is nan
    other: Peer = request.getfixturevalue(peer)
    batch = small(row(1, 0), current=row(-1, nan), old=row(-1, nan), rollout=row(-1, -1), advantage=row(1, 1))
    if peer == "skyrl":
        (loss, _), _ = test_skyrl.theirs(other, batch, "ppo_policy_loss")
    else:
        (loss, _), _ = test_verl.theirs(other, batch, "vanilla", "seq-mean-token-sum")
    assert loss.isnan()
    mine, gradient = ours(batch, "policy_loss.clipped", "weighting.sequence_mean_token_sum")
    assert mine.item() == -1.0
    assert gradient.tolist() == [[-1.0, 0.0]]


# -------------------------------------------------------------------------------------------------------- advantages

LONE = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("peer", "function", "expected"),
    [
        ("skyrl", "compute_grpo_outcome_advantage", 5 / (1 + 1e-6)),
        ("verl", "compute_grpo_outcome_advantage", 5 / (1 + 1e-6)),
        ("skyrl", "compute_rloo_outcome_advantage", 0.0),
        ("verl", "compute_rloo_outcome_advantage", 5.0),
        ("verl", "compute_rloo_vectorized_outcome_advantage", 0.0),
    ],
)
def test_peers_give_a_lone_answer_an_advantage(
    peer: str, function: str, expected: float, request: pytest.FixtureRequest
) -> None:
    # rewards 1, 2 of one prompt and a lone 5 of another: the raw reward, or 0; we refuse
    other: Peer = request.getfixturevalue(peer)
    rewards = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64)
    module = LOSSES if peer == "skyrl" else ALGOS
    credit, _ = other.call(
        f"{module}:{function}", token_level_rewards=rewards, response_mask=torch.ones_like(rewards), index=LONE.numpy()
    )
    assert credit[2].item() == pytest.approx(expected, abs=1e-6)
    ours_of = normalize.mean_std if "grpo" in function else normalize.leave_one_out
    with pytest.raises(SignalError, match=r"episodes \[2\] are alone"):
        ours_of(rewards[:, 0], alone(3), LONE, 2)


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_leave_dust_in_a_constant_group(peer: str, request: pytest.FixtureRequest) -> None:
    # seven answers of reward 0.7 in float32: the mean is one rounding off and 1e-6 under it makes a gradient of that
    other: Peer = request.getfixturevalue(peer)
    rewards = torch.full((7, 1), 0.7)
    credit, _ = other.call(
        f"{LOSSES if peer == 'skyrl' else ALGOS}:compute_grpo_outcome_advantage",
        token_level_rewards=rewards,
        response_mask=torch.ones_like(rewards),
        index=torch.zeros(7, dtype=torch.long).numpy(),
    )
    assert credit.abs().max().item() > 0.03
    mine, _ = normalize.mean_std(rewards[:, 0], alone(7), torch.zeros(7, dtype=torch.long), 1)
    assert mine.tolist() == [0.0] * 7


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_cannot_whiten_one_token(peer: str, request: pytest.FixtureRequest) -> None:
    other: Peer = request.getfixturevalue(peer)
    module = "verl.utils.torch_functional" if peer == "verl" else LOSSES
    with pytest.raises(PeerError, match="The sum of the mask is one"):
        other.call(f"{module}:masked_whiten", values=row(3.0), mask=row(1.0))
    assert normalize.whiten(row(3.0)[0], alone(1)).tolist() == [0.0]


def test_skyrl_gae_reads_the_value_of_padding(skyrl: Peer) -> None:
    # one token of value 1 and reward 2, then padding that the critic values at 10: the return is 2 + 10 - 1 + 1
    _, returns = skyrl.call(
        f"{LOSSES}:compute_gae_advantage_return",
        token_level_rewards=torch.tensor([[2.0, 0.0], [0.0, 0.0]]),
        values=torch.tensor([[1.0, 10.0], [0.0, 0.0]]),
        response_mask=torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        gamma=1.0,
        lambd=1.0,
    )
    # lambda 1 telescopes the value away again; with lambda 0 it stays: 2 + 10
    _, one_step = skyrl.call(
        f"{LOSSES}:compute_gae_advantage_return",
        token_level_rewards=torch.tensor([[2.0, 0.0], [0.0, 0.0]]),
        values=torch.tensor([[1.0, 10.0], [0.0, 0.0]]),
        response_mask=torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        gamma=1.0,
        lambd=0.0,
    )
    assert (returns[0, 0].item(), one_step[0, 0].item()) == (2.0, 12.0)
    segments = Flat.of(row(1)).segments
    for lam in (0.0, 1.0):
        _, mine = advantage.gae(row(2.0)[0], row(1.0)[0], row(0.0)[0], alone(1), segments, gamma=1.0, lam=lam)
        assert mine.tolist() == [2.0]


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_peers_end_every_sequence_at_value_zero(peer: str, request: pytest.FixtureRequest) -> None:
    # a sequence cut off in a state worth 4, reward 0, value 1: its return is 0 for them, 4 for us
    other: Peer = request.getfixturevalue(peer)
    lam = {"lambd": 1.0} if peer == "skyrl" else {"lam": 1.0}
    mask = torch.ones(2, 1, dtype=torch.float64)
    _, returns = other.call(
        f"{LOSSES if peer == 'skyrl' else ALGOS}:compute_gae_advantage_return",
        token_level_rewards=mask * 0,
        values=mask,
        response_mask=mask,
        gamma=1.0,
        **lam,
    )
    _, mine = advantage.gae(row(0)[0], row(1)[0], row(4)[0], ~alone(1), Flat.of(row(1)).segments, gamma=1.0, lam=1.0)
    assert returns[0].item() == 0.0
    assert mine.tolist() == [4.0]


def test_skyrl_reinforce_plus_plus_stops_at_a_hole(skyrl: Peer) -> None:
    # action, tool output, action with reward 1: the first action is credited with 0, by us with 1
    mask, rewards = row(1, 0, 1), row(0, 0, 1)
    _, returns = skyrl.call(
        f"{LOSSES}:compute_reinforce_plus_plus_outcome_advantage",
        token_level_rewards=rewards,
        response_mask=mask,
        gamma=1.0,
    )
    flat = Flat.of(mask)
    _, mine = advantage.reward_to_go(flat(rewards), flat.segments, gamma=1.0)
    assert returns[0, [0, 2]].tolist() == [0.0, 1.0]
    assert mine.tolist() == [1.0, 1.0]


def test_verl_loses_a_reward_on_a_hole(verl: Peer) -> None:
    # the reward sits on the tool output after the first action: they drop it, we move it to that action
    mask, rewards = row(1, 0, 1), row(0, 1, 0)
    _, returns = verl.call(
        f"{ALGOS}:compute_reinforce_plus_plus_outcome_advantage",
        token_level_rewards=rewards,
        response_mask=mask,
        config=Peer.new("verl.trainer.config:AlgoConfig", gamma=1.0),
    )
    batch = trimtab.SignalBatch.from_padded(
        mask, attention=torch.ones_like(mask), reward=row(0.0)[0], group=torch.tensor([0]), token_reward=rewards
    )
    assert batch.token_reward is not None
    _, mine = advantage.reward_to_go(batch.token_reward, batch.segments, gamma=1.0)
    assert returns[0, [0, 2]].tolist() == [0.0, 0.0]
    assert mine.tolist() == [1.0, 0.0]


# ------------------------------------------------------------------------------------------------------------- losses


def test_verl_has_no_ppo_clip_without_the_dual_clip(verl: Peer) -> None:
    # ratio 5 at A = -1: held at 3 |A| without gradient, against 5 with gradient 5
    batch = small(row(1), current=row(-1.0), old=row(-1.0 - log(5)), advantage=row(-1))
    (loss, gradient), _ = test_verl.theirs(verl, batch, "vanilla", "token-mean")
    mine = ours(batch, "policy_loss.clipped", "weighting.token_mean")
    assert (loss.item(), gradient.item()) == (3.0, 0.0)
    assert (mine[0].item(), mine[1].item()) == pytest.approx((5.0, 5.0), abs=1e-12)


def test_default_bands_of_the_bounded_importance(skyrl: Peer, verl: Peer) -> None:
    # the weight of a token at ratio 1/2 and of one at ratio 8, by default: SkyRL's offsets 0 and 5 are the band (1, 6),
    # verl's 0.2 and 0.2 the band (0.8, 1.2); ours is (0, 5)
    batch = small(row(1, 1), current=row(-4, -4), old=row(-4 + log(2), -4 - log(8)), advantage=row(1, 1))
    (_, of_skyrl), _ = test_skyrl.theirs(skyrl, batch, "compute_policy_loss_cispo")
    (_, of_verl), _ = test_verl.theirs(verl, batch, "cispo", "seq-mean-token-sum")
    band = trimtab.recipe("cispo").loss.part.settings["band"]
    _, mine = ours(batch, "policy_loss.clipped_importance", None, band=band)
    assert (-of_skyrl).flatten().tolist() == pytest.approx([1.0, 6.0], abs=1e-6)
    assert (-of_verl).flatten().tolist() == pytest.approx([0.8, 1.2], abs=1e-12)
    assert (-mine).flatten().tolist() == pytest.approx([0.5, 5.0], abs=1e-12)


COV = small(
    torch.ones(1, 4, dtype=torch.float64),
    current=row(-1, -2, -3, -2),
    old=row(-1, -2, -3, -2),
    advantage=row(3, 0, -3, 0),
)


def test_skyrl_covariance_is_that_of_advantages_already_divided(skyrl: Peer) -> None:
    # cov = 3, 0, 3, 0 lies in (1, 5). SkyRL has divided the advantages by 4 tokens before: 0.75, and nothing is drawn.
    selected = policy_loss.covariance_in_band(
        COV.current[0], COV.old[0], COV.advantage[0], alone(4), torch.arange(4), fraction=1.0
    )
    assert selected.tolist() == [True, False, True, False]
    clip_all = Peer.new(f"{CONFIG}:ClipCovConfig", clip_ratio=1.0)
    _, metrics = test_skyrl.theirs(
        skyrl, COV, "compute_policy_loss_clip_cov", reduction="token_mean", clip_cov=clip_all
    )
    assert metrics["clip_ratio"] == 0.0
    _, undivided = test_skyrl.theirs(skyrl, COV, "compute_policy_loss_clip_cov", clip_cov=clip_all)
    assert undivided["clip_ratio"] == 0.5


def test_skyrl_covariance_penalty_is_not_averaged(skyrl: Peer) -> None:
    # two of four tokens drawn, each a log-ratio of -1/2 away, coefficient 1. The sum of their penalties is 1;
    # under a token mean it is 1/4. SkyRL divides the advantages only.
    batch = replace(COV, old=COV.current + 0.5)
    largest = Peer.new(f"{CONFIG}:KLCovConfig", kl_cov_frac=0.5, ppo_kl_coef=1.0)
    none = Peer.new(f"{CONFIG}:KLCovConfig", kl_cov_frac=0.5, ppo_kl_coef=0.0)
    with_penalty, without = (
        test_skyrl.theirs(skyrl, batch, "compute_policy_loss_kl_cov", reduction="token_mean", kl_cov=chosen)[0][
            0
        ].item()
        for chosen in (largest, none)
    )
    selected = policy_loss.covariance_largest(
        batch.current[0], batch.advantage[0], alone(4), torch.arange(4), fraction=0.5
    )
    mine = [
        ours(batch, "policy_loss.covariance_penalised", "weighting.token_mean", selected=selected, coef=coef)[0].item()
        for coef in (1.0, 0.0)
    ]
    assert with_penalty - without == pytest.approx(1.0, abs=1e-12)
    assert mine[0] - mine[1] == pytest.approx(0.25, abs=1e-12)
