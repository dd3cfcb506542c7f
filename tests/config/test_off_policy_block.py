"""S5: SkyRL's off-policy-correction block, key for key, with every policy loss."""

import math
import warnings
from dataclasses import replace

import pytest
import torch

import trimtab
from trimtab.config import OffPolicyCorrection, load_run, parse_run, source_metrics
from trimtab.errors import ConfigError, SignalError
from trimtab.signal import Stage, part, recipe

F64 = torch.float64
DEFAULTS = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_low": 0.99,
    "geo_mask_high": 1.01,
    "product_mask_low": 0.5,
    "product_mask_high": 2.0,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
}
LOSSES = {
    "regular": Stage(part("policy_loss.clipped"), anchor="old"),
    "dual_clip": Stage(part("policy_loss.dual_clipped"), anchor="old"),
    "gspo": Stage(part("policy_loss.geometric_clipped_token", band=(0.5, 2.0)), anchor="old"),
    "cispo": Stage(part("policy_loss.clipped_importance"), anchor="old"),
    "sapo": Stage(part("policy_loss.soft_gated"), anchor="old"),
    "clip_cov": Stage(part("policy_loss.covariance_clipped", covariance_low=-9.0, fraction=0.4), anchor="old"),
    "kl_cov": Stage(part("policy_loss.covariance_penalised", fraction=0.4), anchor="old"),
    "cross_entropy": Stage(part("policy_loss.cross_entropy")),
}


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    """Four rows with padding; row 3 has one token far off, so the veto and the masks have something to reject."""
    generator = torch.Generator().manual_seed(seed)
    old = -0.2 - torch.rand(4, 5, generator=generator, dtype=F64)
    rollout = (old + 0.02 * torch.randn(4, 5, generator=generator, dtype=F64)).clamp(max=-1e-3)
    rollout[3, 1] = old[3, 1] - 6
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    return {
        "logp_old": old, "logp_rollout": rollout, "mask": mask,
        "reward": torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=F64), "group": torch.tensor([0, 0, 1, 1]),
    }  # fmt: skip


def run(chosen: trimtab.Recipe, given: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor, dict[str, float]]:
    logp = (given["logp_old"] - 0.05).clone().requires_grad_()
    loss, metrics = trimtab.loss(logp, recipe=chosen, **given)
    loss.backward()
    return loss.item(), logp.grad, metrics


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"use_tis": "banana"}, "use_tis = 'banana' is not possible"),
        ({"use_tis": 1}, "use_tis = 1 is not possible"),
        ({"use_tis": True, "tis_ratio_type": "sequence"}, "use_tis = True and tis_ratio_type = 'sequence' ask for two"),
        ({"use_tis": False, "tis_ratio_type": "token"}, "use_tis = False and tis_ratio_type = 'token' ask for two"),
        ({"tis_imp_ratio_cap": [2.0]}, r"tis_imp_ratio_cap = \[2.0\], so every token would weigh nothing"),
        ({"tis_imp_ratio_cap": True}, "tis_imp_ratio_cap = True, so"),
        ({"tis_imp_ratio_cap": 3.0, "token_tis_ratio_clip_high": 2.0}, "are two caps for one ratio"),
        ({"geo_mask_low": True}, "geo_mask_low = True is not possible"),
        ({"sequence_mask_metric": "geometric", "geo_mask_low": 1.2}, "band = "),
        ({"outlier_token_is_threshold_low": 5.0, "outlier_token_is_threshold_high": 1.0}, "low is at most 1"),
        ({"token_tis_ratio_clip_high": float("inf")}, "token_tis_ratio_clip_high = inf is not possible"),
    ],
    ids=str,
)
def test_two_answers_and_wrong_types_are_refused(block: dict[str, object], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ConfigError, match=message):
            parse_run({"off_policy_correction": block})


def test_the_ten_keys_have_the_sources_defaults() -> None:
    assert OffPolicyCorrection().model_dump() == DEFAULTS
    assert OffPolicyCorrection().stages() == ()


@pytest.mark.parametrize("key", DEFAULTS)
def test_every_key_is_a_dotted_override(key: str) -> None:
    choices = {"tis_ratio_type": "sequence", "sequence_mask_metric": "product"}
    value = choices.get(key, 1.25 if "low" not in key else 0.25)
    loaded = load_run(None, [f"off_policy_correction.{key}={value}"]).off_policy_correction
    assert getattr(loaded, key) == value
    assert load_run(None, ["off_policy_correction.tis_ratio_type=null"]).off_policy_correction.tis_ratio_type is None


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"no key 'off_policy_correction.geo_mask_hihg'; did you mean 'geo_mask_high'\?"
    ):
        parse_run({"off_policy_correction": {"geo_mask_hihg": 1.0}})


def test_deprecated_keys_still_load_and_say_what_to_write() -> None:
    with pytest.warns(
        DeprecationWarning, match='Write instead: tis_ratio_type = "token", token_tis_ratio_clip_high = 3.0'
    ):
        loaded = parse_run({"off_policy_correction": {"use_tis": True, "tis_imp_ratio_cap": 3.0}}).off_policy_correction
    assert (loaded.tis_ratio_type, loaded.token_tis_ratio_clip_high) == ("token", 3.0)
    with pytest.warns(DeprecationWarning, match="Write instead: leave tis_ratio_type out"):
        assert parse_run({"off_policy_correction": {"use_tis": False}}).off_policy_correction.tis_ratio_type is None


@pytest.mark.parametrize("cap", [0, -1.0])
def test_a_cap_of_zero_or_less_is_refused(cap: float) -> None:
    with pytest.raises(ConfigError, match=r"tis_imp_ratio_cap = .* every token would weigh nothing"):
        parse_run({"off_policy_correction": {"use_tis": True, "tis_imp_ratio_cap": cap}})


def test_a_correction_without_rollout_log_probs_is_refused_never_skipped() -> None:
    given = batch()
    del given["logp_rollout"]
    with pytest.raises(SignalError, match="needs logp_rollout, which the batch does not carry"):
        run(parse_run({"recipe": "tis"}).build_recipe(), given)


BLOCKS = {
    "token": {"tis_ratio_type": "token"},
    "sequence": {"tis_ratio_type": "sequence"},
    "geometric": {"sequence_mask_metric": "geometric", "geo_mask_low": 0.9, "geo_mask_high": 1.1},
    "product": {"sequence_mask_metric": "product"},
    "veto": {"outlier_token_is_threshold_low": 1e-4, "outlier_token_is_threshold_high": 100.0},
    "all": {"tis_ratio_type": "token", "sequence_mask_metric": "product", "outlier_token_is_threshold_high": 100.0},
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_works_with_every_policy_loss(loss: str, block: str) -> None:
    """What it rejects gets exactly zero gradient; what it keeps is weighted by exactly its importance."""
    given = batch()
    base = recipe("start_engine_mismatch", correction=(), loss=LOSSES[loss])
    stages = OffPolicyCorrection(**BLOCKS[block]).stages()
    value, gradient, metrics = run(replace(base, correction=stages), given)
    plain = run(base, given)[1]
    rejected = block != "token" and block != "sequence"
    assert math.isfinite(value)
    assert (gradient[3].abs().sum() == 0) == rejected
    assert "clip_ratio" in source_metrics(metrics)
    if block == "token" and loss not in ("clip_cov", "kl_cov"):
        importance = torch.exp(given["logp_old"] - given["logp_rollout"]).clamp(max=2.0)
        torch.testing.assert_close(gradient, plain * importance, atol=1e-12, rtol=0)


def test_the_covariance_of_clip_cov_and_kl_cov_sees_kept_tokens_only() -> None:
    """Changing a rejected row's advantage or log-probs must not change which kept tokens are selected."""
    stages = OffPolicyCorrection(outlier_token_is_threshold_high=100.0).stages()
    for loss in ("clip_cov", "kl_cov"):
        chosen = recipe("start_engine_mismatch", normalize=part("normalize.raw"), correction=stages, loss=LOSSES[loss])
        gradients = []
        for reward in (0.0, 50.0):
            given = batch()
            given["reward"][3] = reward
            gradients.append(run(chosen, given)[1][:3])
        torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)


def test_metrics_carry_the_sources_names_over_trainable_tokens_only() -> None:
    given = batch()
    stages = OffPolicyCorrection(**BLOCKS["all"]).stages()
    names = source_metrics(run(recipe("start_engine_mismatch", correction=stages), given)[2])
    ratio = torch.exp(given["logp_old"] - given["logp_rollout"])[given["mask"].bool()]
    assert names["is_ratio_min"] == pytest.approx(ratio.min().item())
    assert names["is_ratio_min"] > 0.5
    assert names["is_ratio_max"] == pytest.approx(ratio.max().item())
    assert names["is_ratio_mean"] == pytest.approx(ratio.mean().item())
    assert names["is_ratio_std"] == pytest.approx(ratio.std(correction=0).item())
    assert names["tis_token_clip_high_ratio"] == pytest.approx(1 / 14)
    assert names["outlier_seq_masked_ratio"] == names["outlier_seq_over_high_ratio"] == 0.25
    assert names["outlier_seq_under_low_ratio"] == 0.0
    assert names["product_sequence_mask_masked_ratio"] == names["product_sequence_mask_over_high_ratio"] == 0.25
    sequence = OffPolicyCorrection(tis_ratio_type="sequence").stages()
    assert (
        source_metrics(run(recipe("start_engine_mismatch", correction=sequence), given)[2])["tis_seq_clip_high_ratio"]
        == 0.25
    )


@pytest.mark.parametrize(("over", "count"), [("all", 14), ("kept", 10)])
def test_the_denominator_is_a_named_choice(over: str, count: int) -> None:
    given = batch()
    stages = OffPolicyCorrection(outlier_token_is_threshold_high=100.0).stages()
    chosen = recipe(
        "start_engine_mismatch",
        correction=stages,
        weighting=part("weighting.token_mean", over=over),
        loss=LOSSES["cross_entropy"],
    )
    assert run(chosen, given)[1][0, 0].item() == pytest.approx(-1 / count)


def test_without_the_block_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_run({"recipe": "dapo", "off_policy_correction": {}})
