"""Who is compared with whom, by hand: constant groups, lone voters, and a KL that is counted once."""

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, log, tokens

from trimtab.signal import KL, SignalBatch, part, prepare, recipe
from trimtab.signal.fields import Field
from trimtab.signal.normalize import leave_one_out, mean_std, whiten
from trimtab.signal.vote import constant_groups, ended_episodes, groups_outside, votes_and_trains


def batch_of(reward: list[float], group: list[int], width: int = 1, **fields: object) -> SignalBatch:
    return SignalBatch.from_padded(torch.ones(len(reward), width), reward=reward, group=group, **fields)


@pytest.mark.parametrize("shift", [-10.0, -1.0, 0.0, 5.0])
def test_a_group_is_constant_by_the_difference_of_its_rewards_and_not_by_their_size(shift: float) -> None:
    # group 0: equal; group 1: two different; group 2: equal for the voters only; group 3: nobody votes; 4: one voter
    reward = [shift + r for r in (0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 7.0, 3.0, 3.0, 4.0, 9.0)]
    batch = batch_of(reward, [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4])
    votes = flags(1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0)
    assert_is(constant_groups(batch, votes), 1, 0, 1, 0, 1)


def test_a_group_without_voters_is_no_constant_group_in_the_metrics() -> None:
    # groups: constant, telling, nobody scored; of the two that voted one is constant
    batch = batch_of([-1.0, -1.0, -1.0, -2.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2], scored=[1, 1, 1, 1, 0, 0])
    prepared, _ = prepare(batch, recipe("start_on_policy", filter_constant_groups=True))
    numbers = prepared.metrics.numbers()
    assert numbers["constant_groups/group_fraction"] == 0.5
    assert numbers["groups_without_signal/group_fraction"] == pytest.approx(1 / 3)
    assert_is(prepared.trains, 0, 0, 1, 1, 0, 0)


def test_a_group_with_one_voter_counts_among_the_constant_ones_in_the_metrics() -> None:
    batch = batch_of([-1.0, -2.0, -1.0, 0.0], [0, 0, 1, 1], scored=[1, 1, 1, 0])
    numbers = prepare(batch, recipe("start_on_policy"))[0].metrics.numbers()
    assert numbers["constant_groups/group_fraction"] == 0.5


def test_fewer_than_two_voters_are_not_whitened() -> None:
    values = tokens(4.0, 7.0, -3.0)
    assert_is(whiten(values, flags(0, 0, 0)), 0, 0, 0)
    assert_is(whiten(values, flags(0, 1, 0)), 0, 0, 0)
    # two voters 4 and 7: mean 5.5, variance 2 * 1.5^2 / 1 = 4.5; the third is held at the lower one
    assert_near(whiten(values, flags(1, 1, 0), eps=0.0), *(s * 1.5 / 4.5**0.5 for s in (-1, 1, -1)))


def test_one_voter_gives_no_signal_under_any_comparison() -> None:
    reward, group = tokens(4.0, 7.0, 1.0), torch.zeros(3, dtype=torch.long)
    for formula in (mean_std, leave_one_out):
        result, has_signal = formula(reward, flags(0, 1, 0), group, 1)
        assert_is(result, 0, 0, 0)
        assert_is(has_signal, 0, 0, 0)


OLD, REF = log(0.5, 0.25, 0.5, 0.5).reshape(2, 2), log(0.25, 0.25, 0.5, 0.25).reshape(2, 2)
LOG2 = float(log(2.0))


def test_a_kl_in_the_sequence_reward_is_subtracted_once() -> None:
    # k1 of row 0 is log 2 + 0, of row 1 it is 0 + log 2; reward 3 and 1, coef 0.5, no baseline
    batch = batch_of([3.0, 1.0], [0, 0], 2, logp_old=OLD, logp_ref=REF)
    chosen = recipe("reinforce", kl=KL(part("kl.k1"), 0.5, "sequence_reward"), old="recompute")
    prepared, _ = prepare(batch, chosen)
    assert_near(prepared.advantage, *(3 - LOG2 / 2,) * 2, *(1 - LOG2 / 2,) * 2)
    assert prepared.metrics.numbers()["kl_ref/token_mean"] == pytest.approx(LOG2 / 2)


def test_a_kl_in_the_token_reward_is_subtracted_once_and_where_it_arose() -> None:
    # reward to go: token 0 of row 0 carries its own KL and the reward, token 1 the reward; row 1 both KL later
    batch = batch_of([3.0, 1.0], [0, 0], 2, logp_old=OLD, logp_ref=REF)
    chosen = recipe("reinforce_plus_plus", kl=KL(part("kl.k1"), 0.5, "token_reward"), whiten=False)
    prepared, _ = prepare(batch, chosen)
    assert_near(prepared.advantage, 3 - LOG2 / 2, 3, 1 - LOG2 / 2, 1 - LOG2 / 2)


def test_a_kl_in_the_loss_leaves_the_advantage_alone() -> None:
    batch = batch_of([3.0, 1.0], [0, 0], 2, logp_old=OLD, logp_ref=REF)
    prepared, _ = prepare(batch, recipe("reinforce", kl=KL(part("kl.k1"), 0.5, "loss")))
    assert_near(prepared.advantage, 3, 3, 1, 1)
    assert prepared.kl is None


def test_a_kl_in_the_sequence_reward_is_not_counted_again_on_its_way_to_the_tokens() -> None:
    # reward to go with nothing but the sequence's reward: every token gets all of it, the KL in it once
    batch = batch_of([3.0, 1.0], [0, 0], 2, logp_old=OLD, logp_ref=REF)
    chosen = recipe("reinforce_plus_plus", kl=KL(part("kl.k1"), 0.5, "sequence_reward"), whiten=False)
    assert_near(prepare(batch, chosen)[0].advantage, *(3 - LOG2 / 2,) * 2, *(1 - LOG2 / 2,) * 2)


def cut_off() -> SignalBatch:
    """Three episodes in one group: of two sequences whose first was cut off, of two that ended, of one that was cut."""
    return SignalBatch.from_tokens(
        [1, 1, 1, 1, 1], reward=[1.0, 0.0, 2.0], group=[0, 0, 0], episode=[0, 0, 1, 1, 2], ended=[0, 1, 1, 1, 0]
    )


def test_an_episode_ended_if_none_of_its_sequences_was_cut_off() -> None:
    ended = ended_episodes(cut_off())
    assert ended is not None
    assert_is(ended, 0, 1, 0)


def test_an_episode_votes_if_one_of_its_sequences_is_left_and_all_of_them_ended() -> None:
    batch = cut_off()
    left = Field(flags(1, 1, 0, 1, 0), batch.segments)
    for not_ended, votes, trains in (
        ("train", (1, 1, 0), (1, 1, 1, 1, 1)),
        ("zero", (0, 1, 0), (1, 1, 1, 1, 1)),
        ("suppress", (0, 1, 0), (0, 0, 1, 1, 0)),
    ):
        found, training = votes_and_trains(batch, recipe("reinforce", not_ended=not_ended), left)
        assert_is(found, *votes)
        assert_is(training, *trains)


def test_groups_are_judged_by_the_mean_of_their_voters_and_not_without_any() -> None:
    # groups: one voter of 0.5 beside a 9 that does not vote; nobody votes; one voter of 1; voters of 0 and 1
    batch = batch_of([0.5, 9.0, 0.5, 0.5, 1.0, 7.0, 0.0, 1.0], [0, 0, 1, 1, 2, 2, 3, 3])
    votes = flags(1, 0, 0, 0, 1, 0, 1, 1)
    assert_is(groups_outside(batch, votes, (0.0, 1.0)), 0, 0, 1, 0)
    assert_is(groups_outside(batch, votes, (0.5, 1.5)), 1, 0, 0, 1)
