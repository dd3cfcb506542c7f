"""Rewards on tokens find the action they pay for, also in the first and in the shortest sequence."""

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, part, prepare, recipe


def paid(masks: list[list[int]], rewards: list[list[float]]) -> list[float]:
    batch = SignalBatch.from_list(
        masks, reward=[0.0] * len(masks), group=[0] * len(masks), token_reward=[torch.tensor(row) for row in rewards]
    )
    assert batch.token_reward is not None
    return batch.token_reward.tolist()


def test_a_sequence_of_one_token_keeps_its_own_reward() -> None:
    assert paid([[1], [1, 1]], [[3.0], [0.0, 5.0]]) == [3.0, 0.0, 5.0]
    assert paid([[1]], [[3.0]]) == [3.0]
    assert paid([[1, 0]], [[3.0, 4.0]]) == [7.0]


def test_a_negative_reward_is_one() -> None:
    assert paid([[0, 1, 0], [1, 0, 0]], [[0.0, -1.0, 0.0], [0.0, 0.0, -2.0]]) == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("masks", "rewards", "cell"),
    [
        ([[0, 1]], [[2.0, 0.0]], 0),  # before the first action of all
        ([[1], [0, 1]], [[0.0], [2.0, 0.0]], 1),  # behind another sequence's action, before its own
        ([[0, 0]], [[0.0, 2.0]], 1),  # there is no action
    ],
)
def test_a_reward_before_the_first_action_of_its_sequence_is_refused(
    masks: list[list[int]], rewards: list[list[float]], cell: int
) -> None:
    with pytest.raises(SignalError, match=f"token_reward is 2.0 at cell {cell}, before the first trainable token"):
        paid(masks, rewards)


def test_no_reward_on_no_token_is_nothing() -> None:
    assert paid([[0, 0]], [[0.0, 0.0]]) == []


def test_token_rewards_add_up_with_the_reward_of_the_answer_from_each_token_on() -> None:
    batch = SignalBatch.from_list(
        [[1, 1], [1]], reward=[1.0, -1.0], group=[0, 0], token_reward=[torch.tensor([0.5, 0.25]), torch.tensor([2.0])]
    )
    chosen = recipe("start_on_policy", normalize="raw", advantage=part("advantage.reward_to_go", gamma=1.0))
    prepared, _ = prepare(batch, chosen)
    # 0.5 + 0.25 + 1, 0.25 + 1, and 2 - 1
    assert prepared.advantage.tolist() == pytest.approx([1.75, 1.25, 1.0])
    # one voter is enough for a reward that is compared with nobody
    alone, _ = prepare(SignalBatch.from_list([[1, 1]], reward=[1.0], group=[0], token_reward=[[0.0, 0.0]]), chosen)
    assert alone.metrics.numbers()["groups_without_signal/group_fraction"] == 0.0
