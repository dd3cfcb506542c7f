"""OpenRLHF's gates, KLs, rewards and filters."""

from pathlib import Path

import pytest
from tests.convert.converting import converted, stages, told

from trimtab.errors import ConfigError
from trimtab.signal import part

GATE = "--algo.advantage.is_correction_"
WITHOUT = ("--algo.kl.init_coef", "0")
FREE = "importance.truncated(level=token, band=(0, inf)) on engine"
BINARY = "direction=earlier_to_later, by_sign=False, eps=1e-06) on engine"


def flags(name: str = "rloo") -> tuple[str, ...]:
    return ("--algo.advantage.estimator", name)


@pytest.mark.parametrize(
    ("level", "gating", "expected"),
    [
        ("token", "binary_kl", f"keep.binary_kl(limit=0.1, level=token, {BINARY}"),
        ("seq", "binary_kl", f"keep.binary_kl(limit=0.1, level=sequence, {BINARY}"),
        ("token", "tv", "keep.probability_band(low=0.1, high=0.1, by_sign=False) on engine"),
        ("seq", "tv", "keep.total_variation(limit=0.1) on engine"),
    ],
)
def test_gates_by_a_divergence(level: str, gating: str, expected: str, tmp_path: Path) -> None:
    asked = (f"{GATE}level", level, f"{GATE}gating", gating, f"{GATE}threshold", "0.1")
    assert stages(converted("openrlhf", *flags(), *WITHOUT, *asked, folder=tmp_path))[1:] == [expected, FREE]
    with pytest.raises(ConfigError, match="'js' is not known"):
        _ = converted("openrlhf", *flags(), f"{GATE}level", level, f"{GATE}gating", "js")


def test_gspo_has_the_sampler_in_its_ratio_instead() -> None:
    asked = (f"{GATE}level", "token", f"{GATE}gating", "tv", f"{GATE}threshold", "0.1")
    found = converted("openrlhf", *flags(), *WITHOUT, "--actor.policy_loss_type", "gspo", *asked)
    assert stages(found) == ["policy_loss.geometric_clipped(band=(0.8, 1.2)) against rollout"]
    assert told(found, "algo.advantage.is_correction_gating")[1].startswith("inert")


def test_flash_reinforce_compares_with_the_whole_batch() -> None:
    made = converted("openrlhf", *flags("flash_reinforce"), *WITHOUT).recipe
    assert made.normalize == part("normalize.mean_std", mean="batch", std="none", ddof=1, eps=1e-6)
    assert not made.whiten


def test_a_kl_in_the_reward_is_taken_from_each_token_after_the_answers_were_compared(tmp_path: Path) -> None:
    steering = ("--algo.kl.target", "0.1", "--algo.kl.horizon", "5000")
    made = converted("openrlhf", *flags("group_norm"), *steering, folder=tmp_path).recipe
    assert made.kl is not None
    assert (made.kl.into, made.kl.target, made.kl.horizon) == ("token_reward", 0.1, 5000.0)
    assert made.advantage == part("advantage.reward_to_go", gamma=1.0)


def test_a_kl_in_the_loss_has_an_unbiased_gradient_and_is_not_steered(tmp_path: Path) -> None:
    in_loss = ("--algo.kl.use_loss", "--algo.kl.estimator", "k3", "--algo.kl.unbiased_gradient")
    found = converted("openrlhf", *flags(), *in_loss, "--algo.kl.target", "0.1", folder=tmp_path)
    kl = found.recipe.kl
    assert kl is not None
    assert kl.part == part("kl.importance_weighted_k2_gradient", value="k3", cap=10.0)
    assert (kl.into, kl.anchor, kl.target) == ("loss", "old", None)
    assert told(found, "algo.kl.target")[0] == "no equivalent"
    in_reward = converted("openrlhf", *flags(), "--algo.kl.unbiased_gradient")
    assert told(in_reward, "algo.kl.unbiased_gradient")[1] == "inert: there is no KL in the loss"


def test_unfinished_answers_and_groups_by_their_mean(tmp_path: Path) -> None:
    band = ("--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "0.1", "0.9")
    found = converted(
        "openrlhf", *flags(), *WITHOUT, "--reward.stop_properly_penalty_coef", "-0.5", *band, folder=tmp_path
    )
    assert found.recipe.reward == (part("reward.not_ended_constant", value=-0.5),)
    assert found.recipe.group_mean_band == (0.1, 0.9)
    assert not found.recipe.filter_constant_groups
    scaled = converted("openrlhf", *flags(), *WITHOUT, "--reward.stop_properly_penalty_coef", "0.5").recipe
    assert scaled.reward == (part("reward.not_ended_scale", factor=0.5),)


def test_the_mean_over_sequences() -> None:
    asked = ("--actor.loss_agg_mode", "seq-mean-token-mean")
    made = converted("openrlhf", *flags(), *WITHOUT, *asked).recipe
    assert made.weighting == part("weighting.sequence_mean_token_mean")
