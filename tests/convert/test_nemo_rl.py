"""NeMo-RL's estimators, KLs and corrections."""

from pathlib import Path

import pytest
import torch
from tests.convert.converting import converted, stages, told

from trimtab.signal import Term, kl, part

LOSS, AT = "loss_fn.", "grpo.adv_estimator."
WITHOUT = f"{LOSS}reference_policy_kl_penalty=0"


def test_the_default_is_in_units_of_the_others(tmp_path: Path) -> None:
    made = converted("nemo_rl", WITHOUT, "grpo.seq_logprob_error_threshold=2.0", folder=tmp_path).recipe
    assert made.normalize == part("normalize.leave_one_out", std="others", eps=1e-6)
    assert [str(one) for one in made.correction] == [
        "keep.divergence(limit=2.0, measure=exp_distance, total=mean) on engine"
    ]
    plain = converted("nemo_rl", WITHOUT, "grpo.normalize_rewards=false").recipe
    assert plain.normalize == part("normalize.leave_one_out", std="none", eps=1e-6)


def test_each_reward_by_itself(tmp_path: Path) -> None:
    flags = (WITHOUT, f"{AT}name=gdpo", f"{AT}reward_weights=[1.0,2.0]", f"{AT}use_leave_one_out_baseline=false")
    made = converted("nemo_rl", *flags, folder=tmp_path).recipe
    assert made.normalize == part("normalize.each_key", weights=(1.0, 2.0), ddof=1, eps=1e-6)
    apart = converted("nemo_rl", *flags[:-1], f"{AT}use_leave_one_out_baseline=true")
    assert told(apart, f"{AT}use_leave_one_out_baseline")[0] == "no equivalent"
    assert told(converted("nemo_rl", *flags[:2]), f"{AT}name")[0] == "no equivalent"


def test_a_teacher_alone(tmp_path: Path) -> None:
    found = converted("nemo_rl", WITHOUT, f"{AT}name=opd", f"{LOSS}disable_ppo_ratio=true", folder=tmp_path)
    assert found.recipe.advantage == part("advantage.plus_teacher", coef=1.0, outcome_coef=0.0)
    assert any("logp_teacher" in one for one in found.warnings)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), part("advantage.gae", gamma=1.0, lam=0.95)),
        (("gae_lambda_value=1.0",), part("advantage.gae", gamma=1.0, lam=0.95, lam_value=1.0)),
        (("gae_lambda_policy=0.9",), part("advantage.gae", gamma=1.0, lam=0.9, lam_value=0.95)),
        (("gae_lambda_value=1.0", "length_adaptive_alpha=0.05"),
         part("advantage.gae_by_length", alpha=0.05, gamma=1.0, lam_value=1.0)),
    ],
)  # fmt: skip
def test_gae(more: tuple[str, ...], expected: object, tmp_path: Path) -> None:
    start = "ppo.adv_estimator."
    flags = (WITHOUT, f"{start}name=gae", "value_loss_fn.scale=0.4", *(f"{start}{one}" for one in more))
    made = converted("nemo_rl", *flags, folder=tmp_path).recipe
    assert made.advantage == expected
    assert made.value is not None
    assert (made.value.coef, made.value.part) == (0.4, part("value_loss.squared"))
    assert made.whiten


@pytest.mark.parametrize(
    ("kind", "flags", "expected", "anchor"),
    [
        ("k3", (), part("kl.k2_gradient", value="k3"), None),
        ("k1", (), part("kl.k2_gradient", value="k1"), None),
        ("k2", (), part("kl.importance_weighted_k2"), "old"),
        ("k1", (f"{LOSS}use_on_policy_kl_approximation=true",), part("kl.importance_weighted_k1"), "rollout"),
    ],
)
def test_kls(kind: str, flags: tuple[str, ...], expected: object, anchor: str | None, tmp_path: Path) -> None:
    asked = (f"{LOSS}reference_policy_kl_type={kind}", f"{LOSS}reference_policy_kl_penalty=0.01", *flags)
    made = converted("nemo_rl", *asked, folder=tmp_path).recipe.kl
    assert made is not None
    assert (made.part, made.anchor, made.into) == (expected, anchor, "loss")


def test_their_score_function_term_makes_k3_what_k2_gradient_is() -> None:
    logp = torch.tensor([-0.3, -2.0, -0.01], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-0.5, -1.0, -0.02], dtype=torch.float64)
    theirs = torch.exp(logp - logp.detach()) * kl.k3(logp, ref)
    ours = kl.k2_gradient(logp, ref, value="k3")
    torch.testing.assert_close(theirs, ours)
    slopes = [torch.autograd.grad(one.sum(), logp, retain_graph=True)[0] for one in (theirs, ours)]
    torch.testing.assert_close(*slopes)


def test_weights_of_whole_sequences(tmp_path: Path) -> None:
    start = f"{LOSS}truncated_importance_sampling_"
    flags = (f"{LOSS}use_importance_sampling_correction=true", f"{LOSS}sequence_level_importance_ratios=true",
             f"{start}type=icepop", f"{start}ratio_min=0.5", f"{start}ratio=5.0")  # fmt: skip
    assert stages(converted("nemo_rl", WITHOUT, *flags, folder=tmp_path))[1:] == [
        "keep.product_band(band=(0.5, 5)) on engine", "importance.truncated(level=sequence, band=(0, inf)) on engine",
    ]  # fmt: skip
    capped = converted("nemo_rl", WITHOUT, flags[1], f"{LOSS}ratio_clip_c=3.0")
    assert told(capped, f"{LOSS}ratio_clip_c")[0] == "no equivalent"


def test_unfinished_answers() -> None:
    start = "grpo.reward_shaping."
    flags = (
        WITHOUT,
        f"{start}enabled=true",
        f"{start}stop_properly_penalty_coef=0.5",
        f"{start}overlong_buffer_length=9",
    )
    found = converted("nemo_rl", *flags)
    assert found.recipe.reward == (part("reward.not_ended_scale", factor=0.5),)
    assert told(found, f"{start}overlong_buffer_length")[1] == "inert: stop_properly_penalty_coef is set"


def test_the_likelihood_of_rewarded_answers(tmp_path: Path) -> None:
    found = converted("nemo_rl", WITHOUT, f"{LOSS}positive_example_nll_weight=0.1", folder=tmp_path)
    assert found.recipe.nll == Term(coef=0.1, on="rewarded")
    assert "theirs a micro-batch's" in told(found, f"{LOSS}positive_example_nll_weight")[1]
    assert converted("nemo_rl", WITHOUT).recipe.nll is None
