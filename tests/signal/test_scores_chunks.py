"""Log-probs in chunks that do not come out even: more rows than words, a last row alone, one input at a time."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal import scores
from trimtab.signal.scores import logp, logp_and_entropy, logp_from_hidden

ROWS, WORDS, WIDTH, F64 = 17, 5, 3, torch.float64


@pytest.fixture(autouse=True)
def _four_rows_at_once_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch warns of memory that does not fit what is written into it."""
    monkeypatch.setattr(scores, "CHUNK", 4 * WORDS)
    monkeypatch.setattr(scores, "HIDDEN_CHUNK", 8 * WORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


IDS = torch.arange(ROWS) % WORDS


def written(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-prob and entropy as they are written."""
    logs = (logits / temperature).log_softmax(-1)
    return torch.stack([logs.gather(-1, ids[..., None])[..., 0], -(logs.exp() * logs).sum(-1)])


def near(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_more_rows_than_words(temperature: float) -> None:
    logits = normal(ROWS, WORDS).requires_grad_()
    mine = torch.stack(logp_and_entropy(logits, IDS, temperature=temperature))
    theirs = written(logits, IDS, temperature)
    near(mine, theirs)
    near(logp(logits, IDS, temperature=temperature), theirs[0])
    for by in (torch.ones(2, ROWS, dtype=F64), normal(2, ROWS)):
        near(*(torch.autograd.grad(one, logits, by, retain_graph=True)[0] for one in (mine, theirs)))


def test_half_precision_in_chunks_that_do_not_come_out_even() -> None:
    exact = normal(ROWS, WORDS).bfloat16().double().requires_grad_()
    logits = exact.detach().bfloat16().requires_grad_()
    by = normal(2, ROWS)
    (theirs,) = torch.autograd.grad(written(exact, IDS), exact, by)
    (mine,) = torch.autograd.grad(torch.stack(logp_and_entropy(logits, IDS)), logits, by.float())
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("only", ["hidden", "weight", "bias", "all", "no bias"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_each_input_has_its_own_gradient(only: str, temperature: float) -> None:
    leaves = {"hidden": normal(ROWS, WIDTH), "weight": normal(WORDS, WIDTH, seed=1), "bias": normal(WORDS, seed=2)}
    used = [name for name in leaves if only in (name, "all") or (only == "no bias" and name != "bias")]
    for name in used:
        _ = leaves[name].requires_grad_()
    bias = None if only == "no bias" else leaves["bias"]
    logits = torch.nn.functional.linear(leaves["hidden"], leaves["weight"], bias)
    theirs, by = written(logits, IDS, temperature), normal(2, ROWS, seed=3)
    mine = torch.stack(logp_from_hidden(leaves["hidden"], leaves["weight"], IDS, bias=bias, temperature=temperature))
    near(mine, theirs)
    wanted = [leaves[name] for name in used]
    for one, other in zip(torch.autograd.grad(mine, wanted, by), torch.autograd.grad(theirs, wanted, by), strict=True):
        near(one, other)


def test_hidden_states_of_rows_and_places() -> None:
    hidden, weight, ids = normal(2, 4, WIDTH), normal(WORDS, WIDTH, seed=1), IDS[:8].reshape(2, 4)
    near(torch.stack(logp_from_hidden(hidden, weight, ids)), written(hidden @ weight.T, ids))
    near(torch.stack(logp_from_hidden(hidden[0, 0], weight, ids[0, 0])), written(hidden[0, 0] @ weight.T, ids[0, 0]))
    near(logp(hidden[0, 0], ids[0, 0]), written(hidden[0, 0], ids[0, 0])[0])


def test_what_is_wrong_with_hidden_states_is_refused_as_it_is_with_logits() -> None:
    hidden, weight = normal(2, WIDTH).requires_grad_(), normal(WORDS, WIDTH)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: logp_from_hidden(hidden, weight, IDS[:1]), r"\[2, 3\] of torch\.float64 and ids \[1\]"),
        (lambda: logp_from_hidden(hidden, weight, IDS[:2], temperature=float("inf")), "temperature is inf"),
        (lambda: logp_from_hidden(hidden, weight, IDS[:2], temperature=0.0), "temperature is 0"),
        (lambda: logp(hidden, IDS[:2], temperature=float("inf")), "temperature is inf"),
        (lambda: logp_from_hidden(hidden, weight[:0], IDS[:2]), "the vocabulary is empty"),
        (lambda: logp(normal(2, 0), IDS[:2]), "the vocabulary is empty"),
        (lambda: logp_from_hidden(hidden, weight[0], IDS[:2]), r"hidden has shape \[2, 3\] and weight \[3\]"),
    ]
    for call, says in wrong:
        with pytest.raises(SignalError, match=says):
            _ = call()
    own, _ = logp_from_hidden(hidden, weight, IDS[:2])
    with pytest.raises(SignalError, match="a second derivative was asked for"):
        _ = torch.autograd.grad(own.sum(), hidden, create_graph=True)


def test_a_chunk_holds_whole_rows_and_scratch_is_as_large_as_the_largest() -> None:
    assert scores._spans(5, 4, 8) == [(0, 2), (2, 4), (4, 5)]
    assert scores._spans(3, 10, 5) == [(0, 1), (1, 2), (2, 3)]
    like = torch.zeros(0, dtype=F64)
    assert scores._room(like, [(0, 2), (2, 5), (5, 6)], 7).shape == (2, 3, 7)
    assert scores._room(like, [], 7).shape == (2, 0, 7)
    table, room = scores._tables(like, [(0, 2), (2, 8), (8, 9)], WORDS)
    assert (table.shape, room.shape) == ((6, WORDS), (2, 4, WORDS))
    table, room = scores._tables(like, [], WORDS)
    assert (table.shape, room.shape) == ((0, WORDS), (2, 0, WORDS))
    assert scores._at_once(like) == 4 * WORDS
    assert scores._at_once(torch.zeros(0, device="meta")) == scores.FAR_CHUNK == 2**24


@pytest.mark.parametrize("from_hidden", [False, True])
def test_answers_are_tensors_of_their_own(from_hidden: bool) -> None:
    logits, head = normal(ROWS, WORDS).requires_grad_(), torch.eye(WORDS, dtype=F64)
    own, entropy = logp_from_hidden(logits, head, IDS) if from_hidden else logp_and_entropy(logits, IDS)
    for one in (own, entropy):
        assert one.untyped_storage().nbytes() == ROWS * 8
    _ = entropy.detach().zero_()  # what a caller does with it is not what the gradient is made of
    (mine,) = torch.autograd.grad(entropy.sum(), logits)
    near(mine, torch.autograd.grad(written(logits, IDS)[1].sum(), logits)[0])


@pytest.mark.parametrize("from_hidden", [False, True])
def test_of_what_nobody_uses_no_gradient_is_made(from_hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backward: Callable[..., None] = scores._backward
    seen: list[tuple[bool, bool]] = []

    def told(*given: Any) -> None:
        seen.append((given[4][0] is None, given[4][1] is None))
        backward(*given)

    monkeypatch.setattr(scores, "_backward", told)
    logits, head = normal(1, WORDS).requires_grad_(), torch.eye(WORDS, dtype=F64)
    for place in (0, 1):
        found = logp_from_hidden(logits, head, IDS[:1]) if from_hidden else logp_and_entropy(logits, IDS[:1])
        _ = torch.autograd.grad(found[place].sum(), logits)
    assert seen == [(False, True), (True, False)]
