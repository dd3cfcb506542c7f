"""Metrics merge, mean what they say, and stay inside their range."""

import math
import warnings
from dataclasses import replace

import pytest
import torch

import trimtab
from trimtab.signal import SignalBatch, SignalState, Stage, metric_spec, names, part, prepare, recipe
from trimtab.signal.metrics import Extremum, Histogram, Mean, Metrics, SampleSize, Spread, Sum

VALUES = torch.tensor([3.0, -1.0, 0.5, 8.0, 2.0, 2.0, -4.0], dtype=torch.float64)
MAKERS = {
    "mean": lambda v: Mean.of(v),
    "sum": lambda v: Sum.of(v),
    "max": lambda v: Extremum.of(v, 1),
    "min": lambda v: Extremum.of(v, -1),
    "std": lambda v: Spread.of(v),
    "ess": lambda v: SampleSize.of(v.abs()),
}


def value(metric: object) -> float:
    return Metrics({"x": metric}, {}).numbers()["x"]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("cut", range(8))
def test_merging_parts_gives_the_metric_of_the_whole(kind: str, cut: int) -> None:
    merged = MAKERS[kind](VALUES[:cut]).merge(MAKERS[kind](VALUES[cut:]))
    assert value(merged) == pytest.approx(value(MAKERS[kind](VALUES)), rel=1e-12)


def test_each_kind_equals_its_definition() -> None:
    assert value(MAKERS["mean"](VALUES)) == pytest.approx(10.5 / 7)
    assert value(MAKERS["std"](VALUES)) == pytest.approx(VALUES.std(correction=0).item())
    assert (value(MAKERS["max"](VALUES)), value(MAKERS["min"](VALUES))) == (8.0, -4.0)
    weights = VALUES.abs()
    assert value(MAKERS["ess"](VALUES)) == pytest.approx((weights.sum() ** 2 / (7 * (weights**2).sum())).item())


def test_the_spread_of_large_equal_numbers_is_zero() -> None:
    """E[x²] − E[x]² would leave a residue."""
    part_ = torch.full((4,), 1e8 + 0.1, dtype=torch.float64)
    assert value(Spread.of(part_).merge(Spread.of(part_))) == 0.0


def test_metrics_of_float32_numbers_are_computed_in_float64() -> None:
    # the mean of 2^24 and 2^24 + 2 is no float32, and 1e20 squared overflows in float32
    assert value(Spread.of(torch.tensor([2.0**24, 2.0**24 + 2]))) == 1.0
    assert value(SampleSize.of(torch.full((3,), 1e20))) == pytest.approx(1.0)
    assert value(Sum.of(torch.tensor([2.0**24, 1.0, 1.0]))) == 2**24 + 2
    edges = torch.tensor(Histogram.EDGES)  # as float32, none of them lies on its edge
    assert torch.equal(Histogram.of(edges).counts, Histogram.of(edges.double()).counts)
    assert value(Mean.of(torch.tensor([2.0**24, 1.0, 1.0]))) == pytest.approx((2**24 + 2) / 3, rel=1e-12)


def test_ess_reaches_its_extremes() -> None:
    assert value(SampleSize.of(torch.full((5,), 3.0))) == pytest.approx(1.0)
    assert value(SampleSize.of(torch.tensor([0.0, 0.0, 7.0, 0.0]))) == pytest.approx(0.25)


def test_a_fraction_of_nothing_is_zero_and_a_mean_of_nothing_is_left_out() -> None:
    nothing = torch.zeros(0, dtype=torch.bool)
    values = Metrics(
        {
            "fraction": Mean.fraction(nothing),
            "mean": Mean.of(nothing.double()),
            "max": Extremum.of(nothing.double(), 1),
            "std": Spread.of(nothing.double()),
            "ess": SampleSize.of(nothing.double()),
        },
        {},
    ).numbers()
    assert values == {"fraction": 0.0}


def test_a_real_nan_is_shown() -> None:
    assert math.isnan(value(Mean.of(torch.tensor([1.0, float("nan")]))))


def test_histograms_add_up() -> None:
    logratio = torch.linspace(-20, 20, 101, dtype=torch.float64)
    merged = Histogram.of(logratio[:40]).merge(Histogram.of(logratio[40:]))
    assert torch.equal(merged.counts, Histogram.of(logratio).counts)
    assert merged.counts.sum() == 101


def drifted(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -0.1 - torch.rand(6, 5, generator=generator, dtype=torch.float64)
    return {
        "mask": torch.rand(6, 5, generator=generator) > 0.3,
        "logp_old": old,
        "logp_rollout": (old + 2.0 * (torch.rand(6, 5, generator=generator, dtype=torch.float64) - 0.5)).clamp(
            max=-1e-3
        ),
        "logp_ref": -0.1 - torch.rand(6, 5, generator=generator, dtype=torch.float64),
        "reward": torch.rand(6, generator=generator, dtype=torch.float64).round(),
        "group": torch.tensor([0, 0, 1, 1, 1, 1]),
        "ended": torch.tensor([True, True, False, True, True, True]),
        "value_after": torch.zeros(6, dtype=torch.float64),
    }


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("seed", [0, 1])
def test_every_metric_of_every_recipe_is_declared_and_inside_its_range(name: str, seed: int) -> None:
    given = drifted(seed)
    logp = (given["logp_old"] - 0.2).clone().requires_grad_()
    critic = {
        "value": torch.zeros(6, 5, dtype=torch.float64, requires_grad=True),
        "value_old": torch.zeros(6, 5, dtype=torch.float64),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, metrics = trimtab.loss(logp, recipe=name, **given, **(critic if "value" in recipe(name).needs else {}))
    assert len(metrics) > 50
    for metric, number in metrics.items():
        spec = metric_spec(metric)
        assert spec.low - 1e-12 <= number <= spec.high + 1e-12, metric


def test_drift_metrics_equal_their_recomputation_from_raw_tokens() -> None:
    given = drifted(3)
    logp = (given["logp_old"] - 0.2).requires_grad_()
    _, metrics = trimtab.loss(logp, recipe="tis", **given)
    mask = given["mask"]
    gap = (given["logp_old"] - given["logp_rollout"])[mask]
    ratio = gap.exp()
    assert metrics["logratio_engine/token_abs_mean"] == pytest.approx(gap.abs().mean().item())
    assert metrics["k1_engine/token_mean"] == pytest.approx(-gap.mean().item())
    assert metrics["k3_engine/token_mean"] == pytest.approx((ratio - 1 - gap).mean().item())
    assert metrics["ess_engine/token"] == pytest.approx((ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())).item())
    products = torch.stack(
        [(given["logp_old"] - given["logp_rollout"])[i][mask[i]].sum().exp() for i in range(6) if mask[i].any()]
    )
    assert metrics["ratio_engine/sequence_max"] == pytest.approx(products.max().item())
    assert metrics["ess_engine/sequence"] == pytest.approx(
        (products.sum() ** 2 / (len(products) * (products**2).sum())).item()
    )
    assert metrics["importance.truncated/over_high_tokens"] == pytest.approx((ratio > 2).double().mean().item())
    assert metrics["ratio_update/token_mean"] == pytest.approx(math.exp(-0.2))


def test_effect_sizes_alone_and_on_top_of_the_others() -> None:
    """Two identical bands: each rejects by itself, neither on top of the other."""
    given = drifted(4)
    band = Stage(part("keep.token_band", band=(0.8, 1.25)), ratio="engine")
    _, metrics = trimtab.loss(given["logp_old"].clone(), recipe=recipe("tis", correction=(band, band)), **given)
    assert metrics["keep.token_band/alone"] == metrics["keep.token_band#2/alone"] > 0
    assert metrics["keep.token_band/on_top"] == metrics["keep.token_band#2/on_top"] == 0.0


def test_a_stage_that_does_nothing_over_a_window_warns() -> None:
    given = drifted(0)
    batch = SignalBatch.from_padded(
        given.pop("mask"), **{n: given[n] for n in ("reward", "group", "logp_old")}, logp_rollout=given["logp_old"]
    )
    chosen = recipe("geometric_mask")
    state = SignalState(window=3)
    said = []
    for _ in range(3):
        prepared, state = prepare(batch, chosen, state)
        said.append(prepared.warnings)
    assert said[0] == said[1] == ()
    assert said[2][0].startswith("keep.geometric_band: switched on, does nothing")


def test_drift_that_nobody_corrects_warns_and_a_correction_silences_it() -> None:
    given = drifted(1)
    fields = {n: given[n] for n in ("reward", "group", "logp_old", "logp_rollout")}
    batch = SignalBatch.from_padded(given["mask"], **fields)
    assert "corrects for none of it" in prepare(batch, recipe("dapo"))[0].warnings[0]
    assert prepare(batch, recipe("tis"))[0].warnings == ()


def test_drift_is_split_into_engine_and_staleness_by_version() -> None:
    old = torch.full((2, 2), -1.0, dtype=torch.float64)
    rollout = old + torch.tensor([[0.1, 0.1], [0.1, 0.5]])
    version = torch.tensor([[7, 7], [7, 4]])
    batch = SignalBatch.from_padded(
        torch.ones(2, 2),
        reward=torch.tensor([0.0, 1.0]),
        group=torch.tensor([0, 0]),
        logp_old=old,
        logp_rollout=rollout,
        version=version,
    )
    values = prepare(batch, recipe("tis"), version=7)[0].metrics.numbers()
    assert values["drift/engine_token_abs_mean"] == pytest.approx(0.1)
    assert values["drift/staleness_token_abs_mean"] == pytest.approx(0.5)
    assert values["drift/stale_token_fraction"] == 0.25


def test_votes_and_training_follow_the_table() -> None:
    """Design rule 3: scored, empty, not ended under each choice, constant groups, rejected early."""
    mask = torch.ones(6, 2)
    mask[1] = 0
    given = {
        "reward": torch.tensor([1.0, 0, 2, 0, 3, 3], dtype=torch.float64),
        "group": torch.tensor([0, 0, 0, 0, 1, 1]),
        "scored": torch.tensor([False, True, True, True, True, True]),
        "ended": torch.tensor([True, True, False, True, True, True]),
        "logp_old": torch.full((6, 2), -1.0, dtype=torch.float64),
        "logp_rollout": torch.full((6, 2), -1.0, dtype=torch.float64),
    }
    base = recipe("tis", correction=())
    expected = {
        "train": ([False, False, True, True, True, True], [False, False, True, True, True, True]),
        "suppress": ([False, False, False, True, True, True], [False, False, False, True, True, True]),
        "zero": ([False, False, False, True, True, True], [False, False, True, True, True, True]),
    }
    for choice, (votes, trains) in expected.items():
        prepared, _ = prepare(SignalBatch.from_padded(mask, **given), replace(base, not_ended=choice))
        assert (prepared.votes.tolist(), prepared.trains.tolist()) == (votes, trains)
    prepared, _ = prepare(SignalBatch.from_padded(mask, **given), replace(base, filter_constant_groups=True))
    assert prepared.trains.tolist() == [False, False, True, True, False, False]
    rejecting = replace(base, correction=(Stage(part("keep.veto", high=1.5), ratio="engine"),))
    given["logp_rollout"] = given["logp_rollout"].clone()
    given["logp_rollout"][3] = -2.0
    prepared, _ = prepare(SignalBatch.from_padded(mask, **given), rejecting)
    assert prepared.votes.tolist() == [False, False, True, False, True, True]
    assert prepared.trains.tolist() == [False, False, True, True, True, True]
    assert prepared.keep.tolist() == [True] * 4 + [False] * 2 + [True] * 4
    assert prepared.metrics.numbers()["groups_without_signal/group_fraction"] == 0.5


def test_parts_without_values_do_not_move_a_spread() -> None:
    nothing = Spread.of(torch.zeros(0))
    assert (float(nothing.value()[0]), bool(nothing.value()[1])) == (0.0, False)
    one, other = (Spread.of(torch.tensor([value], dtype=torch.float64)) for value in (3.0, 5.0))
    for joined in (nothing.merge(nothing).merge(one).merge(other), nothing.merge(one).merge(nothing).merge(other)):
        assert float(joined.value()[0]) == 1.0
        assert float(joined.mean) == 4.0


def test_a_single_weight_is_the_whole_sample_however_small() -> None:
    weight = torch.tensor([1.1e-150], dtype=torch.float64)
    assert float(SampleSize.of(weight).value()[0]) == pytest.approx(1.0)
