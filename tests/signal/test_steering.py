"""What one batch tells the next, by hand."""

import json
from math import sqrt

import pytest
import torch

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, SignalState, prepare, recipe
from trimtab.signal.steering import next_moments, next_role_averages, role_averages, running


def batch(kl: float, reward: list[float] | None = None) -> SignalBatch:
    """Two answers of one token; k1 to the reference is `kl` at each."""
    old = torch.full((2,), -1.0, dtype=torch.float64)
    rewards = [0.0, 0.0] if reward is None else reward
    return SignalBatch.from_tokens([1, 1], reward=rewards, group=[0, 0], logp_old=old, logp_ref=old - kl)


def steered(**changes: object) -> object:
    return recipe("reinforce_plus_plus", whiten=False, kl={"coef": 0.5, "target": 0.1, "horizon": 20.0, **changes})


def test_the_coefficient_follows_the_kl_to_its_target() -> None:
    # two episodes of 20: a tenth of the error. KL 0.11: + 10 %, so 0.5 * 1.01; then 0.5, held at + 20 %: * 1.02;
    # then 0: held at - 20 %: * 0.98
    state, coefs = None, []
    for kl in (0.11, 0.5, 0.0):
        prepared, state = prepare(batch(kl), steered(), state)
        coefs.append(prepared.metrics.numbers()["kl_ref/coef"])
        assert prepared.advantage.tolist() == pytest.approx([-coefs[-1] * kl] * 2)
    assert coefs == pytest.approx([0.5, 0.5 * 1.01, 0.5 * 1.01 * 1.02])
    assert state.memory["kl_coef"] == pytest.approx(0.5 * 1.01 * 1.02 * 0.98)


def test_without_a_target_nothing_is_remembered() -> None:
    prepared, state = prepare(batch(0.5), recipe("reinforce_plus_plus"))
    assert state.memory == {}
    assert "kl_ref/coef" not in prepared.metrics


def test_the_state_survives_json() -> None:
    _, state = prepare(batch(0.3), steered())
    assert SignalState.from_data(json.loads(json.dumps(state.as_data()))) == state
    assert SignalState.from_data({"effects": {"a/alone": [0.5]}, "window": 3}) == SignalState({"a/alone": (0.5,)}, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"into": "loss"}, "steers the coefficient by the KL of each batch before it is trained on"),
        ({"target": 0.0}, "target = 0.0"),
        ({"horizon": -1.0}, "horizon = -1.0"),
        ({"coef": 0.0}, "coef = 0 stays 0"),
    ],
)
def test_a_target_that_cannot_be_reached_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SignalError, match=says):
        steered(**changes)


def test_running_moments_hold_every_voter_so_far() -> None:
    # 1, 3: mean 2, std sqrt(2); then 5, 7 too: mean 4, squares 9 + 1 + 1 + 9 = 20, std sqrt(20 / 3)
    chosen = recipe("reinforce", normalize={"formula": "running", "eps": 0.0})
    first, state = prepare(batch(0.0, [1.0, 3.0]), chosen)
    assert first.advantage.tolist() == pytest.approx([-1 / sqrt(2), 1 / sqrt(2)])
    second, state = prepare(batch(0.0, [5.0, 7.0]), chosen, state)
    assert second.advantage.tolist() == pytest.approx([1 / sqrt(20 / 3), 3 / sqrt(20 / 3)])
    assert state.memory == pytest.approx({"reward_count": 4.0, "reward_mean": 4.0, "reward_m2": 20.0})


def test_who_does_not_vote_is_not_remembered_and_a_batch_without_voters_changes_nothing() -> None:
    chosen = recipe("reinforce", normalize="running")
    one = SignalBatch.from_tokens([1, 1, 1], reward=[1.0, 3.0, 9.0], group=[0, 0, 0], scored=[True, True, False])
    _, state = prepare(one, chosen)
    assert state.memory == {"reward_count": 2.0, "reward_mean": 2.0, "reward_m2": 2.0}
    none = SignalBatch.from_tokens([1], reward=[9.0], group=[0], scored=[False])
    assert prepare(none, chosen, state)[1].memory == state.memory


def test_one_reward_has_no_spread_yet() -> None:
    one = SignalBatch.from_tokens([1], reward=[3.0], group=[0])
    prepared, state = prepare(one, recipe("reinforce", normalize="running"))
    assert prepared.advantage.tolist() == [0.0]
    assert state.memory == {"reward_count": 1.0, "reward_mean": 3.0, "reward_m2": 0.0}


def test_who_does_not_vote_is_not_divided_by_a_spread_that_is_not_there() -> None:
    # a reward that is not scored is 0
    one = SignalBatch.from_tokens([1, 1], reward=[3.0, 5.0], group=[0, 0], scored=[True, False])
    assert prepare(one, recipe("reinforce", normalize="running"))[0].advantage.tolist() == [0.0, -3.0]


def test_rewards_that_never_differed_are_not_divided() -> None:
    prepared, _ = prepare(batch(0.0, [0.1, 0.1]), recipe("reinforce", normalize="running"))
    assert prepared.advantage.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


BY_ROLE = {"formula": "minus_role_average", "decay": 0.5}


def played(reward: list[float], role: list[int], **fields: object) -> SignalBatch:
    """One episode of one token each."""
    return SignalBatch.from_tokens([1] * len(role), reward=reward, group=[0] * len(role), role=role, **fields)


def test_a_role_is_compared_with_what_it_earned_before_this_batch() -> None:
    # role 0: two voters of mean 2, so 2 * 3/4; role 1: one of 4, so 4 * 1/2. Then 1.5 / 2 + 1 / 2 and 2 / 2 + 1 / 2;
    # role 2 is new
    chosen = recipe("reinforce", normalize=BY_ROLE)
    first, state = prepare(played([1.0, 4.0, 3.0], [0, 1, 0]), chosen)
    assert first.advantage.tolist() == [1.0, 4.0, 3.0]
    assert state.memory == {"role_average_0": 1.5, "role_average_1": 2.0}
    second, state = prepare(played([1.0, 1.0, 5.0], [1, 0, 2]), chosen, state)
    assert second.advantage.tolist() == [-1.0, -0.5, 5.0]
    assert state.memory == {"role_average_0": 1.25, "role_average_1": 1.5, "role_average_2": 2.5}
    assert SignalState.from_data(json.loads(json.dumps(state.as_data()))) == state


def test_a_role_without_voters_keeps_its_average() -> None:
    chosen = recipe("reinforce", normalize=BY_ROLE)
    before = SignalState(memory={"role_average_0": 1.0, "role_average_7": 2.0, "kl_coef": 3.0})
    given = played([5.0, 9.0, 9.0], [0, 0, 7], scored=[True, False, False])
    assert prepare(given, chosen, before)[1].memory == {**before.memory, "role_average_0": 3.0}


def test_a_batch_moves_an_average_as_far_as_single_steps_would_whatever_its_order() -> None:
    chosen = recipe("reinforce", normalize="minus_role_average")
    alone = SignalState()
    for _ in range(3):
        _, alone = prepare(played([0.7], [3]), chosen, alone)
    _, together = prepare(played([0.7] * 3, [3] * 3), chosen)
    assert together.memory == pytest.approx(alone.memory, rel=1e-12)
    assert together.memory["role_average_3"] == pytest.approx(0.7 * (1 - 0.95**3), rel=1e-12)
    _, one = prepare(played([0.1, 0.7, 2.0, -1.0], [0, 1, 0, 0]), chosen, together)
    _, other = prepare(played([-1.0, 2.0, 0.7, 0.1], [0, 0, 1, 0]), chosen, together)
    assert one.memory == pytest.approx(other.memory, rel=1e-12)


def test_what_is_remembered_of_a_role_is_the_shaped_reward() -> None:
    chosen = recipe("reinforce", normalize=BY_ROLE, reward={"formula": "affine", "bias": 1.0, "scale": 2.0})
    prepared, state = prepare(played([1.0], [0]), chosen, SignalState(memory={"role_average_0": 1.0}))
    assert prepared.advantage.tolist() == [3.0]
    assert state.memory == {"role_average_0": 2.5}


def test_a_role_that_nobody_reads_and_a_reader_without_roles_are_refused() -> None:
    with pytest.raises(
        SignalError, match=r"carries role but recipe 'reinforce' reads none, .* Use normalize.minus_role"
    ):
        prepare(played([1.0], [0]), "reinforce")
    chosen = recipe("reinforce", normalize=BY_ROLE)
    assert "role" in chosen.needs
    with pytest.raises(SignalError, match=r"needs role, which the batch does not carry, .* who the policy was in it"):
        prepare(SignalBatch.from_tokens([1], reward=[1.0], group=[0]), chosen)


@pytest.mark.parametrize("formula", [BY_ROLE, "running"])
def test_one_call_knows_no_earlier_batch(formula: object) -> None:
    chosen, logp = recipe("reinforce", normalize=formula), torch.full((2, 1), -1.0, requires_grad=True)
    rows = {"mask": [[1], [1]], "reward": [1.0, 0.0], "group": [0, 0]}
    rows |= {"role": [0, 1]} if "role" in chosen.needs else {}
    with pytest.raises(SignalError, match="compares with what earlier batches earned, and a call of loss knows of no"):
        trimtab.loss(logp, recipe=chosen, **rows)
    loss, _ = trimtab.loss(logp, recipe=chosen, advantage=[1.0, 0.0], **rows)
    assert loss.item() == pytest.approx(0.5)


def test_one_call_does_not_steer() -> None:
    logp = torch.full((1, 1), -1.0, requires_grad=True)
    given = {"mask": [[1]], "reward": [2.0], "group": [0], "logp_old": [[-1.0]], "logp_ref": [[-1.0]]}
    with pytest.raises(SignalError, match=r"to kl.target = 0.1 .* keeps nothing, so the coefficient would stay 0.5"):
        trimtab.loss(logp, recipe=steered(), **given)
    loss, _ = trimtab.loss(logp, recipe=steered(target=None), **given)
    assert loss.item() == pytest.approx(-2.0)  # one answer of reward 2, no KL, no baseline


def test_roles_are_averaged_where_a_formula_reads_them() -> None:
    given = played([1.0, 2.0], [0, 1])
    votes, memory = torch.tensor([True, True]), {"role_average_1": 0.5}
    reads, reads_not = recipe("reinforce", normalize=BY_ROLE), recipe("reinforce")
    assert role_averages(reads, given, memory)["role_average"].tolist() == [0.0, 0.5]
    assert role_averages(reads_not, given, memory) == {"role_average": None}
    assert next_role_averages(reads_not, given, given.reward, votes, memory) == {}


def test_what_is_remembered_is_added_up_in_double_precision() -> None:
    # 2^24 + 1 is no number of float32
    votes, one = torch.tensor([True, True]), played([0.0, 0.0], [0, 0])
    large = torch.tensor([2.0**24, 1.0])
    found = next_moments(recipe("reinforce", normalize="running"), large, votes, {})
    assert found["reward_mean"] == (2**24 + 1) / 2
    # from -1 up to 2^24 it is 2^24 + 1: the mean lies half of that above -1, and three quarters of it are learned
    chosen = recipe("reinforce", normalize=BY_ROLE)
    learned = next_role_averages(chosen, one, torch.tensor([2.0**24, -1.0]), votes, {})
    assert learned == {"role_average_0": 0.75 * ((2**24 + 1) / 2 - 1)}


def test_a_mean_of_a_role_is_taken_from_its_lowest_reward() -> None:
    # 0.1 + (0.1 + 0.3) / 3 and 0.4 - (0.3 + 0.2) / 3 differ in their last digit
    rewards = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    lowest = 0.1 + float((rewards - 0.1).mean())
    assert lowest != 0.4 + float((rewards - 0.4).mean())
    chosen = recipe("reinforce", normalize={**BY_ROLE, "decay": 0.0})
    found = next_role_averages(chosen, played([0.1, 0.2, 0.4], [0, 0, 0]), rewards, rewards > 0, {})
    assert found == {"role_average_0": lowest}


def test_a_spread_of_one_reward_is_0_and_of_two_has_one_degree_of_freedom() -> None:
    # squares around the mean 18: of one reward it is nobody's, of two sqrt(18)
    for count, spread in ((1.0, 0.0), (2.0, sqrt(18)), (3.0, 3.0)):
        found = running({"reward_count": count, "reward_mean": 1.0, "reward_m2": 18.0}, batch(0.0))
        assert float(found["running_std"]) == pytest.approx(spread)
        assert float(found["running_mean"]) == 1
