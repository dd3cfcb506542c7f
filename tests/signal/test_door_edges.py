"""The door at its edges: layouts that almost fit, and numbers exactly at their limits."""

from typing import Any

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch

ONE: dict[str, Any] = {"reward": [1.0, 0.0], "group": [0, 0]}


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (torch.tensor([[1], [2]]), r"token_counts has shape \[2, 1\].* Give one count per sequence"),
        (torch.tensor(3), r"token_counts has shape \[\]"),
        ([3, -1], r"token_counts is \[3, -1\].* Give counts of 0 or more"),
    ],
)
def test_counts_of_tokens_are_one_for_each_sequence_and_0_or_more(counts: Any, says: str) -> None:
    with pytest.raises(SignalError, match=says):
        SignalBatch.from_tokens(counts, **ONE)
    assert SignalBatch.from_tokens([0, 2], **ONE).num_tokens == 2


def test_a_packed_row_and_its_boundaries_have_one_dimension() -> None:
    with pytest.raises(SignalError, match=r"trainable has shape \[1, 3\].* Give \[tokens\]"):
        SignalBatch.from_packed(torch.ones(1, 3), [0, 1, 3], **ONE)
    with pytest.raises(SignalError, match=r"cu_seqlens has shape \[1, 3\].* Give \[sequences \+ 1\]"):
        SignalBatch.from_packed(torch.ones(3), torch.tensor([[0, 1, 3]]), **ONE)
    assert SignalBatch.from_packed(torch.ones(3), [0, 1, 3], **ONE).num_tokens == 3


def build(num: int = 2, **fields: Any) -> SignalBatch:
    """Answers of one token each, to one prompt."""
    return SignalBatch.from_tokens([1] * num, **({"reward": [0.0] * num, "group": [0] * num} | fields))


def refused(says: str, num: int = 2, **fields: Any) -> None:
    with pytest.raises(SignalError, match=says):
        build(num, **fields)


def test_plain_numbers_of_episodes_are_read_in_float64() -> None:
    batch = build(reward=[0.1, 0.7], baseline=[0.1, 0.7], rewards=[[0.1], [0.7]])
    assert batch.reward.tolist() == batch.baseline.tolist() == [0.1, 0.7]
    assert batch.rewards.tolist() == [[0.1], [0.7]]
    assert {one.dtype for one in (batch.reward, batch.baseline, batch.rewards)} == {torch.float64}


@pytest.mark.parametrize("name", ["reward", "baseline", "value_old", "rewards"])
def test_a_number_of_1e18_is_the_largest(name: str) -> None:
    def shaped(values: list[float]) -> torch.Tensor:
        given = torch.tensor(values, dtype=torch.float64)
        return given[:, None] if name == "rewards" else given

    for largest in (1e18, -1e18):
        assert getattr(build(**{name: shaped([largest, 1.0])}), name).reshape(-1).tolist() == [largest, 1.0]
        # the one that is just possible is not the one that is named
        refused(rf"{name} is {largest * 1.5:g}".replace("+", r"\+"), **{name: shaped([largest, 1.5 * largest])})
        refused(rf"{name} is nan at .*1", **{name: shaped([largest, float("nan")])})


def test_an_episode_is_one_that_has_a_reward() -> None:
    counts = {"token_counts": [1, 1, 1], "reward": [1.0, 0.0], "group": [0, 0]}
    assert SignalBatch.from_tokens(**counts, episode=[0, 1, 1]).levels.episode_of_sequence.tolist() == [0, 1, 1]
    for wrong in (2, -1):
        with pytest.raises(SignalError, match=rf"sequence 2 names episode {wrong} but there are 2 rewards"):
            SignalBatch.from_tokens(**counts, episode=[0, 1, wrong])
    with pytest.raises(SignalError, match=r"episode has shape \[2\] for 3 sequences"):
        SignalBatch.from_tokens(**counts, episode=[0, 1])


def test_without_episodes_every_sequence_is_one_and_nothing_is_looked_up() -> None:
    levels, values = build(3).levels, torch.arange(3.0)
    assert levels.one_each
    assert levels.to_sequences(values) is values
    assert not build(3, episode=[0, 1, 2]).levels.one_each


def test_rewards_and_groups_in_columns_are_refused_though_they_match() -> None:
    refused(r"reward has shape \[2, 1\] and group \[2, 1\]", reward=torch.ones(2, 1), group=torch.tensor([[0], [0]]))


@pytest.mark.parametrize("name", ["length", "observed"])
def test_a_sequence_may_hold_0_tokens_and_no_fewer(name: str) -> None:
    assert getattr(build(**{name: [0, 3]}), name).tolist() == [0, 3]
    refused(rf"{name} is -1 at 1, and a sequence ", **{name: [0, -1]})
    refused(rf"{name}: holds bool", **{name: [True, False]})
    refused(rf"{name}: holds float", **{name: [1.0, 2.5]})
    refused(rf"{name} has shape \[3\] for 2 sequences", **{name: [1, 2, 3]})


def test_lengths_may_be_whole_numbers_with_a_point() -> None:
    assert build(length=[4.0, 0.0]).length.tolist() == [4, 0]
    refused("observed: holds float", observed=[4.0, 0.0])


def test_what_names_a_role_or_a_source_counts_from_0() -> None:
    for name in ("role", "source"):
        assert getattr(build(**{name: [0, 1]}), name).tolist() == [0, 1]
        refused(rf"{name} is -1 at episode 1, and a {name} is named by a number", **{name: [0, -1]})


def test_a_row_is_shorter_than_the_batch_where_attention_ends_before_it() -> None:
    mask, rewards = [[1, 1], [1, 0], [0, 1]], {"reward": [0.0] * 3, "group": [0] * 3}
    batch = SignalBatch.from_padded(mask, attention=[[1, 1], [1, 0], [0, 1]], ended="shorter_than_row", **rewards)
    assert batch.ended.tolist() == [False, True, True]
    with pytest.warns(UserWarning, match="finds no row shorter than the width 2"):
        batch = SignalBatch.from_padded(mask, attention=[[1, 1]] * 3, ended="shorter_than_row", **rewards)
    assert batch.ended.tolist() == [False, False, False]
    with pytest.raises(SignalError, match="ended = 'shorter_than_row' cannot be read"):
        SignalBatch.from_padded(mask, ended="shorter_than_row", **rewards)
    with pytest.raises(SignalError, match="ended = 'stop' cannot be read"):
        SignalBatch.from_padded(mask, attention=[[1, 1]] * 3, ended="stop", **rewards)
    with pytest.raises(SignalError, match="ended holds texts"):
        SignalBatch.from_padded(mask, ended=["stop", "stop", "length"], **rewards)
