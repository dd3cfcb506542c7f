"""The lean decode step is the model's own forward pass, for every model that it takes, and takes no other."""

import pytest
import torch
from tests.known_models import KNOWN, UNKNOWN, built
from torch import Tensor
from torch.nn.functional import pad

from trimtab.rollout.cache import RowCache
from trimtab.rollout.decode import Forward, Prompts
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.forward import Own, fastest_forward
from trimtab.rollout.lean import Lean, _normed
from trimtab.rollout.plain import Plain, read_plain
from trimtab.rollout.weights import digest
from trimtab.train.policy import frozen_copy, published


def logits(forward: Forward, seed: int) -> Tensor:
    """A prefill of ragged prompts and some steps; rows leave and part; others enter beside them; then more steps."""
    stream = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randint(0, 24, (rows, columns), generator=stream)

    def fill(hidden: Tensor, width: int) -> tuple[Tensor, RowCache]:
        cache, ids = RowCache(), drawn(len(hidden), width)
        return forward(ids, hidden, Prompts(ids, hidden, hidden).position, cache), cache

    def step(first: Tensor, cache: RowCache, *entering: Prompts) -> Tensor:
        position = (cache.end - first)[:, None]
        return forward(drawn(len(first), 1), first - cache.start, position, cache, entering)

    first = torch.tensor([3, 0, 5, 1])
    found, cache = fill(first, 7)
    every = [found, *(step(first, cache) for _ in range(3))]
    rows = torch.tensor([3, 3, 0])
    first = first[rows] + cache.take(rows, [(2, cache.end - 1), (1, cache.end - 3)])
    assert len(cache.bands) == 2
    every.append(step(first, cache))
    for width, rows in ((4, [3, 1]), (30, [0, 4])):  # one in the place of another, one behind the last
        first = first + cache.fit(max(rows) + 1, 1, width)
        cache.see_from(rows, cache.end + 1 - width)
        late = Prompts(drawn(2, width), torch.tensor([0, 2]), torch.tensor(rows))
        every.append(step(first, cache, late))
        first = pad(first, (0, max(rows) + 1 - len(first)))
        first[rows] = cache.end - width + late.hidden
        every += [step(first, cache), step(first, cache)]
    even, whole = fill(torch.zeros(2, dtype=torch.int64), 5)  # nothing is hidden
    return torch.cat([*every, even, step(torch.zeros(2, dtype=torch.int64), whole)])


@torch.inference_mode()
def apart(name: str, seed: int = 0) -> float:
    """The largest difference of logits, of the largest logit. In float64 nothing is lost by another order."""
    model = built(KNOWN[name], seed).double()
    plain = read_plain(model)
    assert isinstance(plain, Plain), plain
    expected, found = logits(Own(model), seed), logits(Lean(plain), seed)
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
    monkeypatch.setattr("trimtab.rollout.lean._turned", lambda heads, cos, sin: heads.clone())
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_weighed", [True, False])
def test_a_norm_is_that_of_the_models_in_every_format(dtype: torch.dtype, is_weighed: bool) -> None:
    values = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, -1.0]], dtype=dtype)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype) if is_weighed else None
    # means of squares 25/4 and 1, with eps 1/4 and 3: roots sqrt(6.5) and 2
    found = _normed(values, weight, 0.25)[0], _normed(values, weight, 3.0)[1]
    factor = [1.0, 2.0, 3.0, 4.0] if is_weighed else [1.0] * 4
    expected = [[f * x / 6.5**0.5 for f, x in zip(factor, (3.0, 4.0, 0.0, 0.0), strict=True)],
                [f * x / 2.0 for f, x in zip(factor, (1.0, 1.0, 1.0, -1.0), strict=True)]]  # fmt: skip
    torch.testing.assert_close(
        torch.stack(found).double(),
        torch.tensor(expected).double(),
        rtol=1e-2 if dtype == torch.bfloat16 else 1e-6,
        atol=0,
    )
