"""The lean pass has the log-probs and gradients of the model's own pass, of rows one by one, and of any other cut."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.known_models import KNOWN, UNKNOWN, built
from tests.train.test_distinct import drawn_rows
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.rollout.plain import Plain, read_plain
from trimtab.rollout.rows import Rows
from trimtab.train.lean import checked_plain
from trimtab.train.logp import token_pass


def _norm(self: Any, given: Tensor) -> Tensor:
    """As the models do it, but all in float64: they round to float32 here, which no two orders survive."""
    return self.weight * (given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


@pytest.fixture
def wide_norms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    for norm in (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(norm, "forward", _norm)
    monkeypatch.setattr("trimtab.train.pieces.NORM_FORMAT", torch.float64)
    return


def gradients(
    model: PreTrainedModel, parts: list[Rows], *, plain: Plain | None, after: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs, entropies, values' states, and what a loss of all of them sends into every parameter."""
    model.zero_grad()
    found: list[Tensor] = []
    for rows in parts:
        passed = token_pass(
            model, rows, temperature=0.7, with_state=True, with_state_after=after, entropy_graph=True, plain=plain
        )
        assert passed.state is not None
        numbers = [passed.logp, passed.entropy, passed.state.sum(1)]
        # The weight of a number depends on its sequence alone, so that rows one by one add up to the same.
        weights = [_weights(rows).sin() * scale for scale in (1.0, 0.3, 0.01)]
        if passed.state_after is not None:
            numbers.append(passed.state_after.sum(1))
            weights.append(rows.ids[:, 0].double() + rows.last_column)
        torch.stack([(w * one).sum() for w, one in zip(weights, numbers, strict=True)]).sum().backward()
        found += [one.detach() for one in numbers[:3]]
    return torch.cat(found), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _weights(rows: Rows) -> Tensor:
    """One number for each trainable token, from its sequence and its place."""
    code = (rows.ids.double() * torch.arange(1, rows.ids.shape[1] + 1)).cumsum(1)
    return code[rows.row_of_token, rows.column_of_token] + rows.column_of_token


def one_by_one(rows: Rows) -> list[Rows]:
    """Each row alone, without padding."""
    alone: list[Rows] = []
    for row, last in enumerate(rows.last_column.tolist()):
        own = rows.column_of_token[rows.row_of_token == row]
        alone.append(Rows(rows.ids[row : row + 1, : last + 1], torch.zeros_like(own), own, torch.tensor([last])))
    return alone


def worst(first: tuple[Tensor, dict[str, Tensor]], second: tuple[Tensor, dict[str, Tensor]]) -> float:
    """The largest difference of a gradient, of the largest gradient of the parameter."""
    assert first[1].keys() == second[1].keys()
    errors = [(first[1][name] - grad).abs().max() / grad.abs().max() for name, grad in second[1].items()]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())


def read(model: PreTrainedModel) -> Plain:
    plain = read_plain(model)
    assert isinstance(plain, Plain), plain
    return plain


@pytest.mark.parametrize("name", KNOWN)
def test_the_lean_pass_has_the_numbers_and_gradients_of_the_models_own(name: str, wide_norms: None) -> None:
    model = built(KNOWN[name]).double()
    rows = drawn_rows(3, ids=4)
    own, lean = gradients(model, [rows], plain=None), gradients(model, [rows], plain=read(model))
    torch.testing.assert_close(lean[0], own[0], atol=1e-12, rtol=1e-12)
    assert worst(lean, own) < 1e-12


def test_rows_together_have_the_gradients_of_rows_one_by_one(wide_norms: None) -> None:
    model = built(KNOWN["qwen3, biases, padding id"]).double()
    rows = drawn_rows(0, ids=4)
    together = gradients(model, [rows], plain=read(model))
    assert worst(together, gradients(model, one_by_one(rows), plain=read(model))) < 1e-12
    assert worst(together, gradients(model, one_by_one(rows), plain=None)) < 1e-12


def test_attention_in_tiles_has_the_same_gradients(wide_norms: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows keep no table of probabilities."""
    model = built(KNOWN["qwen3, grouped, tied, heads wider than hidden"]).double()
    rows = drawn_rows(1, ids=4)
    table = gradients(model, [rows], plain=read(model))
    monkeypatch.setattr("trimtab.train.pieces.LONGEST_TABLE", 1)
    assert worst(table, gradients(model, [rows], plain=read(model))) < 1e-12


def test_large_matrices_are_not_stacked_and_have_the_same_gradients(
    wide_norms: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(KNOWN["llama, all biases, tied"]).double()
    rows = drawn_rows(1, ids=4)
    stacked = gradients(model, [rows], plain=read(model))
    monkeypatch.setattr("trimtab.train.lean.STACKED", 0)
    assert worst(stacked, gradients(model, [rows], plain=read(model))) < 1e-12


def test_a_support_of_each_token_is_kept_apart(wide_norms: None) -> None:
    """Equal tokens after equal beginnings, of which one was drawn from fewer ids."""
    model = built(KNOWN["qwen3"]).double()
    ids = torch.tensor([[5, 6, 7], [5, 6, 7]])
    support = torch.tensor([7, 9, 7, 9, 11, 12]), torch.tensor([2, 4])
    rows = Rows(ids, torch.tensor([0, 1]), torch.tensor([2, 2]), torch.tensor([2, 2]), support)
    own, lean = (token_pass(model, rows, temperature=1.0, plain=plain) for plain in (None, read(model)))
    torch.testing.assert_close(lean.logp, own.logp, atol=1e-12, rtol=0)
    assert float(lean.logp[0]) > float(lean.logp[1])


def test_in_float32_the_lean_pass_is_checked_and_used() -> None:
    for make in KNOWN.values():
        assert isinstance(checked_plain(built(make)), Plain)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_runs_as_it_is(name: str) -> None:
    make, why = UNKNOWN[name]
    told = checked_plain(built(make))
    assert isinstance(told, str)
    assert why in told


def test_a_known_model_whose_lean_pass_differs_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.train.lean.gated", lambda joined: joined.chunk(2, -1)[0])
    told = checked_plain(built(KNOWN["llama, other angles"]))
    assert isinstance(told, str)
    assert "apart" in told
