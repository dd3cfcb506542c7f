"""The lean decode step is the model's own forward pass, for every model that it takes, and takes no other."""

import pytest
import torch
from tests.known_models import KNOWN, UNKNOWN, built
from torch import Tensor

from trimtab.rollout.cache import RowCache
from trimtab.rollout.decode import Forward
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.forward import Own, fastest_forward
from trimtab.rollout.lean import Lean
from trimtab.rollout.plain import Plain, read_plain
from trimtab.rollout.weights import digest
from trimtab.train.policy import frozen_copy, published


def logits(forward: Forward, seed: int) -> Tensor:
    """A prefill of ragged prompts and some steps; then rows leave, part and are joined by others; then more steps."""
    stream = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randint(0, 24, (rows, columns), generator=stream)

    def fill(hidden: Tensor, width: int) -> tuple[Tensor, RowCache]:
        cache = RowCache()
        position = (torch.arange(width) - hidden[:, None]).clamp_min(0)
        return forward(drawn(len(hidden), width), hidden, position, cache), cache

    def step(hidden: Tensor, cache: RowCache) -> Tensor:
        return forward(drawn(len(hidden), 1), hidden, (cache.get_seq_length() - hidden)[:, None], cache)

    hidden = torch.tensor([3, 0, 5, 1])
    first, cache = fill(hidden, 7)
    found = [first, *(step(hidden, cache) for _ in range(3))]
    rows = torch.tensor([0, 3, 3])
    cache.take(rows, 1)
    hidden = hidden[rows] - 1
    found.append(step(hidden, cache))
    late, more = fill(torch.tensor([0, 2]), 4)
    cache.join(more)
    hidden = torch.cat([hidden, torch.tensor([0, 2]) + cache.get_seq_length() - 4])
    found += [late, step(hidden, cache), step(hidden, cache)]
    even, whole = fill(torch.zeros(2, dtype=torch.int64), 5)  # nothing is hidden
    return torch.cat([*found, even, step(torch.zeros(2, dtype=torch.int64), whole)])


@torch.inference_mode()
def apart(name: str, seed: int = 0) -> float:
    """The largest difference of logits, of the largest logit. In float64 nothing is lost by another order."""
    model = built(KNOWN[name], seed).double()
    plain = read_plain(model)
    assert isinstance(plain, Plain), plain
    expected, found = logits(Own(model), seed), logits(Lean(plain).forward, seed)
    return float((found - expected).abs().max().nan_to_num(torch.inf) / expected.abs().max())


@pytest.mark.parametrize("name", KNOWN)
def test_the_lean_step_is_the_models_own_forward_pass(name: str) -> None:
    assert max(apart(name, seed) for seed in range(2)) < 1e-10


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_runs_as_it_is(name: str) -> None:
    make, why = UNKNOWN[name]
    forward, told = fastest_forward(built(make).float() if name != "half precision" else built(make))
    assert isinstance(forward, Own)
    assert told.startswith("transformers (")
    assert why in told


def test_a_known_model_whose_lean_step_differs_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(KNOWN["qwen3"])
    monkeypatch.setattr("trimtab.rollout.lean._turned", lambda heads, turn: heads.clone())
    forward, told = fastest_forward(model)
    assert isinstance(forward, Own)
    assert "apart" in told


@pytest.mark.parametrize("name", KNOWN)
def test_an_engine_samples_lean_what_the_model_says_after_every_load(name: str) -> None:
    """Matrices that lie joined are still the model's own: a second load reaches them."""
    engine = Embedded(frozen_copy(built(KNOWN[name])), pad_id=0, eos_ids=(1,))
    assert engine.decode == ""
    for version in range(2):
        model = built(KNOWN[name], seed=version + 5)
        state = published(model)
        engine.load(state, version, digest(state))
        assert engine.decode.startswith("lean ")
        asked = [Request(ids, 10 * row) for row, ids in enumerate([(5, 6, 7), (8,), (5, 6, 7), (5, 6, 7)])]
        for request, sample in zip(asked, engine.sample(asked, Sampling(6, 1.3)), strict=True):
            ids = torch.tensor([[*request.ids, *sample.ids]])
            with torch.no_grad():
                table = torch.log_softmax(model(input_ids=ids).logits[0, len(request.ids) - 1 : -1] / 1.3, -1)
            expected = table.gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]
            torch.testing.assert_close(sample.logp, expected, atol=2e-4, rtol=1e-4)
