"""A converted configuration computes what the framework computes with it: loss and gradient on the same batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.peers.padded import Padded, assert_agree, padded
from tests.peers.peer import Peer
from tests.peers.test_hooks import OFF
from tests.peers.test_inside import FLOAT32, INFO, called, in_areal, in_openrlhf, in_verl
from tests.peers.test_inside import peers as peers

import trimtab
from trimtab.convert import convert
from trimtab.signal import Recipe

SHARED = {"counts": trimtab.Counts(tokens=90, sequences=14), "ranks": 2}
"""What the calls of `test_inside` tell the frameworks of the whole step."""


def ours(made: Recipe, batch: Padded, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = batch.current.clone().requires_grad_()
    given = {"logp_old": batch.old, "logp_rollout": batch.rollout}
    needed = {name: values for name, values in given.items() if name in made.with_given_advantage.needs}
    loss, _ = trimtab.loss(
        leaf, recipe=made.with_given_advantage, mask=batch.mask, advantage=batch.advantage, grad_scale=None,
        **needed, **more,
    )  # fmt: skip
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


ACTOR = "actor_rollout_ref.actor."
VERL = {
    "a GRPO script": ("vanilla", "token-mean"),
    "a GRPO script by sequences": ("vanilla", "seq-mean-token-mean"),
    "a Dr. GRPO script by sums": ("vanilla", "seq-mean-token-sum"),
    "a GSPO script": ("gspo", "seq-mean-token-mean"),
    "a GSPO script by tokens": ("gspo", "token-mean"),
    "a CISPO script": ("cispo", "token-mean"),
}


@pytest.mark.parametrize(("mode", "agg"), VERL.values(), ids=VERL)
def test_verl(peers: Peer, mode: str, agg: str) -> None:
    flags = (
        "algorithm.adv_estimator=grpo", f"{ACTOR}policy_loss.loss_mode={mode}", f"{ACTOR}loss_agg_mode={agg}",
        f"{ACTOR}clip_ratio_low=0.2", f"{ACTOR}clip_ratio_high=0.28", f"{ACTOR}clip_ratio_c=1.3",
    )  # fmt: skip
    theirs, _ = in_verl(peers, mode, agg=agg)
    assert_agree(
        ours(convert("verl", "", flags).recipe, padded(0, dtype=torch.float32), **SHARED), theirs, tolerance=FLOAT32
    )


SKYRL = ("regular", "dual_clip", "gspo", "sapo")


@pytest.mark.parametrize("kind", SKYRL)
def test_skyrl(peers: Peer, kind: str) -> None:
    start = "trainer.algorithm."
    correction = {
        "tis_ratio_type": "token", "token_tis_ratio_clip_high": 1.5, "sequence_mask_metric": "geometric",
        "geo_mask_low": 0.8, "geo_mask_high": 1.2,
    }  # fmt: skip
    flags = (
        f"{start}policy_loss_type={kind}", f"{start}eps_clip_low=0.2", f"{start}eps_clip_high=0.28",
        f"{start}clip_ratio_c=1.3", f"{start}use_kl_loss=false", f"{start}loss_reduction=token_mean",
        *(f"{start}off_policy_correction.{name}={value}" for name, value in correction.items()),
    )  # fmt: skip
    made = convert("skyrl", "", flags).recipe
    batch = padded(1, dtype=torch.float32)
    theirs, _ = called(
        peers, "skyrl_loss", "log_probs", batch, name=kind, reduction="token_mean", old_log_probs=batch.old,
        settings={"eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 1.3,
                  "off_policy_correction": OFF | correction, "sapo": {"tau_pos": 1.0, "tau_neg": 1.05}},
        advantages=batch.advantage, loss_mask=batch.mask, rollout_logprobs=batch.rollout,
    )  # fmt: skip
    assert_agree(ours(made, batch), theirs, tolerance=FLOAT32)


@pytest.mark.parametrize("level", ["seq", "token"])
@pytest.mark.parametrize(("gating", "bounds"), [("ratio", (0.9, 1.2)), ("binary_kl", (0.02,)), ("tv", (0.1,))])
def test_openrlhf(peers: Peer, level: str, gating: str, bounds: tuple[float, ...]) -> None:
    start = "--algo.advantage.is_correction_"
    flags = (
        "--actor.eps_clip_low_high", "0.2", "0.28", "--actor.dual_clip", "1.3", "--algo.kl.init_coef", "0",
        "--algo.advantage.estimator", "group_norm", f"{start}level", level, f"{start}gating", gating,
        f"{start}threshold", *map(str, bounds),
    )  # fmt: skip
    made = convert("openrlhf", "", flags).recipe
    threshold = [*bounds] if gating == "ratio" else [0.0, *bounds]
    settings = {"is_correction_level": level, "is_correction_gating": gating, "is_correction_threshold": threshold}
    theirs, _ = in_openrlhf(peers, "own", settings=settings)
    assert_agree(ours(made, padded(2, dtype=torch.float32), **SHARED), theirs, tolerance=FLOAT32)


def test_openrlhf_by_the_ratio_to_the_sampler(peers: Peer) -> None:
    flags = (
        "--actor.eps_clip_low_high", "0.2", "0.28", "--algo.kl.init_coef", "0", "--algo.advantage.estimator", "rloo",
        "--actor.policy_loss_type", "gspo", "--algo.advantage.is_correction_level", "token",
    )  # fmt: skip
    made = convert("openrlhf", "", flags).recipe
    batch = padded(2, dtype=torch.float32)
    batch = replace(batch, advantage=batch.advantage[:, :1].expand_as(batch.advantage) * batch.mask)
    settings = {"is_correction_level": "token", "policy_loss_type": "gspo", "dual_clip": None}
    theirs, _ = called(
        peers, "openrlhf_loss", "log_probs", batch, ours=False, info=INFO,
        settings={"clip_eps_low": 0.2, "clip_eps_high": 0.28, "token_level_loss": True, **settings},
        old_log_probs=batch.old, advantages=batch.advantage, action_mask=batch.mask, rollout_log_probs=batch.rollout,
    )  # fmt: skip
    assert_agree(ours(made, batch, **SHARED), theirs, tolerance=FLOAT32)


def test_areal(peers: Peer, tmp_path: Any) -> None:
    path = tmp_path / "areal.yaml"
    path.write_text(
        "actor:\n  eps_clip: 0.2\n  eps_clip_higher: 0.28\n  c_clip: 1.3\n  use_decoupled_loss: true\n  kl_ctl: 0.0\n"
        "  rejection_sampling:\n    metric: ratio\n    level: token\n    action: mask\n    lower: 0.8\n    upper: 1.5\n"
    )
    theirs, _ = in_areal(peers, "own")
    assert_agree(ours(convert("areal", path).recipe, padded(0, dtype=torch.float32)), theirs, tolerance=FLOAT32)
