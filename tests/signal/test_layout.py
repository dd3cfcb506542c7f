"""Levels: what is said of a token, a sequence or an episode stays with it."""

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, prepare, recipe
from trimtab.signal.layout import Segments
from trimtab.signal.reduce import last_token, sequence_any, sequence_mean, sequence_sum, to_tokens
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
