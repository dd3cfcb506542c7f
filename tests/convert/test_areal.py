"""AReaL's rejection sampling, proximal policy, norms and lambdas."""

from pathlib import Path

import pytest
import torch
from tests.convert.converting import converted, stages, told

from trimtab.signal import part

AT = "actor.rejection_sampling."
DECOUPLED, WITHOUT = "actor.use_decoupled_loss=true", "actor.kl_ctl=0.0"
BY_TOKEN = "importance.truncated(level=token, band=(0, inf)) on engine"
BY_SEQUENCE = "importance.truncated(level=geometric, band=(0, inf)) on engine"


@pytest.mark.parametrize(
    ("metric", "where", "expected", "weight"),
    [
        ("ratio", "token", "keep.token_band(band=(0, 1.5))", BY_TOKEN),
        ("ratio", "mean", "keep.geometric_band(band=(0, 1.5))", BY_SEQUENCE),
        ("ratio", "sum", "keep.product_band(band=(0, 1.5))", BY_SEQUENCE),
        ("ratio", "max", "keep.veto(low=None, high=1.5)", BY_SEQUENCE),
        ("kl_k1", "token", "keep.token_band(band=(0, 4.48169))", BY_TOKEN),
        ("kl_k1", "mean", "keep.geometric_band(band=(0, 4.48169))", BY_TOKEN),
        ("kl_k2", "token", "keep.token_band(band=(0.176921, 5.65223))", BY_TOKEN),
        ("kl_k2", "sum", "keep.divergence(limit=1.5, measure=k2, total=sum)", BY_TOKEN),
        ("kl_k3", "mean", "keep.divergence(limit=1.5, measure=k3, total=mean)", BY_TOKEN),
        ("kl_k3", "token", "keep.token_band(band=(0.259916, 11.1362))", BY_TOKEN),
    ],
)
def test_rejections(metric: str, where: str, expected: str, weight: str, tmp_path: Path) -> None:
    level = (f"{AT}level=token",) if where == "token" else (f"{AT}level=sequence", f"{AT}agg={where}")
    flags = (DECOUPLED, WITHOUT, f"{AT}metric={metric}", f"{AT}upper=1.5", *level)
    assert stages(converted("areal", *flags, folder=tmp_path))[1:] == [f"{expected} on engine", weight]


def test_their_k3_is_of_the_other_ratio() -> None:
    flags = (DECOUPLED, WITHOUT, f"{AT}metric=kl_k3", f"{AT}upper=0.3")
    low, high = converted("areal", *flags).recipe.correction[0].part.settings["band"]
    for end in (low, high):
        distance = torch.tensor(end, dtype=torch.float64).log()
        torch.testing.assert_close(torch.exp(-distance) - 1 + distance, torch.tensor(0.3, dtype=torch.float64))
    by_mean = converted("areal", *flags, f"{AT}level=sequence")
    assert told(by_mean, f"{AT}metric")[1] == "keep.divergence, k3 of old/rollout; theirs is of rollout/old"


def test_what_a_rejection_cannot_be_is_said() -> None:
    flags = (DECOUPLED, WITHOUT, f"{AT}level=sequence")
    assert told(converted("areal", *flags, f"{AT}agg=max", f"{AT}lower=0.5"), f"{AT}lower")[0] == "no equivalent"
    assert told(converted("areal", *flags, f"{AT}agg=sum", f"{AT}action=clamp"), f"{AT}agg")[0] == "no equivalent"
    assert told(converted("areal", *flags, f"{AT}metric=overlap"), f"{AT}metric")[0] == "no equivalent"
    coins = (f"{AT}metric=binary_kl", f"{AT}agg=sum")
    assert told(converted("areal", *flags, *coins), f"{AT}agg")[0] == "no equivalent"


def test_kpop_is_a_binary_kl_both_ways() -> None:
    flags = (DECOUPLED, WITHOUT, f"{AT}metric=binary_kl", f"{AT}upper=2.0")
    kept = "keep.binary_kl(limit=2.0, level={}, direction=larger, by_sign=False, eps=1e-08) on engine"
    free = "importance.truncated(level=token, band=(0, inf)) on engine"
    assert stages(converted("areal", *flags))[1:] == [kept.format("token"), free]
    assert stages(converted("areal", *flags, f"{AT}level=sequence"))[1:] == [kept.format("sequence"), free]


def test_cispo_and_the_critics_clip() -> None:
    made = converted("areal", DECOUPLED, WITHOUT, "actor.use_cispo_loss=true", "actor.eps_clip=1.0",
                     "actor.eps_clip_higher=4.0", "critic.eps_clip=0.3")  # fmt: skip
    assert stages(made)[0] == "policy_loss.clipped_importance(band=(0, 5)) against old"
    assert made.recipe.value is not None
    assert str(made.recipe.value.part) == "value_loss.squared_clipped(reach=0.3)"


def test_where_the_proximal_policy_comes_from(tmp_path: Path) -> None:
    key = "actor.prox_logp_method"
    between = converted("areal", DECOUPLED, WITHOUT, f"{key}=loglinear", "actor.m2_threshold=0.04", folder=tmp_path)
    assert between.recipe.old == "interpolated"
    assert stages(between)[1] == "keep.second_moment(limit=0.04) on engine"
    assert between.recipe.weighting == part("weighting.token_mean", over="kept")
    assert converted("areal", DECOUPLED, WITHOUT, f"{key}=metrics").recipe.old == "recompute"
    assert told(converted("areal", DECOUPLED, WITHOUT, f"{key}=linear"), key)[0] == "no equivalent"
    assert converted("areal", WITHOUT).recipe.loss.anchor == "rollout"
    assert converted("areal", WITHOUT, "actor.recompute_logprob=true").recipe.loss.anchor == "old"


def test_without_a_critic_lambda_discounts() -> None:
    made = converted("areal", "actor.discount=0.5", "actor.gae_lambda=0.9").recipe
    assert made.advantage == part("advantage.reward_to_go", gamma=0.45)
    assert made.kl is not None
    assert made.kl.into == "token_reward"


@pytest.mark.parametrize(
    ("lam", "setting", "expected"),
    [
        ("vapo_length_adaptive_gae", "alpha=0.05",
         part("advantage.gae_by_length", alpha=0.05, gamma=1.0, lam_value=1.0)),
        ("relative_position_gae_lambda", "q=0.5", part("advantage.gae_by_share", share=0.5, gamma=1.0)),
        ("mine", "q=0.5", part("advantage.gae", gamma=1.0, lam=1.0)),
    ],
)  # fmt: skip
def test_lambdas_of_the_length(lam: str, setting: str, expected: object, tmp_path: Path) -> None:
    start = "actor.gae_lambda"
    flags = ("critic.value_eps_clip=0.2", f"{start}=areal.trainer.ppo.lambda_fn.{lam}", f"{start}_kwargs.{setting}")
    found = converted("areal", *flags, folder=tmp_path)
    assert found.recipe.advantage == expected
    assert (told(found, start)[0] == "no equivalent") == (lam == "mine")


def test_turns_have_a_gae_of_their_own() -> None:
    made = converted(
        "areal", "critic.value_eps_clip=0.2", "actor.gae_timestep_unit=turn", "actor.gae_lambda=0.9"
    ).recipe
    assert made.advantage == part("advantage.turn_gae", gamma=1.0, lam=0.9)


def test_norms() -> None:
    norm = "actor.reward_norm."
    apart = (WITHOUT, f"{norm}mean_level=group", f"{norm}mean_leave1out=true")
    assert converted("areal", *apart, f"{norm}std_level=null").recipe.normalize == part("normalize.leave_one_out")
    spread = converted("areal", *apart, f"{norm}std_level=group")
    assert spread.recipe.normalize == part("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-5)
    # The others' mean in both, as AReaL computes it: the same as the plain mean in both.
    reward = torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=torch.float64)
    centred = reward - (reward.sum() - reward) / 3
    theirs = centred / (centred.square().sum() / 3).sqrt()
    torch.testing.assert_close(theirs, (reward - reward.mean()) / reward.std())


def test_sapo_on_the_ratio_of_a_sequence() -> None:
    made = converted("areal", WITHOUT, "actor.use_sapo_loss=true", "actor.importance_sampling_level=sequence").recipe
    assert made.loss.part.formula.name == "policy_loss.geometric_soft_gated"


def test_a_clip_of_nothing_is_a_band_that_single_precision_cannot_tell_from_one() -> None:
    low, high = converted("areal", WITHOUT, "actor.eps_clip=0.0").recipe.loss.part.settings["band"]
    assert low < 1 < high
    assert torch.tensor([low, high], dtype=torch.float32).tolist() == [1.0, 1.0]
