"""What every formula takes when nothing is said, written out. A default that drifts shows here."""

import inspect
from dataclasses import fields
from math import exp
from typing import Any

import pytest

from trimtab.signal import KL, Term, catalog

DEFAULTS: dict[str, dict[str, Any]] = {
    "advantage.gae": {"gamma": 1.0, "lam": 1.0, "lam_value": None},
    "advantage.gae_by_length": {"gamma": 1.0, "lam_value": 1.0},
    "advantage.gae_by_share": {"gamma": 1.0},
    "advantage.optimal_token_baseline": {"eps": 1e-08},
    "advantage.plus_teacher": {"coef": 1.0, "outcome_coef": 1.0},
    "advantage.reward_to_go": {"gamma": 1.0},
    "advantage.scaled_by_teacher": {"share": 0.5, "band": (0.8, 1.2)},
    "advantage.turn_gae": {"gamma": 1.0, "lam": 1.0},
    "advantage.turn_reward_to_go": {"gamma": 1.0, "compared": "none", "eps": 1e-06},
    "advantage.turns_by_state": {"gamma": 0.95, "coef": 1.0, "std": "group", "eps": 1e-06},
    "importance.self_normalised": {"level": "token", "band": (0.0, 2.0)},
    "importance.truncated": {"level": "token", "band": (0.0, 2.0)},
    "importance.truncated_by_turn": {"band": (0.0, 2.0)},
    "keep.binary_kl": {"level": "token", "direction": "earlier_to_later", "by_sign": True, "eps": 1e-08},
    "keep.divergence": {"measure": "k3", "total": "mean"},
    "keep.high_entropy": {"fraction": 0.2},
    "keep.prefix_budget": {"limit": 0.15, "last_weight": 0.8, "budget_low": 0.02, "budget_high": 0.04, "quantile": 0.9},
    "keep.probability_band": {"low": 0.2, "high": 0.2, "by_sign": True},
    "keep.recent_version": {"lag": 0, "newest": "batch"},
    "keep.veto": {"low": None, "high": None},
    "kl.importance_weighted_k2_gradient": {"value": "k3", "cap": 10.0},
    "kl.k2_gradient": {"value": "k3"},
    "normalize.best_minus_second": {"std": "group", "eps": 1e-06},
    "normalize.each_key": {"ddof": 1, "eps": 1e-06, "whitened": True},
    "normalize.leave_one_out": {"std": "none", "eps": 1e-06},
    "normalize.mean_std": {"mean": "group", "std": "group", "ddof": 1, "eps": 1e-06, "shift": 0.0},
    "normalize.minus_role_average": {"decay": 0.95},
    "normalize.rescaled_mean": {"counted": "varied_groups"},
    "normalize.running": {"eps": 1e-06},
    "policy_loss.clipped": {"band": (0.8, 1.2)},
    "policy_loss.clipped_importance": {"band": (0.0, 5.0)},
    "policy_loss.covariance_clipped": {
        "band": (0.8, 1.2),
        "covariance_low": 1.0,
        "covariance_high": 5.0,
        "fraction": 0.0002,
    },
    "policy_loss.covariance_penalised": {"fraction": 0.002, "coef": 1.0},
    "policy_loss.dual_clipped": {"band": (0.8, 1.2), "cap": 3.0},
    "policy_loss.gamma_weighted": {
        "power_positive": 2.0,
        "rate_positive": 3.0,
        "power_negative": 3.0,
        "rate_negative": 2.0,
    },
    "policy_loss.geometric_clipped": {"band": (0.9997, 1.0004)},
    "policy_loss.geometric_clipped_token": {"band": (0.9997, 1.0004)},
    "policy_loss.geometric_of_clipped": {"band": (exp(-0.4), exp(0.4))},
    "policy_loss.geometric_soft_gated": {"temperature_positive": 1.0, "temperature_negative": 1.05},
    "policy_loss.quadratic": {"coef": 0.1},
    "policy_loss.soft_gated": {"temperature_positive": 1.0, "temperature_negative": 1.05},
    "policy_loss.tapered": {"band": (0.0, 1.0), "level": "token"},
    "policy_loss.turn_clipped": {"band": (0.8, 1.2)},
    "reward.affine": {"bias": 0.0, "scale": 1.0},
    "reward.soft_overlong": {"factor": 1.0},
    "select.covariance_in_band": {
        "band": (0.8, 1.2),
        "covariance_low": 1.0,
        "covariance_high": 5.0,
        "fraction": 0.0002,
    },
    "select.covariance_largest": {"fraction": 0.002},
    "value_loss.huber_clipped": {"reach": 0.2, "width": 10.0},
    "value_loss.squared_clipped": {"reach": 0.2},
    "weighting.constant_divisor": {"over": "all"},
    "weighting.episode_mean": {"over": "all"},
    "weighting.given_weight": {"by": "weights", "over": "all"},
    "weighting.prompt_mean": {"over": "all"},
    "weighting.sequence_mean_token_mean": {"over": "all"},
    "weighting.sequence_mean_token_sum": {"over": "all"},
    "weighting.token_mean": {"over": "all"},
}


@pytest.mark.parametrize("name", catalog())
def test_a_formula_has_these_defaults_and_no_others(name: str) -> None:
    settings = {key: one.default for key, one in catalog()[name].settings.items()}
    assert {key: value for key, value in settings.items() if value is not inspect.Parameter.empty} == DEFAULTS.get(
        name, {}
    )


def test_ingredients_have_these_defaults() -> None:
    assert {one.name: one.default for one in fields(KL)[3:]} == {
        "anchor": None, "on": "all", "target": None, "horizon": 10_000.0,
    }  # fmt: skip
    assert (Term(0.1).on, Term(0.1).part) == ("all", None)
