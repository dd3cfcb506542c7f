"""SkyRL's losses, estimators and corrections."""

from pathlib import Path

import pytest
from tests.convert.converting import converted, stages, told

from trimtab.signal import part

AT = "trainer.algorithm."
MASK = f"{AT}off_policy_correction.token_mask_is_threshold_"
WITHOUT = f"{AT}use_kl_loss=false"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("dppo",), ["policy_loss.clipped(band=(0, inf)) against rollout",
                     "keep.probability_band(low=0.2, high=0.2, by_sign=True) on total"]),
        (("dppo", f"{AT}dppo.dppo_type=binary_kl", f"{AT}dppo.delta_low=0.05", f"{AT}dppo.delta_high=0.05"), [
            "policy_loss.clipped(band=(0, inf)) against rollout",
            "keep.binary_kl(limit=0.05, level=token, direction=earlier_to_later, by_sign=True, eps=1e-08) on total"]),
        (("rollout_is", f"{AT}eps_clip_high=0.3"), [
            "policy_loss.clipped_importance(band=(0, inf)) against rollout",
            "keep.token_band(band=(0.8, 1.3)) on total"]),
        (("cispo",), ["policy_loss.clipped_importance(band=(1, 6)) against old"]),
        (("cispo", f"{AT}cispo.cispo_eps_clip_low=1", f"{AT}cispo.cispo_anchor=rollout"), [
            "policy_loss.clipped_importance(band=(0, 6)) against rollout"]),
        (("clip_cov", f"{AT}clip_cov.clip_cov_ub=4"), [
            "policy_loss.covariance_clipped(band=(0.8, 1.2), covariance_low=1.0, covariance_high=4.0, fraction=0.0002)"
            " against old"]),
        (("kl_cov",), ["policy_loss.covariance_penalised(fraction=0.2, coef=1.0) against old"]),
        (("cross_entropy",), ["policy_loss.cross_entropy()"]),
        (("regular", f"{MASK}low=0.5", f"{MASK}high=2.0"), [
            "policy_loss.clipped(band=(0.8, 1.2)) against old", "keep.token_band(band=(0.5, 2)) on engine"]),
        (("regular", f"{MASK}high=2.0"), ["policy_loss.clipped(band=(0.8, 1.2)) against old"]),
    ],
)  # fmt: skip
def test_losses_and_corrections(flags: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    kind, *more = flags
    assert stages(converted("skyrl", f"{AT}policy_loss_type={kind}", WITHOUT, *more, folder=tmp_path)) == expected


def test_maxrl_and_the_mean_over_prompts(tmp_path: Path) -> None:
    flags = (f"{AT}advantage_estimator=maxrl", f"{AT}loss_reduction=prompt_mean", WITHOUT)
    made = converted("skyrl", *flags, folder=tmp_path).recipe
    assert (made.normalize, made.weighting) == (part("normalize.over_mean"), part("weighting.prompt_mean"))


def test_a_kl_in_the_reward_is_steered(tmp_path: Path) -> None:
    start = f"{AT}kl_ctrl."
    steering = (f"{start}type=adaptive", f"{start}kl_target=0.2", f"{AT}kl_estimator_type=abs")
    kl = converted("skyrl", WITHOUT, f"{AT}use_kl_in_reward=true", *steering, folder=tmp_path).recipe.kl
    assert kl is not None
    assert (kl.part, kl.into, kl.target, kl.horizon) == (part("kl.absolute"), "sequence_reward", 0.2, 10_000.0)
    in_loss = converted("skyrl", *steering)
    assert told(in_loss, f"{start}type")[1] == "inert: no KL in the reward is written"


def test_a_mean_that_depends_on_the_cut_has_no_equivalent() -> None:
    found = converted("skyrl", f"{AT}loss_reduction=token_mean_legacy")
    assert told(found, f"{AT}loss_reduction")[0] == "no equivalent"
    assert found.recipe.weighting == part("weighting.token_mean")


def test_a_factor_that_counts_twice_there_counts_twice_here_and_is_said(tmp_path: Path) -> None:
    flags = (f"{AT}policy_loss_type=rollout_is", f"{AT}off_policy_correction.tis_ratio_type=token", WITHOUT)
    found = converted("skyrl", *flags, folder=tmp_path)
    assert found.recipe.allow_double_count
    assert any("that factor counts twice, there too" in one for one in found.warnings)
    assert not converted("skyrl", f"{AT}policy_loss_type=rollout_is", WITHOUT).recipe.allow_double_count
