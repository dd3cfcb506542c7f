"""Numbers of further papers and of frameworks' defaults, written out. A constant that drifts shows here."""

from dataclasses import fields
from typing import Any

import pytest
from tests.golden.test_recipes import (
    GROUP,
    GROUP_MEAN,
    PPO_CLIP,
    RAW,
    REINFORCE,
    SEQUENCE_MEAN,
    SEQUENCE_SUM,
    TOKEN_MEAN,
    assert_holds,
)
from tests.golden.test_recipes import TABLE as FIRST

from trimtab.convert import convert
from trimtab.signal import Term, names, recipe

INF = float("inf")
UP_TO_5 = ("policy_loss.clipped_importance", {"band": (0.0, 5.0)}, "rollout")
BY_16384 = ("weighting.constant_divisor", {"divisor": 16384.0, "over": "all"})
KEPT_MEAN = ("weighting.token_mean", {"over": "kept"})
UNCLIPPED = ("policy_loss.clipped", {"band": (0.0, INF)}, "rollout")
GROUP_BATCH = ("normalize.mean_std", {"mean": "group", "std": "batch", "ddof": 1, "eps": 1e-6, "shift": 0.0})
BINARY_KL = {"limit": 0.05, "level": "token", "direction": "earlier_to_later", "by_sign": True, "eps": 1e-8}
BAND = ("keep.probability_band", {"low": 0.2, "high": 0.2, "by_sign": True}, "total", None)
OLD_ABSENT: dict[str, Any] = {"old": "absent"}
CURRENT: dict[str, Any] = {"old": "current"}
GAE = ("advantage.gae", {"gamma": 1.0, "lam": 1.0, "lam_value": None})
WIDE_CRITIC = (1.0, "value_loss.squared_clipped", {"reach": 0.5})

# Loss, normalisation, weighting; then what the recipe has besides.
TABLE: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "lite_ppo": (PPO_CLIP, GROUP_BATCH, TOKEN_MEAN, {}),
    "reinforce_plus_plus_baseline": (
        PPO_CLIP, GROUP_MEAN, TOKEN_MEAN, {"whiten": True, "kl": ("kl.k2", 1e-5, "loss", None)},
    ),
    "remax": (REINFORCE, ("normalize.minus_given", {}), SEQUENCE_SUM, CURRENT),
    "opo": (REINFORCE, ("normalize.length_weighted_mean", {}), TOKEN_MEAN, CURRENT),
    "gpg": (REINFORCE, ("normalize.rescaled_mean", {"counted": "varied_groups"}), TOKEN_MEAN, CURRENT),
    "asymre": (
        REINFORCE, ("normalize.mean_std", {"mean": "group", "std": "none", "ddof": 1, "eps": 1e-6, "shift": -0.1}),
        TOKEN_MEAN, CURRENT,
    ),
    "maxrl": (REINFORCE, ("normalize.over_mean", {}), TOKEN_MEAN, CURRENT),
    "pass_at_k": (PPO_CLIP, ("normalize.best_minus_second", {"std": "group", "eps": 1e-6}), TOKEN_MEAN, {}),
    "gdpo": (
        PPO_CLIP, ("normalize.each_key", {"weights": (1.0, 1.0), "ddof": 1, "eps": 1e-6, "whitened": True}),
        TOKEN_MEAN, {},
    ),
    "optimal_token_baseline": (
        PPO_CLIP, RAW, TOKEN_MEAN, {"advantage": ("advantage.optimal_token_baseline", {"eps": 1e-8})},
    ),
    "on_policy_distillation": (UNCLIPPED, RAW, ("weighting.token_sum", {}), {
        "advantage": ("advantage.plus_teacher", {"coef": 1.0, "outcome_coef": 0.0}),
    }),
    "rlsd": (("policy_loss.dual_clipped", {"band": (0.8, 1.28), "cap": 3.0}, "old"), GROUP, TOKEN_MEAN, {
        "advantage": ("advantage.scaled_by_teacher", {"share": 0.5, "band": (0.8, 1.2)}),
    }),
    "vapo": (("policy_loss.clipped", {"band": (0.8, 1.28)}, "old"), RAW, TOKEN_MEAN, {
        "advantage": ("advantage.gae_by_length", {"alpha": 0.05, "gamma": 1.0, "lam_value": 1.0}),
        "value": (0.5, "value_loss.squared_clipped", {"reach": 0.2}),
        "nll": Term(0.1, on="rewarded"),
    }),
    "gigpo": (PPO_CLIP, RAW, TOKEN_MEAN, {
        "advantage": ("advantage.turns_by_state", {"gamma": 0.95, "coef": 1.0, "std": "group", "eps": 1e-6}),
        "kl": ("kl.k3", 0.01, "loss", None),
    }),
    "role_average": (PPO_CLIP, ("normalize.minus_role_average", {"decay": 0.95}), SEQUENCE_SUM, {}),
    "clip_cov": (
        ("policy_loss.covariance_clipped",
         {"band": (0.0, 2.0), "covariance_low": 1.0, "covariance_high": 5.0, "fraction": 2e-4}, "old"),
        GROUP, TOKEN_MEAN, {"filter_constant_groups": True},
    ),
    "kl_cov": (
        ("policy_loss.covariance_penalised", {"fraction": 2e-3, "coef": 1.0}, "old"), GROUP, TOKEN_MEAN,
        {"filter_constant_groups": True},
    ),
    "high_entropy_tokens": (("policy_loss.clipped", {"band": (0.8, 1.28)}, "old"), GROUP, KEPT_MEAN, {
        "reward": [("reward.soft_overlong", {"max_length": 20480.0, "buffer": 4096.0, "factor": 1.0})],
        "filter_constant_groups": True,
        "correction": [("keep.high_entropy", {"fraction": 0.2}, None, None)],
    }),
    "gmpo": (
        ("policy_loss.geometric_of_clipped", {"band": (pytest.approx(0.6703200), pytest.approx(1.4918247))}, "old"),
        GROUP, SEQUENCE_MEAN, {},
    ),
    "kimi_k15": (("policy_loss.quadratic", {"coef": 0.1}, "old"), GROUP_MEAN, SEQUENCE_SUM, {}),
    "topr": (("policy_loss.tapered", {"band": (0.0, 1.0), "level": "sequence"}, "rollout"), RAW, SEQUENCE_MEAN, {
        "reward": [("reward.affine", {"bias": -0.5, "scale": 2.0})], "old": "absent",
    }),
    "vespo": (
        ("policy_loss.gamma_weighted",
         {"power_positive": 2.0, "rate_positive": 3.0, "power_negative": 3.0, "rate_negative": 2.0}, "rollout"),
        GROUP, TOKEN_MEAN, OLD_ABSENT,
    ),
    "scale_rl": (
        ("policy_loss.clipped_importance", {"band": (0.0, 5.0)}, "rollout"), GROUP_BATCH,
        ("weighting.prompt_mean", {"over": "all"}), {"filter_constant_groups": True, "old": "absent"},
    ),
    "icepop": (PPO_CLIP, GROUP, SEQUENCE_MEAN, {"correction": [
        ("importance.truncated", {"level": "token", "band": (0.0, INF)}, "engine", None),
        ("keep.token_band", {"band": (0.5, 5.0)}, "engine", None),
    ]}),
    "trust_region_masking": (UNCLIPPED, GROUP, SEQUENCE_SUM, {
        "correction": [("keep.divergence", {"limit": 1e-3, "measure": "k3", "total": "mean"}, "total", None)],
        "old": "absent",
    }),
    "dppo": (UP_TO_5, GROUP_MEAN, BY_16384, {"correction": [BAND], "old": "absent"}),
    "dppo_kl": (UP_TO_5, GROUP_MEAN, BY_16384, {
        "correction": [("keep.binary_kl", BINARY_KL, "total", None)], "old": "absent",
    }),
    "cppo": (("policy_loss.clipped_importance", {"band": (0.0, 20.0)}, "rollout"), GROUP_MEAN, BY_16384, {
        "correction": [(
            "keep.prefix_budget",
            {"limit": 0.2, "last_weight": 0.8, "budget_low": 0.02, "budget_high": 0.04, "quantile": 0.9},
            "total", None,
        )],
        "filter_constant_groups": True, "old": "absent",
    }),
    "kpop": (PPO_CLIP, GROUP, SEQUENCE_MEAN, {"correction": [
        ("importance.truncated", {"level": "token", "band": (0.0, INF)}, "engine", None),
        ("keep.binary_kl", {**BINARY_KL, "limit": 0.1, "direction": "larger", "by_sign": False}, "engine", None),
    ]}),
    "flash_reinforce": (
        REINFORCE, ("normalize.mean_std", {"mean": "batch", "std": "none", "ddof": 1, "eps": 1e-6, "shift": 0.0}),
        SEQUENCE_MEAN, {"old": "current", "correction": [
            ("importance.truncated", {"level": "token", "band": (0.0, INF)}, "engine", None),
            ("keep.binary_kl", {**BINARY_KL, "limit": 5e-3, "level": "sequence", "by_sign": False}, "engine", None),
        ]},
    ),
    "m2po": (UNCLIPPED, GROUP, TOKEN_MEAN, {
        "correction": [("keep.second_moment_by_sign", {"limit": 0.04}, "total", None)], "old": "absent",
    }),
    "a3po": (("policy_loss.clipped", {"band": (0.6, 1.4)}, "old"), GROUP, TOKEN_MEAN, {
        "correction": [
            ("importance.truncated", {"level": "token", "band": (0.0, INF)}, "engine", None),
            ("keep.token_band", {"band": (0.0, 5.0)}, "engine", None),
        ],
        "whiten": True, "old": "interpolated",
    }),
    "trl_defaults": (
        PPO_CLIP, ("normalize.mean_std", {"mean": "group", "std": "group", "ddof": 1, "eps": 1e-4, "shift": 0.0}),
        TOKEN_MEAN, {},
    ),
    "verl_defaults": (("policy_loss.dual_clipped", {"band": (0.8, 1.2), "cap": 3.0}, "old"), RAW, TOKEN_MEAN, {
        "advantage": GAE, "whiten": True, "value": WIDE_CRITIC,
    }),
    "openrlhf_defaults": (PPO_CLIP, RAW, TOKEN_MEAN, {
        "advantage": GAE, "whiten": True, "value": WIDE_CRITIC, "kl": ("kl.k1", 0.01, "token_reward", None),
    }),
    "skyrl_defaults": (PPO_CLIP, GROUP, TOKEN_MEAN, {"kl": ("kl.k3", 0.001, "loss", None)}),
    "slime_defaults": (PPO_CLIP, GROUP, ("weighting.episode_mean", {"over": "all"}), {}),
    "nemo_rl_defaults": (
        PPO_CLIP, ("normalize.leave_one_out", {"std": "others", "eps": 1e-6}), TOKEN_MEAN,
        {"kl": ("kl.k2_gradient", 0.01, "loss", None)},
    ),
    "prime_rl_defaults": (UNCLIPPED, GROUP_MEAN, TOKEN_MEAN, {
        "correction": [BAND], "kl": ("kl.anchor_square", 0.001, "loss", "rollout"), "filter_constant_groups": True,
        "old": "absent",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_has_its_papers_numbers(name: str) -> None:
    assert_holds(name, *TABLE[name])


def test_every_recipe_stands_in_a_table() -> None:
    assert [*FIRST, *TABLE] == names()


NEUTRAL: dict[str, tuple[str, ...]] = {
    "verl": ("trainer.n_gpus_per_node=8",), "trl": ("--learning_rate", "1e-6"), "openrlhf": ("--actor.lr", "1e-6"),
    "slime": ("--lr", "1e-6"), "skyrl": ("trainer.epochs=1",), "prime_rl": ("--max_steps", "5"), "nemo_rl": ("a.b=1",),
}  # fmt: skip
"""One option of each framework that is none of the signal's."""


@pytest.mark.parametrize("framework", NEUTRAL)
def test_defaults_are_what_an_empty_configuration_is_converted_to(framework: str) -> None:
    ours, theirs = recipe(f"{framework}_defaults"), convert(framework, "", NEUTRAL[framework]).recipe
    differs = [
        field.name
        for field in fields(ours)
        if field.name not in ("name", "summary", "source") and getattr(ours, field.name) != getattr(theirs, field.name)
    ]
    assert differs == []
