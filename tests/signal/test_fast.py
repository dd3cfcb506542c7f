"""The fast path gives what the formulas give as they are written, on the processor and as on a device."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.outside_fields import fields_for
from tests.signal.paths import batch_of, on, recipes, run, worst_difference

from trimtab.errors import SignalError
from trimtab.signal import Recipe, Stage, fused_loss, names, part, recipe, use_metrics, use_path
from trimtab.signal.fast import is_fast, shortcuts_of
from trimtab.signal.fast.choice import of_process
from trimtab.signal.fast.fused import zero_where
from trimtab.signal.group import group_index, renumbered
from trimtab.signal.layout import Segments
from trimtab.signal.ratio import Ratio

PATHS = ("fast", "device")
ALL = recipes()
CLIPPED = [one for one in ALL if one.loss.part.formula.name in ("policy_loss.clipped", "policy_loss.dual_clipped")]


@pytest.fixture(autouse=True)
def default_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TRIMTAB_PATH", raising=False)
    of_process.cache_clear()
    yield
    of_process.cache_clear()


def both(path: str, one: Recipe, dtype: torch.dtype = torch.float64, **how: object) -> float:
    given = batch_of(dtype=dtype, spread=0.4)
    with on(path):
        found = run(one, given, **how)
    with on("reference"):
        return worst_difference(found, run(one, given, **how))


@pytest.mark.parametrize(
    ("one", "path"),
    [
        pytest.param(
            one, path, id=f"{one.loss.part.formula.name}-{one.weighting.formula.name}-{path}",
            marks=pytest.mark.slow if path == "device" and number % 3 else (),
        )
        for number, one in enumerate(ALL)
        for path in PATHS
    ],
)  # fmt: skip
def test_every_number_is_the_one_of_the_formulas(one: Recipe, path: str) -> None:
    assert both(path, one) < 1e-12
    assert both(path, one, parts=3) < 1e-12


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.loss.part.formula.name}-{one.weighting.formula.name}")
def test_in_float32_it_is_as_close_as_float32_can_tell(one: Recipe) -> None:
    """Ratios come from an exponential in float64 and are rounded once, so they may differ in the last bit."""
    assert both("fast", one, torch.float32) < 2e-6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name in names() if "legacy" not in name])
def test_every_named_recipe_is_the_same_on_both_paths(name: str, path: str) -> None:
    chosen = recipe(name)
    given = batch_of()
    if not chosen.value:
        given = {**given, "value_old": None, "value_after": None}
    given |= fields_for(chosen, given["logp_old"].shape, 8)
    with on(path):
        found = run(chosen, given, updates=1)
    with on("reference"):
        assert worst_difference(found, run(chosen, given, updates=1)) < 1e-12


@pytest.mark.parametrize("path", PATHS)
def test_episodes_of_several_sequences_and_several_updates(path: str) -> None:
    for one in (ALL[2], ALL[4], ALL[13]):
        given = batch_of(episodes=True)
        with on(path):
            found = run(one, given, parts=2, updates=2)
        with on("reference"):
            assert worst_difference(found, run(one, given, parts=2, updates=2)) < 1e-12


@pytest.mark.parametrize("one", CLIPPED)
def test_the_gradient_of_a_clipped_loss_has_the_same_bits(one: Recipe) -> None:
    """For equal advantages: numpy and torch add in another order, so a spread may differ in its last bit."""
    plain = replace(one, normalize=part("normalize.raw"))
    given = batch_of(seed=3)
    with on("fast"):
        found = run(plain, given)["gradient of logp"]
    with on("reference"):
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(run(plain, given)["gradient of logp"]))


def test_ratios_beyond_the_bound_have_no_gradient_on_either_path() -> None:
    given = batch_of()
    given["logp_current"][::3] = -30.0
    for one in ALL:
        with on("fast"):
            found = run(one, given)
        with on("reference"):
            assert worst_difference(found, run(one, given)) < 1e-12, one.loss


def test_a_second_derivative_is_refused() -> None:
    current = torch.full((4,), -1.0, requires_grad=True)
    loss = _loss_of(current)
    with pytest.raises(SignalError, match="a second derivative was asked for"):
        torch.autograd.grad(loss, current, create_graph=True)
    with use_path("reference"):
        (slope,) = torch.autograd.grad(_loss_of(current), current, create_graph=True)
    assert slope.requires_grad


def test_a_second_backward_over_the_same_loss_is_refused() -> None:
    current = torch.full((4,), -1.0, requires_grad=True)
    loss = _loss_of(current)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def _loss_of(current: torch.Tensor) -> torch.Tensor:
    import trimtab
    from trimtab.signal import SignalBatch, decide, prepare, token_loss

    batch = SignalBatch.from_tokens(
        [2, 2], reward=[1.0, 0.0], group=[0, 0], logp_old=torch.full((4,), -1.1), logp_rollout=torch.full((4,), -1.1)
    )
    assert trimtab.recipe("grpo").loss.part.formula.name == "policy_loss.clipped"
    prepared, _ = prepare(batch, trimtab.recipe("grpo", kl=None))
    (micro,) = decide(next(prepared.updates(1))).split(num=1)
    return token_loss(micro, current).loss


def test_a_formula_from_outside_runs_without_any_extra_step() -> None:
    one = recipe("tis", loss=Stage(part("outside_formulas.leaky"), anchor="old"))
    assert "as written: " in shortcuts_of(one) or "policy_loss" not in shortcuts_of(one)
    assert both("fast", one) < 1e-12


def test_the_path_is_named_and_a_wrong_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = recipe("tis")
    assert shortcuts_of(one).startswith("fast; ")
    with use_path("reference"):
        assert not is_fast()
        assert shortcuts_of(one) == "reference"
        with use_path("fast"):
            assert is_fast()
        assert not is_fast()
    assert is_fast()
    monkeypatch.setenv("TRIMTAB_PATH", "reference")
    of_process.cache_clear()
    assert not is_fast()
    monkeypatch.setenv("TRIMTAB_PATH", "quick")
    of_process.cache_clear()
    with pytest.raises(SignalError, match="TRIMTAB_PATH"):
        is_fast()
    with pytest.raises(SignalError, match="slow"), use_path("slow"):  # type: ignore[arg-type]
        pass


def test_few_metrics_are_those_that_all_have_less_ratios_of_the_current_policy_and_histograms() -> None:
    one, given = ALL[2], batch_of()
    everything = run(one, given)
    with use_metrics("few"):
        few = run(one, given)
    left_out = everything.keys() - few.keys()
    assert left_out
    assert {name.split("/")[0].split("_")[-1] for name in left_out} == {"update", "total", "engine"}
    assert {name for name in left_out if "engine" in name} == {"logratio_engine"}  # its histogram
    assert worst_difference({n: everything[n] for n in few}, few) < 1e-15
    with pytest.raises(SignalError, match="none"), use_metrics("none"):  # type: ignore[arg-type]
        pass


def test_zero_where_does_not_care_what_it_drops() -> None:
    values = torch.tensor([1.5, float("nan"), float("-inf"), -2.0])
    dropped = torch.tensor([False, True, True, False])
    for dtype in (torch.float32, torch.float64):
        assert zero_where(dropped, values.to(dtype)).tolist() == [1.5, 0.0, 0.0, -2.0]


def test_groups_are_numbered_in_the_order_of_their_names_and_lone_ones_are_noticed() -> None:
    index, facts = group_index(torch.tensor([7, -1, 7, 3]))
    assert (index.tolist(), facts.tolist()) == ([2, 0, 2, 1], [3, 1])
    index, num = renumbered(torch.tensor([5, 5, 2, 2]))
    assert (index.tolist(), num, index.has_company) == ([1, 1, 0, 0], 2, True)
    index, num = renumbered(torch.tensor([4]))
    assert (index.tolist(), num, index.has_company) == ([0], 1, False)
    assert renumbered(torch.zeros(0, dtype=torch.long))[1] == 0


@pytest.mark.parametrize("name", ["reinforce", "clipped", "dual_clipped", "clipped_importance", "soft_gated"])
def test_a_fused_loss_by_itself_is_its_formula_weighted_and_summed(name: str) -> None:
    given = batch_of(seed=2)
    weight, advantage = torch.rand(28, dtype=torch.float64), torch.randn(28, dtype=torch.float64)
    chosen, old = part(f"policy_loss.{name}"), given["logp_old"].clone()
    old[3] = -40.0  # beyond the bound of a ratio
    slopes: list[torch.Tensor] = []
    for is_fused in (True, False):
        current = given["logp_current"].clone().requires_grad_()
        inputs = {"logp_current": current, "logp_anchor": old, "advantage": advantage}
        if is_fused:
            loss = fused_loss(chosen, current, None if name == "reinforce" else old, advantage, weight)
        else:
            loss = (chosen(inputs)[0] * weight).sum()
        loss.backward()
        slopes += [loss.detach(), current.grad]
    torch.testing.assert_close(slopes[0], slopes[2], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes[1], slopes[3], rtol=1e-12, atol=1e-12)


def test_a_loss_that_is_not_fused_is_refused_by_name() -> None:
    tokens = torch.full((3,), -1.0)
    for name in ("cross_entropy", "covariance_clipped"):
        with pytest.raises(SignalError, match=f"policy_loss.{name} cannot run by itself"):
            fused_loss(part(f"policy_loss.{name}"), tokens, tokens, tokens, tokens)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numpy_is_as_quiet_as_torch_where_nothing_is_kept_or_nobody_votes() -> None:
    """A division by zero is an outcome here, counted and named; a warning of numpy would say nothing more."""
    before = np.geterr()
    nothing = (Stage(part("keep.geometric_band", band=(1 - 1e-12, 1 + 1e-12)), ratio="engine"),)
    unscored = {**batch_of(), "scored": torch.zeros(8, dtype=torch.bool)}
    for one in ALL:
        run(one, batch_of())
    for weighting in ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"):
        run(
            recipe("grpo", kl=None, correction=nothing, weighting=part(f"weighting.{weighting}", over="kept")),
            batch_of(),
        )
    for normalize in ("mean_std", "leave_one_out"):
        run(recipe("grpo", kl=None, normalize=part(f"normalize.{normalize}")), unscored)
    assert np.geterr() == before


@pytest.mark.parametrize("scale", [1e-9, 1e-5, 0.02, 1.0])
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_spread_of_a_ratio_is_exact_however_narrow_it_is(scale: float, shift: float) -> None:
    logs = shift + scale * torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    segments = Segments(torch.tensor([400, 0, 600]), 1000)
    ratio = logs.exp()
    apart = (ratio - ratio.mean()).square().sum()
    assert Ratio(logs, segments).sums.around == pytest.approx(float(apart), rel=1e-6 if scale < 1e-8 else 1e-9)


@pytest.mark.parametrize("block", [1, 7])
@pytest.mark.parametrize("one", ALL[:4], ids=lambda one: one.name)
def test_a_walk_in_blocks_finds_the_same(one: Recipe, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than fit into a block: half a million by default, a few here."""
    given = batch_of(dtype=torch.float64, spread=0.4)
    with on("reference"):
        expected = run(one, given)
    monkeypatch.setattr("trimtab.signal.ratio.BLOCK", block)
    with on("fast"):
        assert worst_difference(run(one, given), expected) < 1e-12
