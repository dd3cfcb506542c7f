"""Our hooks inside verl and SkyRL: as the framework is configured, they give its own loss and gradient."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.peers.padded import SEEDS, Padded, assert_agree, padded
from tests.peers.peer import Peer
from tests.peers.test_skyrl import off_policy, reduced, theirs
from tests.peers.test_verl import actor
from torch import Tensor

import trimtab
from trimtab.errors import AdapterError
from trimtab.integrations import skyrl as in_skyrl
from trimtab.integrations import verl as in_verl
from trimtab.signal import Recipe, Stage, part, recipe

pytestmark = pytest.mark.filterwarnings("ignore:the sampler differs from the trainer")
FLOAT32, FLOAT64 = 2e-6, 1e-12
OFF = {
    "tis_ratio_type": None, "token_tis_ratio_clip_high": 2.0, "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None, "geo_mask_low": 0.99, "geo_mask_high": 1.01, "product_mask_low": 0.5,
    "product_mask_high": 2.0, "outlier_token_is_threshold_low": None, "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None, "token_mask_is_threshold_high": None,
}  # fmt: skip


class Options(SimpleNamespace):
    """A framework's configuration, as its hook reads it."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def verl_config(**scale: Any) -> Options:
    return Options(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1.3, global_batch_info=scale)


def in_hook(call: Any, current: Tensor, **given: Any) -> tuple[Tensor, Tensor, dict[str, float]]:
    leaf = current.clone().requires_grad_()
    loss, metrics = call(leaf, **given)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad, metrics


def of_verl(
    batch: Padded, how: Any = None, *, mode: str = "token-mean", factor: Tensor | None = None, **scale: Any
) -> Any:
    hook = in_verl.policy_loss(how)
    return in_hook(
        lambda leaf: hook(
            old_log_prob=batch.old, log_prob=leaf, advantages=batch.advantage, response_mask=batch.trainable,
            loss_agg_mode=mode, config=verl_config(**scale), rollout_is_weights=factor,
        ),
        batch.current,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", [*in_verl.WEIGHTINGS])
@pytest.mark.parametrize("scale", [{}, {"dp_size": 2, "batch_num_tokens": 90, "global_batch_size": 14}])
def test_verl_as_it_is_configured(verl: Peer, seed: int, mode: str, scale: dict[str, int]) -> None:
    batch = padded(seed)
    factor = torch.rand(batch.old.shape, dtype=torch.float64) + 0.5
    mine = of_verl(batch, mode=mode, factor=factor, **scale)
    settings = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1.3}
    config = actor(**settings, global_batch_info=scale)
    (loss, _), gradient = verl.call(
        "verl.trainer.ppo.core_algos:compute_policy_loss_vanilla", gradient=("log_prob",),
        old_log_prob=batch.old, log_prob=batch.current, advantages=batch.advantage, response_mask=batch.mask,
        loss_agg_mode=mode, config=config, rollout_is_weights=factor,
    )  # fmt: skip
    assert_agree(mine[:2], (loss, gradient["log_prob"]), tolerance=1e-8)


SKYRL = {
    "regular": {},
    "token TIS": {"tis_ratio_type": "token"},
    "sequence TIS, veto": {"tis_ratio_type": "sequence", "outlier_token_is_threshold_low": 0.6},
    "geometric": {"sequence_mask_metric": "geometric", "geo_mask_low": 0.9, "geo_mask_high": 1.1},
    "product": {"sequence_mask_metric": "product"},
    "token mask": {"token_mask_is_threshold_low": 0.8, "token_mask_is_threshold_high": 1.3},
}


def of_skyrl(batch: Padded, how: Any = None, *, advantage: Tensor | None = None, **options: Any) -> Any:
    hook = in_skyrl.policy_loss(how)
    config = Options(
        policy_loss_type="regular", eps_clip_low=0.2, eps_clip_high=0.28, loss_reduction="token_mean",
        off_policy_correction=Options(**OFF | options),
    )  # fmt: skip
    return in_hook(
        lambda leaf: hook(
            leaf, batch.old, batch.advantage if advantage is None else advantage, config=config,
            loss_mask=batch.mask, rollout_logprobs=batch.rollout,
        ),
        batch.current,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", SKYRL.values(), ids=SKYRL)
def test_skyrl_as_it_is_configured(skyrl: Peer, seed: int, options: dict[str, Any]) -> None:
    batch = padded(seed)
    scaled = reduced(skyrl, batch, "token_mean")
    mine = of_skyrl(batch, advantage=scaled, **options)
    pair, _ = theirs(
        skyrl, batch, "ppo_policy_loss", reduction="token_mean", policy_loss_type="regular", eps_clip_low=0.2,
        eps_clip_high=0.28, off_policy_correction=off_policy(**options),
    )  # fmt: skip
    assert_agree(mine[:2], pair, tolerance=FLOAT32)


CORRECTED = Recipe(
    name="corrected",
    loss=Stage(part("policy_loss.clipped", band=(0.8, 1.2)), anchor="old"),
    weighting=part("weighting.token_mean"),
    normalize=part("normalize.raw"),
    correction=(Stage(part("importance.truncated", level="token", band=(0.0, 2.0)), ratio="engine"),),
)


def test_corrected_is_the_signal_on_the_same_batch() -> None:
    batch = padded(0)
    tokens = batch.mask.sum()
    mine = of_skyrl(batch, CORRECTED, advantage=batch.advantage / tokens)
    leaf = batch.current.clone().requires_grad_()
    loss, metrics = trimtab.loss(
        leaf, recipe=CORRECTED, mask=batch.mask, advantage=batch.advantage, logp_old=batch.old,
        logp_rollout=batch.rollout,
    )  # fmt: skip
    loss.backward()
    assert_agree(mine[:2], (loss.detach(), leaf.grad), tolerance=FLOAT64)
    name = "importance.truncated/importance_mean"
    assert mine[2][f"trimtab/{name}"] == pytest.approx(metrics[name], rel=1e-12)


def test_a_doubled_weight_doubles_the_loss() -> None:
    batch = padded(1)
    once, twice = of_verl(batch), of_verl(batch, factor=torch.full_like(batch.old, 2.0))
    assert_agree(twice[:2], (2 * once[0], 2 * once[1]), tolerance=FLOAT64)
    wide = padded(1)
    one, two = of_skyrl(wide), of_skyrl(wide, advantage=2 * wide.advantage)
    assert_agree(two[:2], (2 * one[0], 2 * one[1]), tolerance=FLOAT64)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (CORRECTED, "reads logp_rollout in .*importance.truncated.* which verl does not hand to its policy loss"),
        (recipe("grpo", kl=0.01, weighting="token_mean"), "has a term 'kl', and verl adds its own by actor.use_kl"),
        (recipe("grpo", kl=None, whiten=True), "whitens advantages over the batch"),
        (recipe("grpo", kl=None, filter_constant_groups=True), "drops groups by their rewards"),
        (recipe("grpo", kl=None, not_ended="suppress"), "does not learn which ended"),
        (recipe("grpo", kl=None, weighting="sequence_mean_token_mean"), "divides by weighting.sequence_mean"),
    ],
)  # fmt: skip
def test_what_cannot_act_in_verl_is_refused_by_name(how: Recipe, said: str) -> None:
    with pytest.raises(AdapterError, match=said):
        _ = of_verl(padded(0), how)


def test_skyrl_must_divide_as_the_recipe_says() -> None:
    with pytest.raises(AdapterError, match="SkyRL has divided the advantages by loss_reduction='token_mean'"):
        _ = of_skyrl(padded(0), recipe("grpo", kl=None, weighting="sequence_mean_token_mean"))


def test_a_correction_without_rollout_log_probs_is_refused() -> None:
    batch = padded(0)
    hook = in_skyrl.policy_loss(CORRECTED)
    config = Options(loss_reduction="token_mean", off_policy_correction=Options(**OFF))
    with pytest.raises(AdapterError, match="rollout_logprobs is missing, so it could not act"):
        _ = hook(batch.current, batch.old, batch.advantage, config=config, loss_mask=batch.mask)
