"""verl's losses, estimators, KLs and rollout corrections."""

from pathlib import Path

import pytest
from tests.convert.converting import converted, stages, told

from trimtab.errors import ConfigError
from trimtab.signal import part

ACTOR = "actor_rollout_ref.actor."
MODE = f"{ACTOR}policy_loss.loss_mode"
AT = "algorithm.rollout_correction."
GRPO = "algorithm.adv_estimator=grpo"
BEFORE_V1 = "trainer.use_v1=False"
NEAR = "importance.truncated(level=token, band=(0, 2))"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("geo_mean",), ["policy_loss.geometric_of_clipped(band=(0.818731, 1.2214)) against old"]),
        (("dro", f"{ACTOR}policy_loss.dro_beta=0.2"), ["policy_loss.quadratic(coef=0.2) against old"]),
        (("dppo_tv", f"{ACTOR}clip_ratio_c=20", f"{ACTOR}clip_ratio_low=0.1"), [
            "policy_loss.clipped_importance(band=(0, 20)) against old",
            "keep.probability_band(low=0.1, high=0.2, by_sign=True) on update"]),
        (("dppo_kl", f"{ACTOR}clip_ratio_low=0.05", f"{ACTOR}clip_ratio_high=0.05"), [
            "policy_loss.clipped_importance(band=(0, 3)) against old",
            "keep.binary_kl(limit=0.05, level=token, direction=earlier_to_later, by_sign=True, eps=1e-08) on update"]),
        (("geo_mean", f"{AT}rollout_is=token"), [
            "policy_loss.geometric_of_clipped(band=(0.818731, 1.2214)) against old",
            "importance.truncated(level=geometric, band=(0, 2)) on engine"]),
    ],
)  # fmt: skip
def test_losses(flags: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    mode, *more = flags
    assert stages(converted("verl", GRPO, f"{MODE}={mode}", *more, folder=tmp_path)) == expected


def test_one_kl_limit_for_both_signs_is_said() -> None:
    found = converted("verl", GRPO, f"{MODE}=dppo_kl", f"{ACTOR}clip_ratio_low=0.05")
    assert found.recipe.correction[0].part.settings["limit"] == 0.2
    assert any("one limit for both signs, and 0.2 is written" in one for one in found.warnings)


@pytest.mark.parametrize("mode", ["sapo", "geo_mean"])
def test_losses_that_average_by_themselves_do_not_read_loss_agg_mode(mode: str) -> None:
    found = converted("verl", GRPO, f"{MODE}={mode}", f"{ACTOR}loss_agg_mode=token-mean")
    assert found.recipe.weighting.formula.name == "weighting.sequence_mean_token_mean"
    assert told(found, f"{ACTOR}loss_agg_mode")[1] == f"inert: loss_mode = {mode} does not read it"


def test_clip_ratio_alone_does_nothing_because_its_sides_have_defaults() -> None:
    found = converted("verl", GRPO, f"{ACTOR}clip_ratio=0.3")
    assert found.recipe.loss.part.settings["band"] == (0.8, 1.2)
    assert "clip_ratio_low and clip_ratio_high are 0.2 unless they are null" in found.warnings[0]
    sides = (f"{ACTOR}clip_ratio_low=null", f"{ACTOR}clip_ratio_high=null")
    assert converted("verl", GRPO, f"{ACTOR}clip_ratio=0.3", *sides).recipe.loss.part.settings["band"] == (0.7, 1.3)


@pytest.mark.parametrize(
    ("name", "normalize", "advantage"),
    [
        ("remax", part("normalize.minus_given"), part("advantage.reward_to_go", gamma=1.0)),
        ("opo", part("normalize.length_weighted_mean"), part("advantage.broadcast")),
        ("gpg", part("normalize.rescaled_mean", counted="nonzero_rewards"), part("advantage.broadcast")),
        ("grpo_passk", part("normalize.best_minus_second", std="group", eps=1e-6), part("advantage.broadcast")),
        ("rloo", part("normalize.leave_one_out"), part("advantage.broadcast")),
        ("tir_optimal_token_baseline", part("normalize.raw"), part("advantage.optimal_token_baseline", eps=1e-8)),
    ],
)  # fmt: skip
def test_estimators(name: str, normalize: object, advantage: object, tmp_path: Path) -> None:
    made = converted("verl", f"algorithm.adv_estimator={name}", folder=tmp_path).recipe
    assert (made.normalize, made.advantage) == (normalize, advantage)


def test_what_a_run_has_no_batch_for_is_said_at_the_top() -> None:
    found = converted("verl", "algorithm.adv_estimator=remax")
    assert any("reads baseline, a baseline of the caller's for each episode" in one for one in found.warnings)
    assert not converted("verl", "algorithm.adv_estimator=opo").warnings


def test_gdpo_knows_its_rewards_from_keys_or_weights(tmp_path: Path) -> None:
    gdpo, keys = "algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a,b]"
    made = converted("verl", gdpo, keys, "algorithm.use_kl_in_reward=True", folder=tmp_path).recipe
    assert made.normalize == part("normalize.each_key", weights=(1.0, 1.0), ddof=1, eps=1e-6)
    assert made.kl is None
    weighted = converted("verl", gdpo, keys, "algorithm.gdpo_reward_weights=[1.0,0.5]").recipe
    assert weighted.normalize.settings["weights"] == (1.0, 0.5)
    unknown = converted("verl", gdpo)
    assert told(unknown, "algorithm.adv_estimator")[0] == "no equivalent"
    assert unknown.recipe.normalize == part("normalize.raw")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("abs", part("kl.absolute")), ("k1+", part("kl.k2_gradient", value="k1")),
        ("low_var_kl+", part("kl.k2_gradient", value="k3")), ("k2+", part("kl.k2")), ("mse", part("kl.k2")),
    ],
)  # fmt: skip
def test_kls_in_the_loss(kind: str, expected: object, tmp_path: Path) -> None:
    kl = converted("verl", GRPO, f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type={kind}", folder=tmp_path).recipe.kl
    assert kl is not None
    assert (kl.part, kl.into) == (expected, "loss")


def test_in_a_reward_a_plus_has_no_gradient_to_change_and_the_coefficient_is_steered(tmp_path: Path) -> None:
    start = "algorithm.kl_ctrl."
    flags = ("algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=k3+", f"{start}type=adaptive",
             f"{start}target_kl=0.2", f"{start}horizon=5000")  # fmt: skip
    kl = converted("verl", "algorithm.adv_estimator=gae", *flags, folder=tmp_path).recipe.kl
    assert kl is not None
    assert (kl.part, kl.into, kl.target, kl.horizon) == (part("kl.k3"), "token_reward", 0.2, 5000.0)
    fixed = converted("verl", GRPO, "algorithm.use_kl_in_reward=True", f"{start}target_kl=0.2")
    assert fixed.recipe.kl is not None
    assert fixed.recipe.kl.target is None
    assert told(fixed, f"{start}target_kl")[1] == "inert: kl_ctrl.type is fixed"


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("token_k1", "0.5_2.0", "keep.token_band(band=(0.5, 2))"),
        ("token_k1", "0.5_4.0", "keep.token_band(band=(0.25, 2))"),
        ("seq_sum_k1", "2.0", "keep.product_band(band=(0.5, 2))"),
        ("seq_mean_k1", "0.8_1.25", "keep.geometric_band(band=(0.8, 1.25))"),
        ("token_k2", "0.02", "keep.token_band(band=(0.818731, 1.2214))"),
        ("seq_max_k2", "0.5", "keep.veto(low=0.36787944117144233, high=2.718281828459045)"),
        ("seq_sum_k2", "0.1", "keep.divergence(limit=0.1, measure=k2, total=sum)"),
        ("seq_mean_k3", "0.01", "keep.divergence(limit=0.01, measure=k3, total=mean)"),
    ],
)
def test_rejections(name: str, limit: str, expected: str, tmp_path: Path) -> None:
    flags = (f"{AT}rollout_rs={name}", f"{AT}rollout_rs_threshold={limit}")
    assert stages(converted("verl", GRPO, *flags, folder=tmp_path))[1:] == [f"{expected} on engine"]


def test_several_rejections_need_as_many_limits() -> None:
    flags = (f"{AT}rollout_rs=token_k2,seq_mean_k3", f"{AT}rollout_rs_threshold=0.1,0.2,0.3")
    with pytest.raises(ConfigError, match="2 criteria in rollout_rs and 3 in rollout_rs_threshold"):
        _ = converted("verl", GRPO, *flags)
    with pytest.raises(ConfigError, match="'seq_max_k1' is no criterion"):
        _ = converted("verl", GRPO, f"{AT}rollout_rs=seq_max_k1", f"{AT}rollout_rs_threshold=2")


def test_what_is_rejected_leaves_the_terms_and_before_v1_the_number_of_tokens() -> None:
    flags = (f"{AT}rollout_rs=seq_mean_k3", f"{AT}rollout_rs_threshold=0.01", f"{ACTOR}use_kl_loss=True")
    made = converted("verl", GRPO, *flags).recipe
    assert made.weighting == part("weighting.token_mean", over="all")
    assert made.kl is not None
    assert made.kl.on == "kept"
    before = converted("verl", GRPO, *flags, BEFORE_V1).recipe
    assert before.weighting == part("weighting.token_mean", over="kept")
    by_token = (flags[0].replace("seq_mean_k3", "token_k3"), *flags[1:], f"{ACTOR}loss_agg_mode=seq-mean-token-mean")
    assert converted("verl", GRPO, *by_token).recipe.weighting.settings["over"] == "kept"
    by_sequence = converted("verl", GRPO, *flags, f"{ACTOR}loss_agg_mode=seq-mean-token-mean").recipe
    assert by_sequence.weighting == part("weighting.sequence_mean_token_mean", over="all")


def test_weights_and_their_batch_mean() -> None:
    assert stages(converted("verl", GRPO, f"{AT}rollout_is=token"))[1:] == [f"{NEAR} on engine"]
    normed = converted("verl", GRPO, f"{AT}rollout_is=sequence", f"{AT}rollout_is_batch_normalize=True")
    assert stages(normed)[1:] == ["importance.self_normalised(level=sequence, band=(0, 2)) on engine"]
    icepop = converted("verl", GRPO, f"{AT}rollout_is=sequence", f"{AT}rollout_is_threshold=0.5_5.0")
    assert stages(icepop)[1:] == [
        "keep.product_band(band=(0.5, 5)) on engine", "importance.truncated(level=sequence, band=(0, inf)) on engine",
    ]  # fmt: skip


def test_two_policies_in_the_default_trainer_are_an_anchor_and_no_more(tmp_path: Path) -> None:
    flags = (f"{AT}bypass_mode=True", f"{AT}rollout_is=token", f"{AT}loss_type=reinforce")
    found = converted("verl", GRPO, *flags, f"{MODE}=dppo_tv", folder=tmp_path)
    assert stages(found) == [
        "policy_loss.clipped_importance(band=(0, 3)) against rollout",
        "keep.probability_band(low=0.2, high=0.2, by_sign=True) on total",
    ]
    assert found.recipe.old == "absent"
    assert all("(use_v1) does not read it" in told(found, f"{AT}{key}")[1] for key in ("rollout_is", "loss_type"))


def test_two_policies_have_a_loss_of_their_own_before_v1(tmp_path: Path) -> None:
    flags = (f"{AT}bypass_mode=True", f"{AT}rollout_is=token", f"{AT}rollout_rs=seq_mean_k3",
             f"{AT}rollout_rs_threshold=0.01", f"{MODE}=sapo", BEFORE_V1)  # fmt: skip
    clip = converted("verl", GRPO, *flags, folder=tmp_path)
    keep = "keep.divergence(limit=0.01, measure=k3, total=mean) on total"
    assert stages(clip) == ["policy_loss.dual_clipped(band=(0.8, 1.2), cap=3.0) against rollout", keep]
    assert (clip.recipe.old, clip.recipe.weighting) == ("absent", part("weighting.token_mean"))
    assert told(clip, MODE)[1].startswith("inert: bypass_mode is on")
    reinforce = converted("verl", GRPO, *flags, f"{AT}loss_type=reinforce", folder=tmp_path)
    assert stages(reinforce) == ["policy_loss.reinforce()", f"{NEAR} on total", keep]
    with_kl = converted("verl", GRPO, *flags, "algorithm.use_kl_in_reward=True", folder=tmp_path)
    assert with_kl.recipe.old == "recompute"
