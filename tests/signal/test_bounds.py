"""Where a number stops being possible: each bound is tried on itself, and on both sides of it."""

import math
import warnings

import pytest
import torch

import trimtab
from trimtab.errors import SignalError
from trimtab.signal import KL, SignalBatch, Stage, Term, part, recipe
from trimtab.signal.catalogue import Band, Ceiling, Count, Finite, NonNegative, Positive, Unit
from trimtab.signal.tensors import as_count

INF = math.inf
TINY = 5e-324

# Setting type, what it takes, what it refuses.
SETTINGS = {
    "band": (Band, [(0.0, 1.0), (0.5, 1.0), (1.0, 1.5), (0.0, INF)], [(-0.1, 1.2), (1.0, 1.0), (1.1, 1.2), (0.5, 0.9)]),
    "positive": (Positive, [TINY, 1.0, 1e300], [0.0, -1.0, INF]),
    "ceiling": (Ceiling, [TINY, 1.0, INF], [0.0, -1.0]),
    "non-negative": (NonNegative, [0.0, 1.0, 1e300], [-TINY, INF]),
    "count": (Count, [0, 1, 10**9], [-1]),
    "finite": (Finite, [0.0, -1e300, 1e300], [INF, -INF]),
    "unit": (Unit, [0.0, 0.5, 1.0], [-TINY, 1 + 1e-12]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_kind_of_setting_takes_its_ends_and_nothing_beyond(name: str) -> None:
    kind, takes, refuses = SETTINGS[name]
    rules = kind.__metadata__
    for value in takes:
        assert all(rule.holds(value) for rule in rules), value
    for value in refuses:
        assert not all(rule.holds(value) for rule in rules), value


@pytest.mark.parametrize("coef", [0.0, 1e300])
def test_a_coefficient_of_0_or_more_is_taken(coef: float) -> None:
    assert KL(part("kl.k3"), coef, "loss").coef == Term(coef).coef == coef


@pytest.mark.parametrize("coef", [-TINY, INF, math.nan])
def test_a_coefficient_below_0_or_without_end_is_refused(coef: float) -> None:
    for make in (lambda: KL(part("kl.k3"), coef, "loss"), lambda: Term(coef)):
        with pytest.raises(SignalError, match="coef"):
            make()


@pytest.mark.parametrize(("bound", "fine"), [(TINY, True), (1e300, True), (0.0, False), (-1.0, False), (INF, False)])
def test_an_advantage_is_clipped_at_a_number_above_0(bound: float, fine: bool) -> None:
    if fine:
        assert recipe("grpo", clip_advantage=bound).clip_advantage == bound
    else:
        with pytest.raises(SignalError, match="clip_advantage"):
            recipe("grpo", clip_advantage=bound)


def test_a_count_starts_at_its_least() -> None:
    assert as_count(1, "here", "num") == 1
    assert as_count(0, "here", "num", least=0) == 0
    with pytest.raises(SignalError, match=r"num = 0 is not possible\. Give a whole number, 1 or more"):
        as_count(0, "here", "num")
    for value, least in ((0, 1), (-1, 0), (True, 0), (1.0, 0)):
        with pytest.raises(SignalError, match=f"Give a whole number, {least} or more"):
            as_count(value, "here", "num", least=least)


def two_answers(**fields: object) -> SignalBatch:
    given = {"reward": [1.0, 0.0], "group": [0, 0]} | fields
    return SignalBatch.from_padded([[1, 1], [1, 1]], **given)


@pytest.mark.parametrize("name", ["logp_old", "logp_rollout", "logp_ref"])
def test_a_log_prob_may_lie_1e_4_above_0_for_rounding(name: str) -> None:
    values = torch.full((2, 2), -1.0, dtype=torch.float64)
    values[1, 0] = 1e-4
    assert getattr(two_answers(**{name: values}), name)[2] == 1e-4
    values[0, 1], values[1, 0] = 1e-4, 1.01e-4
    with pytest.raises(SignalError, match=f"{name} is 0.000101 at token 0 of sequence 1"):
        two_answers(**{name: values})


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_up_to_1e18_are_taken(sign: int) -> None:
    """Their squares stay below 3.4e38, the largest float32."""
    values = torch.zeros(2, 2, dtype=torch.float64)
    values[0, 1] = sign * 1e18
    assert two_answers(value_old=values).value_old[1] == sign * 1e18
    assert two_answers(reward=[sign * 1e18, 0.0]).reward[0] == sign * 1e18
    for fields in ({"value_old": values * 1.01}, {"reward": [sign * 1.01e18, 0.0]}):
        with pytest.raises(SignalError):
            two_answers(**fields)


def test_a_veto_with_one_bound_has_one_bound() -> None:
    for settings in ({"low": 1.0}, {"high": 1.0}, {"low": 1.0, "high": 1.0}, {"low": 0.5}, {"high": 2.0}):
        assert Stage(part("keep.veto", **settings), ratio="engine")
    for settings in ({}, {"low": 1.01}, {"high": 0.99}, {"low": 0.5, "high": 0.9}):
        with pytest.raises(SignalError):
            part("keep.veto", **settings)


@pytest.mark.parametrize("scale", [1e-30, -2.0, 1.0, 1e30])
def test_a_scale_of_the_gradient_is_any_number_but_0(scale: float) -> None:
    logp = torch.full((2, 2), -1.0, requires_grad=True)
    given = {"mask": [[1, 1], [1, 1]], "reward": [1.0, 0.0], "group": [0, 0]}
    loss, _ = trimtab.loss(logp, recipe="start_on_policy", grad_scale=scale, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (loss * scale).backward()
    for bad in (0.0, INF, -INF, math.nan):
        with pytest.raises(SignalError, match="grad_scale"):
            trimtab.loss(logp, recipe="start_on_policy", grad_scale=bad, **given)
