"""slime's teacher, KLs, means and resumed rollouts."""

from pathlib import Path

import pytest
from tests.convert.converting import converted, stages, told

from trimtab.signal import part


def test_a_teacher_is_added_to_the_advantage(tmp_path: Path) -> None:
    found = converted("slime", "--use-opd", "--opd-type", "sglang", "--opd-kl-coef", "0.5", folder=tmp_path)
    assert found.recipe.advantage == part("advantage.plus_teacher", coef=0.5, outcome_coef=1.0)
    assert any("logp_teacher" in one for one in found.warnings)
    with_critic = converted("slime", "--use-opd", "--advantage-estimator", "ppo")
    assert told(with_critic, "use_opd")[0] == "no equivalent"
    assert told(converted("slime", "--opd-kl-coef", "0.5"), "opd_kl_coef")[1] == "inert: use_opd is not set"


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_an_unbiased_kl_is_weighted(kind: str, tmp_path: Path) -> None:
    flags = ("--use-kl-loss", "--kl-loss-coef", "0.01", "--kl-loss-type", kind, "--use-unbiased-kl")
    kl = converted("slime", *flags, folder=tmp_path).recipe.kl
    assert kl is not None
    assert (kl.part, kl.anchor) == (part(f"kl.importance_weighted_{kind}"), "old")


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo"])
def test_these_do_not_read_a_kl_in_the_reward(name: str) -> None:
    found = converted("slime", "--advantage-estimator", name, "--kl-coef", "0.1")
    assert found.recipe.kl is None
    assert told(found, "kl_coef")[1] == f"inert: advantage_estimator = {name} does not read it"


def test_what_was_sampled_before_a_resumption_is_not_counted(tmp_path: Path) -> None:
    flags = ("--partial-rollout", "--mask-offpolicy-in-partial-rollout")
    found = converted("slime", *flags, "--calculate-per-token-loss", folder=tmp_path)
    assert stages(found)[1:] == ["keep.recent_version(lag=0, newest=sequence)"]
    assert found.recipe.weighting == part("weighting.token_mean", over="kept")
    assert not converted("slime", flags[1]).recipe.correction


def test_every_rollout_weighs_the_same() -> None:
    assert converted("slime", "--eps-clip", "0.2").recipe.weighting == part("weighting.episode_mean")
