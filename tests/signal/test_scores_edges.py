"""Log-probs where chunks end, where little is asked for, and what they cost besides their numbers."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import scores
from trimtab.signal.scores import logp_and_entropy, logp_from_hidden

ROWS, WORDS, WIDTH = 7, 5, 3


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of two rows inside chunks of four, and no warning: torch says so where room is of another shape."""
    monkeypatch.setattr(scores, "CHUNK", 2 * WORDS)
    monkeypatch.setattr(scores, "HIDDEN_CHUNK", 4 * WORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, head, bias and ids."""
    stream = torch.Generator().manual_seed(0)
    made = (
        torch.randn(*shape, generator=stream, dtype=torch.float64)
        for shape in ((ROWS, WIDTH), (WORDS, WIDTH), (WORDS,))
    )
    hidden, weight, bias = (one.to(dtype) for one in made)
    return hidden, weight, bias, torch.tensor([0, 4, 2, 1, 3, 3, 0])


def wanted(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits.double() / temperature, -1)
    return logs.gather(-1, ids[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def assert_alike(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], near: float = 1e-12) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=near, atol=near)


@pytest.mark.parametrize("temperature", [None, 1.0, 2.0])
def test_of_more_rows_than_words_values_and_gradients_are_those_of_log_softmax(temperature: float | None) -> None:
    hidden, weight, bias, ids = drawn()
    asked = {} if temperature is None else {"temperature": temperature}
    logits = (hidden @ weight.T + bias).requires_grad_()
    expected = wanted(logits, ids, **asked)
    assert_alike(logp_and_entropy(logits, ids, **asked), expected)
    assert_alike((trimtab.logp(logits, ids, **asked),), expected[:1])
    assert_alike(logp_from_hidden(hidden, weight, ids, bias=bias, **asked), expected)
    (mine,) = torch.autograd.grad(sum(one.sum() for one in logp_and_entropy(logits, ids, **asked)), logits)  # type: ignore[arg-type]
    assert_alike((mine,), torch.autograd.grad(expected[0].sum() + expected[1].sum(), logits))


def test_leading_axes_are_those_of_the_ids() -> None:
    hidden, weight, _, ids = drawn()
    states, names = hidden[:6].reshape(3, 2, WIDTH), ids[:6].reshape(3, 2)
    flat = logp_from_hidden(hidden[:6], weight, ids[:6])
    assert_alike(logp_from_hidden(states, weight, names), tuple(one.reshape(3, 2) for one in flat))
    assert_alike(logp_and_entropy(states @ weight.T, names), tuple(one.reshape(3, 2) for one in flat))
    assert_alike(logp_from_hidden(hidden[0], weight, ids[0]), tuple(one[0] for one in flat))


def test_half_precision_needs_no_other_room() -> None:
    hidden, weight, bias, ids = drawn(torch.bfloat16)
    leaves = [one.requires_grad_() for one in (hidden, weight, bias)]
    logits = (
        torch.nn.functional.linear(hidden.float(), weight.float(), bias.float()).bfloat16().detach().requires_grad_()
    )
    found = logp_from_hidden(hidden, weight, ids, bias=bias), logp_and_entropy(logits, ids)
    for (own, entropy), held in zip(found, (leaves, [logits]), strict=True):
        assert own.dtype == entropy.dtype == torch.float32
        slopes = torch.autograd.grad(own.sum() + entropy.sum(), held)
        assert [one.dtype for one in slopes] == [torch.bfloat16] * len(held)
    assert_alike(
        found[0], wanted(torch.nn.functional.linear(hidden.double(), weight.double(), bias.double()), ids), 2e-6
    )


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_only_what_needs_a_gradient_gets_one(asked: tuple[int, ...]) -> None:
    *given, ids = drawn()
    leaves = [one.requires_grad_(place in asked) for place, one in enumerate(given)]
    hidden, weight, bias = leaves
    own, entropy = logp_from_hidden(hidden, weight, ids, bias=bias)
    (own.sum() + entropy.sum()).backward()
    expected = wanted(torch.nn.functional.linear(hidden, weight, bias), ids)
    slopes = torch.autograd.grad(expected[0].sum() + expected[1].sum(), [leaves[place] for place in asked])
    assert [one.grad is not None for one in leaves] == [place in asked for place in range(3)]
    assert_alike(tuple(leaves[place].grad for place in asked), slopes)  # type: ignore[arg-type]


def test_what_nobody_uses_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _, ids = drawn()
    hidden.requires_grad_()
    given: list[tuple[bool, bool]] = []
    exact = scores._backward

    def seen(out: Any, logits: Any, ids: Any, saved: Any, by: Any, *rest: Any) -> None:
        given.append((by[0] is None, by[1] is None))
        exact(out, logits, ids, saved, by, *rest)

    monkeypatch.setattr(scores, "_backward", seen)
    for call in (lambda: logp_from_hidden(hidden, weight, ids), lambda: logp_and_entropy(hidden @ weight.T, ids)):
        for place in (0, 1):
            given.clear()
            call()[place].sum().backward()
            assert given == [(place == 1, place == 0)] * 4  # rows 0-1, 2-3, 4-5, 6


def test_results_hold_no_memory_but_their_own() -> None:
    hidden, weight, _, ids = drawn()
    for found in (logp_from_hidden(hidden, weight, ids), logp_and_entropy(hidden @ weight.T, ids)):
        assert [one.untyped_storage().nbytes() for one in found] == [8 * ROWS, 8 * ROWS]


def test_a_second_derivative_is_refused_from_hidden_states_too() -> None:
    hidden, weight, _, ids = drawn()
    own, _ = logp_from_hidden(hidden.requires_grad_(), weight, ids)
    with pytest.raises(SignalError, match="second derivative"):
        _ = torch.autograd.grad(own.sum(), hidden, create_graph=True)


@pytest.mark.parametrize(
    ("hidden", "words", "ids", "temperature", "said"),
    [
        ((2, 3), 5, torch.zeros(3, dtype=torch.long), 1.0, r"\[2, 3\] of torch.float32 and ids \[3\] of torch.int64"),
        ((2, 3), 5, torch.zeros(2), 1.0, "do not match"),
        ((2, 3), 0, torch.zeros(2, dtype=torch.long), 1.0, "the vocabulary is empty"),
        ((2, 3), 5, torch.zeros(2, dtype=torch.long), 0.0, "temperature is 0.0"),
        ((2, 3), 5, torch.zeros(2, dtype=torch.long), math.inf, "temperature is inf"),
        ((2, 3), 5, torch.zeros(2, dtype=torch.long), math.nan, "temperature is nan"),
    ],
)
def test_what_cannot_be_read_is_refused(
    hidden: tuple[int, ...], words: int, ids: Tensor, temperature: float, said: str
) -> None:
    with pytest.raises(SignalError, match=said):
        _ = logp_from_hidden(torch.zeros(hidden), torch.zeros(words, 3), ids, temperature=temperature)
    if words:
        with pytest.raises(SignalError, match=said):
            _ = trimtab.logp(torch.zeros(hidden), ids, temperature=temperature)


def test_a_single_number_is_no_distribution() -> None:
    with pytest.raises(SignalError, match="the vocabulary is empty"):
        _ = trimtab.logp(torch.tensor(1.0), torch.tensor(0))
    with pytest.raises(SignalError, match="the vocabulary is empty"):
        _ = trimtab.logp(torch.zeros(2, 3, 0), torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(SignalError, match=r"weight \[3\], so there are no logits"):
        _ = logp_from_hidden(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, dtype=torch.long))


def test_chunks_are_as_many_whole_rows_as_fit_and_at_least_one() -> None:
    assert scores._spans(5, 10, 20) == [(0, 2), (2, 4), (4, 5)]
    assert scores._spans(3, 10, 19) == scores._spans(3, 10, 5) == [(0, 1), (1, 2), (2, 3)]
    assert scores._spans(0, 10, 20) == []
    assert scores._at_once(torch.zeros(1)) == scores.CHUNK
    assert scores._at_once(torch.zeros(1, device="meta")) == scores.FAR_CHUNK


def test_room_is_as_large_as_the_largest_chunk() -> None:
    like, spans = torch.zeros((), dtype=torch.float64), [(0, 4), (4, 6)]
    assert scores._room(like, spans, WORDS).shape == (2, 4, WORDS)
    assert scores._room(like, [], WORDS).shape == (2, 0, WORDS)
    table, room = scores._tables(like, spans, WORDS)
    assert table.shape == (4, WORDS)
    assert room.shape == (2, 2, WORDS)  # rows of a chunk are worked on in twos here
    assert [one.numel() for one in scores._tables(like, [], WORDS)] == [0, 0]


def test_all_chunks_are_counted_in_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _, ids = drawn()
    asked: list[tuple[int, int]] = []
    exact = scores._spans

    def seen(rows: int, vocabulary: int, chunk: int) -> list[tuple[int, int]]:
        asked.append((vocabulary, chunk))
        return exact(rows, vocabulary, chunk)

    monkeypatch.setattr(scores, "_spans", seen)
    for chunk, size in ((None, 4 * WORDS), (3 * WORDS, 3 * WORDS)):
        asked.clear()
        own, _ = logp_from_hidden(hidden.requires_grad_(), weight, ids, chunk=chunk)
        own.sum().backward()
        assert set(asked) == {(WORDS, size), (WORDS, 2 * WORDS)}
    asked.clear()
    trimtab.logp(hidden @ weight.T, ids).sum().backward()
    assert asked == [(WORDS, 2 * WORDS)] * 2
