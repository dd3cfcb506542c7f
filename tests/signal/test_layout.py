"""Levels: what is said of a token, a sequence or an episode stays with it."""

from contextlib import nullcontext

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, prepare, recipe
from trimtab.signal.layout import Levels, Segments, places
from trimtab.signal.reduce import last_token, sequence_any, sequence_mean, sequence_sum, to_tokens
from trimtab.signal.tensors import as_on_a_device
from trimtab.signal.update import select


def test_reductions_stay_inside_their_sequence_whatever_stands_in_the_next() -> None:
    segments = Segments.from_counts(torch.tensor([2, 0, 2]), 4)
    values = torch.tensor([1.0, 2.0, float("nan"), float("inf")])
    assert sequence_sum(values, segments)[:2].tolist() == [3.0, 0.0]
    assert sequence_mean(values, segments, torch.tensor([True, False, True, True]))[:2].tolist() == [1.0, 0.0]
    assert sequence_any(values > 1.5, segments).tolist() == [True, False, True]
    assert to_tokens(torch.tensor([7.0, 8.0, 9.0]), segments).tolist() == [7.0, 7.0, 9.0, 9.0]
    sequences, last = last_token(segments)
    assert (sequences.tolist(), last.tolist()) == ([0, 2], [1, 3])


def test_selecting_sequences_selects_their_tokens_in_the_asked_order() -> None:
    segments = Segments.from_counts(torch.tensor([2, 0, 3, 1]), 6)
    cut, tokens = select(segments, torch.tensor([2, 0]))
    assert cut.token_counts.tolist() == [3, 2]
    assert tokens.tolist() == [2, 3, 4, 0, 1]


def test_an_episode_cut_into_sequences_votes_once() -> None:
    """miles: splitting one rollout into three segments must not change anybody's advantage."""
    reward, group = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 0, 0])
    whole = SignalBatch.from_list([torch.ones(2)] * 3, reward=reward, group=group)
    cut = SignalBatch.from_list([torch.ones(2)] * 5, reward=reward, group=group, episode=torch.tensor([0, 0, 0, 1, 2]))
    base = prepare(whole, recipe("start_on_policy"))[0].advantage
    split = prepare(cut, recipe("start_on_policy"))[0].advantage
    assert split[::2].tolist() == [base[0], base[0], base[0], base[2], base[4]]


@pytest.mark.parametrize("episode", [-1, 2])
def test_an_episode_without_a_reward_is_refused_by_its_number(episode: int) -> None:
    with pytest.raises(SignalError, match=f"sequence 1 names episode {episode} but there are 2 rewards"):
        SignalBatch.from_padded([[1], [1]], reward=[1.0, 0.0], group=[4, 4], episode=[0, episode])


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    ("counts", "firsts", "filled", "num_filled"),
    [
        ([2, 0, 3], [0, 2, 2], [True, False, True], 2.0),
        ([0, 1], [0, 0], [False, True], 1.0),
        ([0, 0], [0, 0], [False, False], 1.0),  # a divisor is at least 1
        ([], [], [], 1.0),
        ([4, 5], [0, 4], [True, True], 2.0),
    ],
)
def test_what_is_known_of_sequences(
    counts: list[int], firsts: list[int], filled: list[bool], num_filled: float, elsewhere: bool
) -> None:
    segments = Segments.from_counts(torch.tensor(counts, dtype=torch.long), sum(counts))
    with as_on_a_device() if elsewhere else nullcontext():
        assert segments.num_sequences == len(counts)
        assert segments.offsets.tolist() == [*firsts, sum(counts)]
        assert segments.first_token.tolist() == firsts
        assert segments.everyone.tolist() == list(range(len(counts)))
        assert segments.sequence_of_token.tolist() == [i for i, count in enumerate(counts) for _ in range(count)]
        assert segments.filled.tolist() == filled
        assert tuple(segments.measures.shape) == (len(counts), 2)
        assert segments.measures.tolist() == [[count, 1] for count in counts]
        assert str(segments.measures.dtype).removeprefix("torch.") == "float64"
        assert segments.counted.tolist() == [float(one) for one in filled]
        assert float(segments.num_filled) == num_filled
        assert segments.all_filled is (all(filled) and len(counts) > 0 and not elsewhere)


def test_plain_sequences_say_which_of_them_begin_where() -> None:
    for counts, filled, begins in (([2, 0, 3], [0, 2], [0, 2]), ([2, 3], None, [0, 2]), ([0], [], [])):
        found, first = Segments.from_counts(torch.tensor(counts), sum(counts)).starts
        assert (None if found is None else found.tolist(), first.tolist()) == (filled, begins)


def test_levels_lead_from_tokens_to_episodes() -> None:
    segments = Segments.from_counts(torch.tensor([4, 3, 2]), 9)
    levels = Levels(segments, torch.tensor([0, 1, 1]), torch.tensor([0, 0]), 1)
    assert (levels.num_tokens, levels.num_sequences, levels.num_episodes) == (9, 3, 2)
    assert levels.to_sequences(torch.tensor([5.0, 7.0])).tolist() == [5.0, 7.0, 7.0]
    assert levels.episode_of_token.tolist() == [0] * 4 + [1] * 5


def test_places_are_plain_numbers() -> None:
    assert places(torch.tensor([True, False, True])) == [0, 2]
    assert places(torch.tensor([False, True])) == [1]
    assert places(torch.zeros(0, dtype=torch.bool)) == []
