"""A field held once per sequence says the same as the same field held per token."""

import torch

from trimtab.signal.fields import Field, Fields, everything, ones
from trimtab.signal.layout import Segments

SEGMENTS = Segments.from_counts(torch.tensor([2, 0, 3]), 5)


def test_flags_of_sequences_count_for_their_tokens() -> None:
    shared = Field(torch.tensor([True, True, False]), SEGMENTS, True)
    apart = Field(torch.tensor([True, True, False, False, False]), SEGMENTS)
    assert Field(apart.values, SEGMENTS).sequences.tolist() == [True, False, False]
    for one in (shared, apart):
        assert one.tokens.tolist() == [True, True, False, False, False]
        assert one.tally.tolist() == [2, 0, 0]
        assert one.sequences.tolist() == [True, False, False]
    # counted before they are asked which sequences they lie in
    later = Field(torch.tensor([False, True, False, True, True]), SEGMENTS)
    assert (later.tally.tolist(), later.sequences.tolist()) == ([1, 0, 2], [True, False, True])


def test_everything_is_every_token_and_every_sequence() -> None:
    whole = everything(SEGMENTS)
    assert whole.is_shared
    assert whole.values.tolist() == [True, True, True]
    assert whole.tokens.tolist() == [True] * 5
    assert whole.dtype == torch.bool
    weights = ones(SEGMENTS, torch.float32)
    assert (weights.tokens.tolist(), weights.dtype, weights.is_shared) == ([1.0] * 5, torch.float32, True)


def test_fields_are_joined_per_sequence_where_both_are_held_so() -> None:
    some, value = Field(torch.tensor([True, False, True]), SEGMENTS, True), Field(torch.arange(5.0), SEGMENTS)
    assert [(some & everything(SEGMENTS)).is_shared, value.where(some).is_shared] == [True, False]
    assert (some & ~some).values.tolist() == [False] * 3
    assert (some & Field(torch.arange(5) == 4, SEGMENTS)).tokens.tolist() == [False, False, False, False, True]
    assert value.where(some).tokens.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert value.where(~some).tokens.tolist() == [0.0] * 5
    assert (value * ones(SEGMENTS, torch.float32).map(lambda one: one * 3)).tokens.tolist() == [
        0.0,
        3.0,
        6.0,
        9.0,
        12.0,
    ]


def test_cut_fields_hold_the_chosen_sequences() -> None:
    held = Fields(SEGMENTS, {"a": Field(torch.tensor([1.0, 2.0, 3.0]), SEGMENTS, True)})
    held = held.adding({"b": Field(torch.arange(5.0), SEGMENTS)})
    cut = held.cut(Segments.from_counts(torch.tensor([3]), 3), torch.tensor([2]), torch.tensor([2, 3, 4]))
    assert (cut["a"].tolist(), cut["b"].tolist()) == ([3.0, 3.0, 3.0], [2.0, 3.0, 4.0])
    assert (cut.held("a").is_shared, len(cut), list(cut), "c" in cut) == (True, 2, ["a", "b"], False)
    assert Fields.of(SEGMENTS, cut) is cut
