"""Log-probs and entropies in chunks of rows, against log_softmax in float64."""

import math

import pytest
import torch
from torch import Tensor

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import scores as module
from trimtab.signal.scores import logp_and_entropy, logp_from_hidden


def expected(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits.double() / temperature, -1)
    own = logs.gather(-1, ids[..., None])[..., 0]
    return own, torch.special.entr(logs.exp()).sum(-1)


@pytest.fixture(params=[1, 40, 10**6], ids=["row by row", "a few rows", "at once"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "CHUNK", request.param)
    monkeypatch.setattr(module, "HIDDEN_CHUNK", 2 * request.param)
    return request.param


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("uses", ["logp", "entropy", "both"])
def test_values_and_gradients_are_those_of_log_softmax(temperature: float, uses: str) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, 5, 13, dtype=torch.float64)).requires_grad_()
    ids, by = torch.randint(13, (2, 5)), torch.randn(2, 2, 5, dtype=torch.float64)
    if uses != "both":
        by[0 if uses == "entropy" else 1] = 0
    found, wanted = logp_and_entropy(logits, ids, temperature=temperature), expected(logits, ids, temperature)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    used = {"logp": found[:1], "entropy": found[1:], "both": found}[uses]
    weights = {"logp": by[:1], "entropy": by[1:], "both": by}[uses]
    (mine,) = torch.autograd.grad(sum((o * w).sum() for o, w in zip(used, weights, strict=True)), logits)  # type: ignore[arg-type]
    (theirs,) = torch.autograd.grad((wanted[0] * by[0]).sum() + (wanted[1] * by[1]).sum(), logits)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("with_bias", [False, True])
def test_from_hidden_states_everything_is_as_from_the_logits(with_bias: bool) -> None:
    torch.manual_seed(1)
    hidden = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = [hidden, weight] + ([bias] if bias is not None else [])
    ids, by = torch.randint(11, (7,)), torch.randn(2, 7, dtype=torch.float64)
    found = logp_from_hidden(hidden, weight, ids, bias=bias, temperature=0.6)
    wanted = logp_and_entropy(torch.nn.functional.linear(hidden, weight, bias), ids, temperature=0.6)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    mine, theirs = (
        torch.autograd.grad((out[0] * by[0]).sum() + (out[1] * by[1]).sum(), leaves) for out in (found, wanted)
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_float32_stays_close_to_float64_and_half_precision_is_accumulated_in_float32() -> None:
    torch.manual_seed(2)
    logits, ids = 2 * torch.randn(64, 32_000), torch.randint(32_000, (64,))
    for mine, theirs in zip(logp_and_entropy(logits, ids), expected(logits, ids, 1.0), strict=True):
        assert float((mine - theirs).abs().max()) < 2e-6
    half = logits.bfloat16().requires_grad_()
    own, entropy = logp_and_entropy(half, ids)
    assert own.dtype == entropy.dtype == torch.float32
    assert float((own.detach() - expected(half, ids, 1.0)[0]).abs().max()) < 2e-6
    own.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.usefixtures("chunk")
def test_a_token_without_mass_has_no_entropy_and_no_gradient_and_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[-math.inf, 1000.0, 1000.0], [0.0, -math.inf, 0.0]], requires_grad=True)
    ids = torch.tensor([1, 2])
    own, entropy = logp_and_entropy(logits, ids)
    assert own.tolist() == pytest.approx([-math.log(2)] * 2)
    assert entropy.tolist() == pytest.approx([math.log(2)] * 2)
    (own.sum() + entropy.sum()).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert (logits.grad[0, 0], logits.grad[1, 1]) == (0.0, 0.0)


def test_the_input_is_not_written_to_and_a_second_derivative_is_refused() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    before, ids = logits.detach().clone(), torch.tensor([0, 4, 2])
    own = trimtab.logp(logits, ids)
    with pytest.raises(SignalError, match="second derivative"):
        _ = torch.autograd.grad(own.sum(), logits, create_graph=True)
    trimtab.logp(logits, ids).sum().backward()
    assert torch.equal(logits.detach(), before)


def test_of_no_rows_there_are_no_numbers() -> None:
    logits = torch.zeros(0, 4, requires_grad=True)
    own, entropy = logp_and_entropy(logits, torch.zeros(0, dtype=torch.long))
    assert own.shape == entropy.shape == (0,)
    own.sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize(
    ("logits", "ids", "temperature", "said"),
    [
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), 1.0, "do not match"),
        (torch.zeros(2, 3), torch.zeros(2), 1.0, "do not match"),
        (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long), 1.0, "do not match"),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.long), 1.0, "vocabulary is empty"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), 0.0, "a number above 0"),
    ],
)
def test_what_cannot_be_read_is_refused(logits: Tensor, ids: Tensor, temperature: float, said: str) -> None:
    with pytest.raises(SignalError, match=said):
        _ = trimtab.logp(logits, ids, temperature=temperature)


def test_a_head_of_another_width_is_refused() -> None:
    with pytest.raises(SignalError, match="so there are no logits"):
        _ = logp_from_hidden(torch.zeros(2, 3), torch.zeros(5, 4), torch.zeros(2, dtype=torch.long))


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("uses", ["logp", "entropy", "both"])
def test_half_precision_has_the_gradient_of_its_numbers(uses: str) -> None:
    torch.manual_seed(3)
    half = torch.randn(7, 13).bfloat16().requires_grad_()
    ids, by = torch.randint(13, (7,)), torch.randn(2, 7)
    if uses != "both":
        by[0 if uses == "entropy" else 1] = 0
    found, wide = logp_and_entropy(half, ids, temperature=0.7), half.detach().double().requires_grad_()
    used = {"logp": [0], "entropy": [1], "both": [0, 1]}[uses]
    (mine,) = torch.autograd.grad(sum((found[one] * by[one]).sum() for one in used), half)  # type: ignore[arg-type]
    wanted = expected(wide, ids, 0.7)
    (theirs,) = torch.autograd.grad(sum((wanted[one] * by[one]).sum() for one in (0, 1)), wide)  # type: ignore[arg-type]
    torch.testing.assert_close(mine.double(), theirs, rtol=2**-8, atol=1e-3)


def test_a_chunk_is_as_large_as_is_said() -> None:
    assert [4 * one / 2**20 for one in (module.CHUNK, module.HIDDEN_CHUNK, module.FAR_CHUNK)] == [2, 16, 64]
