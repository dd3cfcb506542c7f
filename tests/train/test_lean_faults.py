"""Faults planted into the fast parts alone: each shows in a value or a gradient, and not only as a crash."""

import importlib
from typing import Any

import pytest
import torch
from mutants.edit import edited
from tests.known_models import KNOWN, built
from tests.rollout.test_lean import apart
from tests.train.test_distinct import drawn_rows
from tests.train.test_lean import gradients, read, wide_norms, worst

__all__ = ["wide_norms"]

MODEL = "qwen3, biases, padding id"
LEARNER = [
    ("distinct:distinct", "number[name[owners, :columns]]", "number[name[owners, :columns] * read[owners, :columns]]"),
    ("distinct:distinct", "name.reshape(-1)[targets - 1]", "name.reshape(-1)[targets]"),
    ("distinct:distinct", "position=torch.from_numpy(cells % width)", "position=torch.from_numpy(2 * (cells % width))"),
    ("distinct:_first_row", "np.logical_and.accumulate(ranked[1:] == ranked[:-1], axis=1)", "ranked[1:] != -1"),
    ("distinct:_first_row", "found[order] = order[latest]", "found[order] = latest"),
    ("lean:hidden_states", ", padding_idx=plain.padding", ""),
    ("lean:_layer", "_add_linear(hidden, gated", "_add_linear(normed, gated"),
    ("lean:_attend", "one.repeat_interleave(plain.heads // plain.key_heads, 1)", "one.repeat(1, 2, 1, 1)"),
    ("lean:_add_linear", "return values + functional.linear", "return functional.linear"),
    ("pieces:_norm_backward", "value=-1", "value=1"),
    ("pieces:_norm_backward", ".mul_(scale)", ""),
    ("pieces:_RmsNorm.backward", "wide * weight.to(wide.dtype)", "wide"),
    ("pieces:_RmsNorm.backward", "(wide * normed).sum(0)", "wide.sum(0)"),
    ("pieces:_Heads.forward", "key_norm.expand(keys, -1)", "query_norm.expand(keys, -1)"),
    ("pieces:_Heads.backward", "_turn(to_key, cos, -sin,", "_turn(to_key, cos, sin,"),
    ("pieces:_Heads.backward", "grad[:, both:] = to_value", "grad[:, both:] = 0"),
    ("pieces:_Heads.backward", "to_weight[:queries].sum(0), ", "to_weight[0], "),
    ("pieces:_Attention.forward", "triu_(1)", "triu_(2)"),
    ("pieces:_Attention.backward", ".mul_(query.shape[-1] ** -0.5)", ""),
    ("pieces:_Attention.forward", "query * size**-0.5", "query * size**-1.0"),
    ("pieces:_Attention.backward", "torch.bmm(share.transpose(1, 2), flat)", "torch.bmm(share, flat)"),
    ("pieces:_Gated.backward", "torch.mul(grad, opened, out=to_up)", "torch.mul(grad, gate, out=to_up)"),
    ("pieces:_Gated.backward", "grad_input(grad * up, gate,", "grad_input(grad, gate,"),
]  # fmt: skip
SAMPLER = [
    ("Lean.__call__", "block.columns, -1)[:, -1]", "block.columns, -1)[:, 0]"),
    ("Lean.__call__", "_normed(values, layer.feed_norm, plain.eps)", "_normed(values, None, plain.eps)"),
    ("Lean.__call__", "* plain.rope_scale", "* plain.eps"),
    ("Lean._attend", "layer.key_norm.expand(", "layer.query_norm.expand("),
    ("_mix", "is_causal=block.bias is None", "is_causal=False"),
    ("_mix", "store.put(block.into, key, value)", "store.put(block.into, value, key)"),
    ("_mix_bands", "keys[own, :, first:], values[own", "keys[own, :, first:], values.flip(0)[own"),
    ("_blocks", "first - cache.start", "first - cache.start + 1"),
    ("_bias", "place >= hidden[:, None, None]", "place > hidden[:, None, None]"),
    ("_bias", "& (place <= here)", ""),
    ("_normed", ".add_(eps)", ""),
    ("_turned", ", -1), sin)", ", -1), -sin)"),
    ("_mix_one", "* size**-0.5", ""),
    ("_mix_one", "if bias is not None:", "if False:"),
    ("_add", "out.add_(layer.bias)", "out"),
]  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, module: str, path: str, old: str, new: str) -> None:
    """Replace the function wherever the package knows it."""
    owner = importlib.import_module(module)
    *outer, name = path.split(".")
    owner = getattr(owner, outer[0]) if outer else owner
    was = vars(owner)[name]
    now = edited(was, old, new)
    monkeypatch.setattr(owner, name, staticmethod(now) if isinstance(was, staticmethod) else now)
    for user in ("trimtab.train.lean", "trimtab.train.logp"):
        known = importlib.import_module(user)
        if vars(known).get(name) is was:
            monkeypatch.setattr(known, name, now)


def some(faults: list[tuple[str, str, str]]) -> list[Any]:
    """By default every fourth fault; all of them in `make test-all`."""
    slow = pytest.mark.slow
    return [pytest.param(*fault, marks=() if place % 4 == 0 else slow) for place, fault in enumerate(faults)]


def learner_error() -> float:
    """The largest difference of a number or gradient from the model's own pass, on two models and many rows."""
    errors: list[float] = []
    for name in (MODEL, "qwen3, grouped, tied, heads wider than hidden"):
        model = built(KNOWN[name]).double()
        for seed in (0, 3):
            rows = drawn_rows(seed, ids=4)
            for after in (True, False):
                own, lean = (gradients(model, [rows], plain=plain, after=after) for plain in (None, read(model)))
                errors += [worst(lean, own), float((lean[0] - own[0]).abs().max().nan_to_num(torch.inf))]
    return max(errors)


@pytest.mark.parametrize(("place", "old", "new"), some(LEARNER))
def test_a_fault_in_the_lean_pass_shows(
    place: str, old: str, new: str, wide_norms: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, path = place.partition(":")
    plant(monkeypatch, f"trimtab.train.{module}", path, old, new)
    assert learner_error() > 1e-6


def test_without_a_fault_the_lean_pass_is_right(wide_norms: None) -> None:
    assert learner_error() < 1e-11


@pytest.mark.parametrize(("path", "old", "new"), some(SAMPLER))
def test_a_fault_in_the_lean_decode_step_shows(path: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "trimtab.rollout.lean", path, old, new)
    assert max(apart(name) for name in ("qwen3", "llama, all biases, tied")) > 1e-8
