"""Where the formulas that came later differ on purpose: both numbers, side by side. docs/peers.md says why."""

from math import e, exp, log

import numpy as np
import pytest
import torch
from tests.peers import test_newer_others, test_verl
from tests.peers.padded import Flat, ours
from tests.peers.peer import Peer
from tests.peers.test_differences import alone, row, small
from tests.peers.test_newer_others import AREAL, AREAL_ACTOR, in_trl
from tests.peers.test_skyrl import LOSSES
from tests.peers.test_verl import ALGOS, ROLLOUT
from torch import Tensor

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import kl, part
from trimtab.signal.layout import Segments

ONE = torch.tensor([0, 0])


def grouped(reward: Tensor, formula: str, **settings: str) -> list[float]:
    """A normalisation of ours over one group."""
    owner = torch.zeros(len(reward), dtype=torch.long)
    available = {"reward": reward, "votes": alone(len(reward)), "group_of_episode": owner, "num_groups": 1}
    return part(formula, **settings)(available)[0].tolist()


# ---------------------------------------------------------------------------------------------------------------- verl


def test_verl_dppo_counts_a_token_without_an_advantage_as_rejected(verl: Peer) -> None:
    # advantage 0 and a probability that fell from 0.5 to 0.1: they apply the rule of negative advantages
    batch = small(row(1), current=row(log(0.1)), old=row(log(0.5)))
    _, metrics = test_verl.theirs(verl, batch, "dppo_tv", "token-mean", clip_ratio_low=0.2, clip_ratio_high=0.2)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1.0, abs=1e-7)
    keep, _ = part("keep.probability_band")(
        {"logp_later": batch.current[0], "logp_earlier": batch.old[0], "advantage": batch.advantage[0]}
    )
    assert keep.tolist() == [True]


def test_verl_gmpo_counts_a_row_without_tokens(verl: Peer) -> None:
    # one row of advantage 1 at ratio 1, and one empty row: -1/2 there, -1 here
    mask = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    batch = small(mask, advantage=mask)
    (loss, _), _ = test_verl.theirs(verl, batch, "geo_mean", "token-mean")
    mine, _ = ours(batch, "policy_loss.geometric_of_clipped", "weighting.sequence_mean_token_mean")
    assert loss.item() == pytest.approx(-0.5, abs=1e-7)
    assert mine.item() == -1.0


def test_verl_gdpo_whitens_over_tokens(verl: Peer) -> None:
    # rewards 1 and 0, answers of 3 tokens and 1: over tokens, three numbers a and one -a; over episodes, one of each
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    credit, _ = verl.call(
        f"{ALGOS}:compute_gdpo_outcome_advantage", token_level_rewards=rewards, response_mask=mask,
        index=np.array([0, 0]),
    )  # fmt: skip
    assert credit[:, 0].tolist() == pytest.approx([0.5, -1.5], abs=1e-6)
    mine, _ = part("normalize.each_key", weights=(1.0,))(
        {"rewards": torch.tensor([[1.0], [0.0]], dtype=torch.float64), "rewards_scored": alone(2)[:, None],
         "votes": alone(2), "group_of_episode": ONE, "num_groups": 1}
    )  # fmt: skip
    assert mine.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-6)


def test_verl_optimal_token_baseline_compares_columns(verl: Peer) -> None:
    # the second answer's only action stands in column 1, after a hole: its column is compared, here its step
    mask = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    old = torch.full_like(mask, log(0.5))
    credit, _ = verl.call(
        f"{ALGOS}:compute_optimal_token_baseline_advantage", token_level_rewards=rewards, response_mask=mask,
        index=np.array([0, 0]), old_log_probs=old, sum_pi_squared=mask,
    )  # fmt: skip
    # W = 1 and 2 in the first row, 1 in the second. b = 1 in column 0; in column 1, b = 2/3, but 0 for the longest.
    assert credit.flatten().tolist() == pytest.approx([0.0, 1.0, 0.0, -2 / 3], abs=1e-7)
    flat = Flat.of(mask)
    mine, _ = part("advantage.optimal_token_baseline")(
        {"token_reward": flat(rewards), "logp_old": flat(old), "pi_squared": flat(mask), "votes": alone(2),
         "episode_of_sequence": torch.arange(2), "group_of_episode": ONE, "num_groups": 1, "segments": flat.segments}
    )  # fmt: skip
    assert mine.tolist() == pytest.approx([0.5, 1.0, -0.5], abs=1e-7)


def test_verl_gpg_takes_a_group_of_right_answers_for_signal(verl: Peer) -> None:
    # rewards 1, 1 | 1, 0: three are not 0, so their factor is 4/3; one group of two differs, so ours is 2
    reward = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    group, mask = torch.tensor([0, 0, 1, 1]), torch.ones(4, 1, dtype=torch.float64)
    credit, _ = verl.call(
        f"{ALGOS}:compute_gpg_outcome_advantage", token_level_rewards=reward[:, None], response_mask=mask,
        index=group.numpy(),
    )  # fmt: skip
    assert credit[2:, 0].tolist() == pytest.approx([2 / 3, -2 / 3], abs=1e-6)
    mine, _ = part("normalize.rescaled_mean")(
        {"reward": reward, "votes": alone(4), "group_of_episode": group, "num_groups": 2}
    )
    assert mine.tolist() == [0.0, 0.0, 1.0, -1.0]


def test_verl_normalises_importance_over_what_is_passed(verl: Peer) -> None:
    # ratios 1 and 2: apart, each is its own mean; together, 2/3 and 4/3
    apart = [
        verl.call(
            f"{ROLLOUT}:compute_rollout_correction_weights", log_ratio=row(log(ratio)), response_mask=row(1),
            rollout_is_batch_normalize=True,
        )[0].item()
        for ratio in (1.0, 2.0)
    ]  # fmt: skip
    assert apart == pytest.approx([1.0, 1.0], abs=1e-7)
    segments = Segments.from_counts(torch.tensor([1, 1]), 2)
    mine, _ = part("importance.self_normalised")(
        {"logratio": row(0.0, log(2.0))[0], "segments": segments, "trains": alone(2)}
    )
    assert mine.tolist() == pytest.approx([2 / 3, 4 / 3], abs=1e-12)


# --------------------------------------------------------------------------------------------------------------- SkyRL


def test_skyrl_maxrl_prefers_the_worse_answer_below_zero(skyrl: Peer) -> None:
    # rewards -1 and -3 have the mean -2, so the better answer gets 1 / -2
    reward = torch.tensor([-1.0, -3.0], dtype=torch.float64)
    credit, _ = skyrl.call(
        f"{LOSSES}:compute_maxrl_advantage", token_level_rewards=reward[:, None], response_mask=reward[:, None] ** 0,
        index=np.array([0, 0]),
    )  # fmt: skip
    assert credit.flatten().tolist() == pytest.approx([-0.5, 0.5], abs=1e-6)
    with pytest.raises(SignalError, match="worse answers would be preferred"):
        grouped(reward, "normalize.over_mean")


def test_skyrl_counts_a_prompt_without_tokens(skyrl: Peer) -> None:
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    scaled = skyrl.call(
        f"{LOSSES}:apply_loss_reduction_to_advantages_minibatch", advantages=torch.ones_like(mask), loss_mask=mask,
        loss_reduction="prompt_mean", micro_batch_size=2, max_seq_len=8, prompt_boundaries=[[0, 1], [1, 2]],
    )  # fmt: skip
    assert scaled[0].tolist() == [0.25, 0.25]
    weight = part("weighting.prompt_mean")(
        {"advantage": torch.ones(2), "keep": alone(2), "group_of_token": torch.tensor([0, 0])}
    )
    assert weight.tolist() == [0.5, 0.5]


# ------------------------------------------------------------------------------------------------------------ OpenRLHF


def test_openrlhf_holds_probabilities_away_from_0_and_1(others: Peer) -> None:
    # from 1 - 1e-7 to 0.999: they see 1 - 1e-6, and a smaller KL
    batch = small(row(1), rollout=row(log(1 - 1e-7)), old=row(log(0.999)), current=row(log(0.999)), advantage=row(1))
    true = (1 - 1e-7) * log((1 - 1e-7) / 0.999) + 1e-7 * log((1e-7 + 1e-8) / (0.001 + 1e-8))
    held = (1 - 1e-6) * log((1 - 1e-6) / 0.999) + 1e-6 * log(1e-6 / 0.001)
    between = (true + held) / 2
    assert held < between < true
    (loss, _), _ = test_newer_others.in_openrlhf(others, batch, "token", "binary_kl", between)
    assert loss.item() != 0.0
    keep, _ = part("keep.binary_kl", limit=between, by_sign=False)(
        {"logp_later": batch.old[0], "logp_earlier": batch.rollout[0], "advantage": row(1)[0],
         "segments": Segments.from_counts(torch.tensor([1]), 1)}
    )  # fmt: skip
    assert keep.tolist() == [False]


def test_openrlhf_counts_a_row_without_tokens_as_filtered(others: Peer) -> None:
    # one row that survives, and one empty row whose mean is 0 / 0: they report 1/2, we count rows with tokens
    mask = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    batch = small(mask, old=mask * log(0.5), rollout=mask * log(0.5), current=mask * log(0.5))
    _, filtered = test_newer_others.in_openrlhf(others, batch, "seq", "tv", 0.2)
    assert filtered.item() == 0.5
    _, seen = part("keep.total_variation", limit=0.2)(
        {"logp_later": batch.old[0], "logp_earlier": batch.rollout[0],
         "segments": Segments.from_counts(torch.tensor([1, 0]), 1)}
    )  # fmt: skip
    assert seen["over_high_sequences"].tolist() == [False, False]


def test_openrlhf_holds_every_kl_estimate_at_10(others: Peer) -> None:
    # a log-ratio of 8 has k2 = 32
    given = {"log_probs": row(-1.0), "log_probs_base": row(-9.0), "kl_estimator": "k2", "unbiased_gradient": True}
    estimate, gradient = others.call("openrlhf.models.utils:compute_approx_kl", gradient=("log_probs",), **given)
    assert (estimate.item(), gradient["log_probs"].item()) == (10.0, 8.0)
    assert kl.k2_gradient(row(-1.0)[0], row(-9.0)[0], value="k2").item() == 32.0


# --------------------------------------------------------------------------------------------------------------- AReaL


def test_areal_m2po_depends_on_the_micro_batch(others: Peer) -> None:
    # squared log-ratios 4 and 1 in one row, 0 and 0 in the other; the limit is 1.5 and the mean of all 1.25
    old = torch.tensor([[2.0, 1.0], [0.0, 0.0]], dtype=torch.float64)

    def theirs(rows: Tensor) -> list[list[bool]]:
        return others.call(
            f"{AREAL_ACTOR}:_apply_m2po_masking", old_logp=rows * 0, prox_logp=rows,
            loss_mask=torch.ones_like(rows, dtype=torch.bool), m2_threshold=1.5,
        ).tolist()  # fmt: skip

    assert theirs(old) == [[True, True], [True, True]]
    assert theirs(old[:1]) + theirs(old[1:]) == [[False, True], [True, True]]
    keep, _ = part("keep.second_moment", limit=1.5)({"logratio": old.flatten(), "token_key": torch.arange(4)})
    assert keep.all()


def test_areal_m2po_rejects_at_its_limit(others: Peer) -> None:
    # a mean of exactly 1 at the limit 1: they want it below, we at most
    mask = others.call(
        f"{AREAL_ACTOR}:_apply_m2po_masking", old_logp=row(0, 0), prox_logp=row(1, 1),
        loss_mask=torch.ones(1, 2, dtype=torch.bool), m2_threshold=1.0,
    )  # fmt: skip
    keep, _ = part("keep.second_moment", limit=1.0)({"logratio": row(1, 1)[0], "token_key": torch.arange(2)})
    assert (mask.tolist(), keep.tolist()) == ([[False, True]], [True, True])


def test_areal_k3_is_that_of_the_inverse_ratio(others: Peer) -> None:
    # old/rollout = e: e - 2 here, 1 / e there, the estimate for samples of the old policy
    mask = others.call(
        "methods:areal_rejection",
        proximal=row(0),
        behaviour=row(-1),
        mask=row(1),
        metric="kl_k3",
        agg="mean",
        upper=0.5,
    )
    keep, _ = part("keep.divergence", limit=0.5, measure="k3")(
        {"logratio": row(1)[0], "segments": Segments.from_counts(torch.tensor([1]), 1)}
    )
    assert 1 / e < 0.5 < e - 2
    assert (mask.tolist(), keep.tolist()) == ([[1.0]], [False])


def test_areal_takes_the_mean_of_advantages_that_vary(others: Peer) -> None:
    # advantages 1 and 3 at ratio 1: each token's loss is -(4 / 1) * sigmoid(0) * 2
    loss, _ = others.call(
        f"{AREAL}:sapo_loss_fn", logprobs=row(-1, -1), old_logprobs=row(-1, -1), advantages=row(1, 3), tau_pos=1.0,
        tau_neg=1.0, loss_mask=torch.ones(1, 2, dtype=torch.bool), importance_sampling_level="sequence",
    )  # fmt: skip
    assert loss.item() == -4.0
    recipe = trimtab.Recipe(
        name="sapo", loss=trimtab.Stage(part("policy_loss.geometric_soft_gated"), anchor="old"),
        normalize=part("normalize.raw"), weighting=part("weighting.token_mean"),
    )  # fmt: skip
    with pytest.raises(SignalError, match="varies"):
        trimtab.loss(
            row(-1, -1), recipe=recipe.with_given_advantage, mask=row(1, 1), advantage=row(1, 3), logp_old=row(-1, -1)
        )


# ----------------------------------------------------------------------------------------------------------------- TRL


def test_trl_vespo_bounds_tokens_before_it_sums_them(others: Peer) -> None:
    # log-ratios 25 and -25 make a product of 1; held at 20 they still do, 25 and -22 make e^3 there 1
    batch = small(row(1, 1), current=row(0, -22), old=row(-25, 0), advantage=row(1, 1))
    loss, _ = in_trl(others, batch, loss_type="vespo")
    product = exp(3)
    mine, _ = ours(batch, "policy_loss.gamma_weighted", "weighting.token_mean")
    assert loss.item() == pytest.approx(11.0, abs=1e-12)
    assert mine.item() == pytest.approx(11.0 * product**2 * exp(3 * (1 - product)), abs=1e-30)


def test_trl_vespo_gives_a_sequence_up_for_one_rejected_token(others: Peer) -> None:
    # two tokens at ratio 1, the second with importance 0
    arguments = {"advantages": row(1), "log_ratio_per_token": row(0, 0), "mask": row(1, 1)}
    weight = others.call("methods:trl_mask", name="get_gamma_weights", importance_sampling_ratio=row(1, 0), **arguments)
    assert weight.item() < 1e-14
    batch = small(row(1, 1), current=row(-1, -1), old=row(-1, -1), advantage=row(1, 1))
    mine, _ = ours(batch, "policy_loss.gamma_weighted", "weighting.token_mean", keep=torch.tensor([True, False]))
    assert mine.item() == 0.5


def test_trl_gmpo_counts_a_row_without_tokens(others: Peer) -> None:
    # its ratio is 1, so its advantage enters the loss and the mean, and moves nothing
    mask = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    batch = small(mask, advantage=torch.tensor([[1.0], [5.0]], dtype=torch.float64))
    loss, gradient = in_trl(others, batch, gmpo=True)
    mine, slope = ours(batch, "policy_loss.geometric_of_clipped", "weighting.sequence_mean_token_mean")
    assert (loss.item(), gradient.flatten().tolist()) == (-3.0, [-0.5, 0.0])
    assert (mine.item(), slope.flatten().tolist()) == (-1.0, [-1.0, 0.0])


def test_trl_entropy_quantile_keeps_one_token_more(others: Peer) -> None:
    # a fifth of nine tokens: the quantile lies between the second and the third largest entropy
    entropy = torch.arange(9, dtype=torch.float64)[None]
    mask = others.call(
        "methods:trl_mask", name="get_high_entropy_mask", entropies=entropy, mask=entropy**0, threshold=0.8
    )
    keep, _ = part("keep.high_entropy", fraction=0.2)({"entropy": entropy[0]})
    assert (int(mask.sum()), int(keep.sum())) == (2, 1)
