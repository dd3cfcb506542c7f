"""TRL's losses, baselines and corrections."""

from pathlib import Path

import pytest
from tests.convert.converting import converted, stages, told

from trimtab.convert import convert
from trimtab.signal import part


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--loss_type=vespo", "--vespo_k_pos=1.5"), [
            "policy_loss.gamma_weighted(power_positive=1.5, rate_positive=3.0, power_negative=3.0, rate_negative=2.0)"
            " against old"]),
        (("--loss_type=sapo", "--importance_sampling_level=sequence"), [
            "policy_loss.geometric_soft_gated(temperature_positive=1.0, temperature_negative=1.05) against old"]),
        (("--loss_type=cispo", "--importance_sampling_level=sequence", "--epsilon_high=5"), [
            "policy_loss.reinforce()", "importance.truncated(level=geometric, band=(0, 5)) on update"]),
        (("--loss_type=luspo", "--importance_sampling_level=sequence"), [
            "policy_loss.geometric_clipped(band=(0.8, 1.2)) against old"]),
        (("--top_entropy_quantile=0.2",), [
            "policy_loss.clipped(band=(0.8, 1.2)) against old", "keep.high_entropy(fraction=0.2)"]),
        (("--top_entropy_quantile=1.0",), ["policy_loss.clipped(band=(0.8, 1.2)) against old"]),
        (("--off_policy_mask_threshold=0.5",), [
            "policy_loss.clipped(band=(0.8, 1.2)) against old", "keep.negative_drift(delta=0.5) against old"]),
    ],
)  # fmt: skip
def test_losses_and_corrections(flags: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    assert stages(converted("trl", *flags, folder=tmp_path)) == expected


def test_vespo_has_the_sampler_in_its_ratio_and_no_correction_beside() -> None:
    found = converted("trl", "--loss_type=vespo", "--use_vllm", "--vllm_importance_sampling_mode=token_truncate")
    assert found.recipe.loss.anchor == "rollout"
    assert found.recipe.correction == ()
    assert "theirs bounds the ratio of each token" in told(found, "vllm_importance_sampling_mode")[1]


def test_luspo_adds_the_tokens_of_a_sequence() -> None:
    assert converted("trl", "--loss_type=luspo").recipe.weighting.formula.name == "weighting.sequence_mean_token_sum"


def test_the_entropy_bonus_acts_where_the_loss_does() -> None:
    made = converted("trl", "--entropy_coef=0.01", "--top_entropy_quantile=0.2").recipe
    assert made.entropy is not None
    assert made.entropy.on == "kept"


@pytest.mark.parametrize(
    ("flags", "expected", "anchor"),
    [
        ((), "kl.importance_weighted_k3", "old"),
        (("--importance_sampling_level=sequence",), "kl.geometric_weighted_k3", "old"),
        (("--use_bias_correction_kl=False",), "kl.k3", None),
    ],
)
def test_the_kl_is_weighted_at_the_level_of_the_ratio(flags: tuple[str, ...], expected: str, anchor: str) -> None:
    kl = converted("trl", "--beta=0.04", *flags).recipe.kl
    assert kl is not None
    assert (kl.part.formula.name, kl.anchor) == (expected, anchor)


def test_rewards_that_are_normalised_first_need_their_number(tmp_path: Path) -> None:
    key = "--multi_objective_aggregation=normalize_then_sum"
    found = converted("trl", key, "--reward_weights", "1.0", "0.5", folder=tmp_path)
    assert found.recipe.normalize == part("normalize.each_key", weights=(1.0, 0.5), ddof=1, eps=1e-4)
    assert any("reads rewards" in one for one in found.warnings)
    without = converted("trl", key)
    assert told(without, "multi_objective_aggregation") == (
        "no equivalent", "how many rewards there are is not in the file",
    )  # fmt: skip


def test_the_gmpo_trainer_is_known_by_its_config(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = GMPOConfig(epsilon_high=0.2, beta=0.1, top_entropy_quantile=0.5, use_vllm=True, delta=3.0)\n")
    found = convert("trl", path)
    assert stages(found) == [
        "policy_loss.geometric_of_clipped(band=(0.67032, 1.2214)) against old", "keep.high_entropy(fraction=0.5)",
    ]  # fmt: skip
    assert found.recipe.weighting == part("weighting.sequence_mean_token_mean", over="kept")
    assert found.recipe.kl is not None
    assert found.recipe.kl.part == part("kl.k3")
    assert told(found, "delta")[1] == "inert: the GMPO trainer does not read it"


def test_what_has_no_equivalent_is_said() -> None:
    found = converted("trl", "--importance_sampling_level=sequence", "--delta=3", "--use_adaptive_entropy=True")
    assert told(found, "delta")[0] == told(found, "use_adaptive_entropy")[0] == "no equivalent"
    assert len(found.warnings) == 2
