"""Faults planted into the fast path of log-probs alone: each shows in a value or a gradient."""

import pytest
import torch
from mutants.edit import edited
from torch import Tensor

from trimtab.signal import scores
from trimtab.signal.scores import logp_and_entropy, logp_from_hidden

FAULTS = [
    ("_forward", "shifted /= temperature", "shifted *= temperature"),
    ("_forward", "shifted /= temperature", "pass"),
    ("_forward", "[:, 0] - log_total", "[:, 0]"),
    ("_forward", "inner / total, ", "inner, "),
    ("_forward", "log_total - inner", "log_total + inner"),
    ("_forward", "largest[:, 0] / temperature", "largest[:, 0]"),
    ("_forward", "shifted.gather(1, ids[:, None])", "shifted.gather(1, ids[:, None] * 0)"),
    ("_forward", "total = power.sum(1)", "total = power.mean(1)"),
    ("_backward", "ids[:, None], by_logp[:, None])", "ids[:, None], 0 * by_logp[:, None])"),
    ("_backward", "ids[:, None], by_logp[:, None])", "ids[:, None] * 0, by_logp[:, None])"),
    ("_backward", "one / temperature for one", "one for one"),
    ("_backward", "one / temperature for one", "one * temperature for one"),
    ("_backward", ".mul_(-by_entropy[:, None])", ".mul_(by_entropy[:, None])"),
    ("_backward", "fixed = -by_entropy * entropy", "fixed = by_entropy * entropy"),
    ("_backward", "fixed = -by_entropy * entropy", "fixed = 0 * by_entropy"),
    ("_backward", "else fixed - by_logp", "else fixed + by_logp"),
    ("_backward", "fixed if by_logp is None else fixed - by_logp", "fixed"),
    ("_backward", "torch.div(logits, temperature, out=logs)", "torch.mul(logits, temperature, out=logs)"),
    ("_backward", "out.mul_(-cast(\"Tensor\", by_logp)[:, None])", "out.mul_(cast(\"Tensor\", by_logp)[:, None])"),
    ("_spans", "range(0, rows, step)", "range(0, rows, max(1, step - 1))"),
    ("_spans", "min(start + step, rows)", "min(start + step, max(rows - 1, start))"),
    ("_of", "by[1][rows]", "by[1][: rows.stop - rows.start]"),
    ("_of", "by[0][rows]", "by[0][: rows.stop - rows.start]"),
]  # fmt: skip


def worst() -> float:
    """The largest error of a value or a gradient, from logits and from hidden states."""
    torch.manual_seed(0)
    hidden = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    ids, by = torch.randint(1, 9, (7,)), torch.rand(2, 7, dtype=torch.float64) + 0.5
    logs = torch.log_softmax(hidden @ weight.T / 0.7, -1)
    truth = logs.gather(-1, ids[:, None])[:, 0], -(logs.exp() * logs).sum(-1)
    found = [
        logp_and_entropy(hidden @ weight.T, ids, temperature=0.7),
        logp_from_hidden(hidden, weight, ids, temperature=0.7, chunk=36),
    ]
    errors: list[Tensor] = []
    for uses in ((1, 1), (1, 0), (0, 1)):
        chosen = [place for place in (0, 1) if uses[place]]
        (wanted,) = [torch.autograd.grad(_sum(truth, by, chosen), (hidden, weight), retain_graph=True)]
        for out in found:
            got = torch.autograd.grad(_sum(out, by, chosen), (hidden, weight), retain_graph=True)
            errors += [(a - b).abs().max() for a, b in zip(got, wanted, strict=True)]
            errors += [(a - b).abs().max() for a, b in zip(out, truth, strict=True)]
    return float(torch.stack(errors).detach().nan_to_num(torch.inf).max())


def _sum(out: tuple[Tensor, Tensor], by: Tensor, chosen: list[int]) -> Tensor:
    return torch.stack([(out[place] * by[place]).sum() for place in chosen]).sum()


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two rows inside chunks of four."""
    monkeypatch.setattr(scores, "CHUNK", 18)


def test_without_a_fault_there_is_no_error() -> None:
    assert worst() < 1e-12


@pytest.mark.parametrize(("function", "old", "new"), FAULTS)
def test_a_fault_shows(function: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, function, edited(getattr(scores, function), old, new))
    try:
        error = worst()
    except (RuntimeError, IndexError):
        return  # a shape that no longer fits is an error aloud
    assert error > 1e-6
