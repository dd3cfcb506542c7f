"""Metrics of a batch mean what their names say, and stay inside their range."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from tests.outside_fields import APART, fields_for

import trimtab
from trimtab.signal import SignalBatch, SignalState, Stage, metric_spec, names, part, prepare, recipe


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


@pytest.mark.parametrize("name", [name for name in names() if name not in APART])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_metric_of_every_recipe_is_declared_and_inside_its_range(name: str, seed: int) -> None:
    given = drifted(seed)
    logp = (given["logp_old"] - 0.2).clone().requires_grad_()
    critic = {
        "value": torch.zeros(6, 5, dtype=torch.float64, requires_grad=True),
        "value_old": torch.zeros(6, 5, dtype=torch.float64),
    }
    more = fields_for(recipe(name), (6, 5), 6) | (critic if "value" in recipe(name).needs else {})
    more |= {"entropy": torch.rand(6, 5, dtype=torch.float64)} if "entropy" in recipe(name).needs else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, metrics = trimtab.loss(logp, recipe=name, **given, **more)
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
