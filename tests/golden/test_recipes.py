"""Every recipe's numbers as its paper gives them, written out. A constant that drifts shows here."""

from typing import Any

import pytest

from trimtab.signal import Part, names, recipe

PPO_CLIP = ("policy_loss.clipped", {"band": (0.8, 1.2)}, "old")
REINFORCE = ("policy_loss.reinforce", {}, None)
GROUP = ("normalize.mean_std", {"mean": "group", "std": "group", "ddof": 1, "eps": 1e-6, "shift": 0.0})
GROUP_MEAN = ("normalize.mean_std", {"mean": "group", "std": "none", "ddof": 1, "eps": 1e-6, "shift": 0.0})
BATCH = ("normalize.mean_std", {"mean": "batch", "std": "batch", "ddof": 1, "eps": 1e-6, "shift": 0.0})
RAW = ("normalize.raw", {})
TOKEN_MEAN = ("weighting.token_mean", {"over": "all"})
SEQUENCE_MEAN = ("weighting.sequence_mean_token_mean", {"over": "all"})
SEQUENCE_SUM = ("weighting.sequence_mean_token_sum", {"over": "all"})


def truncated(level: str, cap: float, ratio: str = "engine") -> tuple[Any, ...]:
    return ("importance.truncated", {"level": level, "band": (0.0, cap)}, ratio, None)


# Loss, normalisation, weighting; then what the recipe has besides.
TABLE: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "start_on_policy": (REINFORCE, GROUP, TOKEN_MEAN, {"old": "current"}),
    "start_engine_mismatch": (PPO_CLIP, GROUP, TOKEN_MEAN, {"correction": [truncated("token", 2.0)]}),
    "start_async": (
        ("policy_loss.geometric_clipped", {"band": (0.98, 1.02)}, "rollout"), GROUP, TOKEN_MEAN, {"old": "absent"},
    ),
    "reinforce": (REINFORCE, RAW, SEQUENCE_SUM, {"old": "current"}),
    "grpo": (PPO_CLIP, GROUP, SEQUENCE_MEAN, {"kl": ("kl.k3", 0.04, "loss", None)}),
    "dr_grpo": (PPO_CLIP, GROUP_MEAN, ("weighting.constant_divisor", {"divisor": 3000.0, "over": "all"}), {}),
    "rloo": (
        REINFORCE, ("normalize.leave_one_out", {"std": "none", "eps": 1e-6}), SEQUENCE_SUM,
        {"kl": ("kl.k1", 0.03, "sequence_reward", None)},
    ),
    "reinforce_plus_plus": (PPO_CLIP, RAW, TOKEN_MEAN, {
        "advantage": ("advantage.reward_to_go", {"gamma": 1.0}),
        "whiten": True,
        "kl": ("kl.k1", 0.01, "token_reward", None),
    }),
    "ppo": (PPO_CLIP, RAW, TOKEN_MEAN, {
        "advantage": ("advantage.gae", {"gamma": 1.0, "lam": 0.95, "lam_value": None}),
        "whiten": True,
        "kl": ("kl.k1", 0.02, "token_reward", None),
        "value": (0.5, "value_loss.squared_clipped", {"reach": 0.2}),
    }),
    "dapo": (("policy_loss.clipped", {"band": (0.8, 1.28)}, "old"), GROUP, TOKEN_MEAN, {
        "reward": [("reward.soft_overlong", {"max_length": 20480.0, "buffer": 4096.0, "factor": 1.0})],
        "filter_constant_groups": True,
    }),
    "gspo": (("policy_loss.geometric_clipped", {"band": (0.9997, 1.0004)}, "old"), GROUP, SEQUENCE_MEAN, {}),
    "cispo": (("policy_loss.clipped_importance", {"band": (0.0, 5.0)}, "old"), GROUP, TOKEN_MEAN, {}),
    "sapo": (
        ("policy_loss.soft_gated", {"temperature_positive": 1.0, "temperature_negative": 1.05}, "old"),
        GROUP, SEQUENCE_MEAN, {},
    ),
    "tis": (PPO_CLIP, GROUP, TOKEN_MEAN, {"correction": [truncated("token", 2.0)]}),
    "sequence_tis": (PPO_CLIP, GROUP, TOKEN_MEAN, {"correction": [truncated("sequence", 5.0)]}),
    "reinforce_tis": (
        REINFORCE, GROUP, TOKEN_MEAN, {"correction": [truncated("sequence", 2.0, "total")], "old": "absent"},
    ),
    "geometric_mask": (
        PPO_CLIP, GROUP, TOKEN_MEAN, {"correction": [("keep.geometric_band", {"band": (0.99, 1.01)}, "engine", None)]},
    ),
    "deepseek_v32": (("policy_loss.clipped", {"band": (0.8, 1.2)}, "rollout"), GROUP_MEAN, SEQUENCE_MEAN, {
        "correction": [("keep.negative_drift", {"delta": 0.1}, None, "rollout")],
        "kl": ("kl.importance_weighted_k3", 0.001, "loss", "rollout"),
        "old": "absent",
    }),
    "decoupled_ppo": (PPO_CLIP, BATCH, TOKEN_MEAN, {
        "correction": [truncated("token", float("inf")), ("keep.token_band", {"band": (0.0, 5.0)}, "engine", None)],
    }),
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "reward": [], "advantage": ("advantage.broadcast", {}), "correction": [], "kl": None, "value": None,
    "entropy": None, "nll": None, "observed": None, "whiten": False, "filter_constant_groups": False,
    "clip_advantage": None,
    "not_ended": "train", "old": "recompute", "allow_double_count": False, "group_mean_band": None,
    "whiten_token_rewards": False,
}  # fmt: skip

DEFAULTS = {
    "policy_loss.clipped": {"band": (0.8, 1.2)},
    "policy_loss.dual_clipped": {"band": (0.8, 1.2), "cap": 3.0},
    "policy_loss.geometric_clipped": {"band": (0.9997, 1.0004)},
    "policy_loss.geometric_clipped_token": {"band": (0.9997, 1.0004)},
    "policy_loss.clipped_importance": {"band": (0.0, 5.0)},
    "policy_loss.soft_gated": {"temperature_positive": 1.0, "temperature_negative": 1.05},
    "policy_loss.covariance_clipped": {
        "band": (0.8, 1.2), "covariance_low": 1.0, "covariance_high": 5.0, "fraction": 2e-4,
    },
    "policy_loss.covariance_penalised": {"coef": 1.0, "fraction": 2e-3},
    "value_loss.squared_clipped": {"reach": 0.2},
    "normalize.mean_std": {"mean": "group", "std": "group", "ddof": 1, "eps": 1e-6, "shift": 0.0},
    "normalize.leave_one_out": {"std": "none", "eps": 1e-6},
    "normalize.best_minus_second": {"std": "group", "eps": 1e-6},
    "normalize.rescaled_mean": {"counted": "varied_groups"},
    "advantage.plus_teacher": {"coef": 1.0, "outcome_coef": 1.0},
    "advantage.scaled_by_teacher": {"share": 0.5, "band": (0.8, 1.2)},
    "advantage.optimal_token_baseline": {"eps": 1e-8},
    "advantage.reward_to_go": {"gamma": 1.0},
    "advantage.gae": {"gamma": 1.0, "lam": 1.0, "lam_value": None},
    "importance.truncated": {"level": "token", "band": (0.0, 2.0)},
}  # fmt: skip


def written(part: Part) -> tuple[str, dict[str, Any]]:
    return part.formula.name, dict(part.settings)


def test_the_table_begins_as_the_recipes_do() -> None:
    assert names()[: len(TABLE)] == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_holds_its_papers_values(name: str) -> None:
    assert_holds(name, *TABLE[name])


def assert_holds(name: str, loss: Any, normalize: Any, weighting: Any, besides: dict[str, Any]) -> None:
    """The recipe of this name is written out here, whole."""
    chosen = recipe(name)
    assert chosen.loss.ratio is None
    assert (*written(chosen.loss.part), chosen.loss.anchor) == loss
    assert written(chosen.normalize) == normalize
    assert written(chosen.weighting) == weighting
    kl, value = chosen.kl, chosen.value
    assert {
        "reward": [written(one) for one in chosen.reward],
        "advantage": written(chosen.advantage),
        "correction": [(*written(one.part), one.ratio, one.anchor) for one in chosen.correction],
        "kl": kl and (kl.part.formula.name, kl.coef, kl.into, kl.anchor),
        "value": value and (value.coef, *written(value.part)),
        **{word: getattr(chosen, word) for word in PLAIN.keys() - {"reward", "advantage", "correction", "kl", "value"}},
    } == PLAIN | besides
    assert all(term.on == "all" for term in (kl, value) if term is not None)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_formula_named_alone_has_its_papers_values(name: str) -> None:
    import trimtab.signal

    assert dict(trimtab.signal.part(name).settings) == DEFAULTS[name]
