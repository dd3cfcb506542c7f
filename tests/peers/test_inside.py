"""Our hooks inside four released frameworks: chosen and called by the framework's own code, in one child process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.peers.conftest import SKYRL_STUBS, VERL_STUBS
from tests.peers.padded import Padded, assert_agree, padded
from tests.peers.peer import Peer, PeerError
from tests.peers.test_hooks import OFF
from tests.peers.wheels import WheelError, unpack
from torch import Tensor

import trimtab
from trimtab.sentinel.examination.wheels import locked

HERE = Path(__file__).parent
STUBS = (
    *VERL_STUBS, *SKYRL_STUBS, "peft", "hydra", "torchdata", "cachetools", "datasets", "verl.utils.dataset",
    "verl.workers.rollout", "verl.single_controller", "deepspeed", "flash_attn", "ring_flash_attn", "vllm",
    "openrlhf.utils", "openrlhf.models.actor", "aiohttp", "colorlog", "numba", "einops", "swanlab", "tensorboardX",
    "tabulate", "trackio", "wandb",
    "pybase64", "areal.infra", "areal.experimental", "areal.api", "areal.engine",
)  # fmt: skip
FLOAT32 = 2e-6
INFO = {"dp_size": 2, "batch_num_tokens": 90, "global_batch_size": 14}
Pair = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def peers() -> Iterator[Peer]:
    try:
        folders = [unpack(locked()[name]) for name in ("verl", "skyrl", "openrlhf", "areal")]
    except WheelError as reason:
        if os.environ.get("TRIMTAB_OFFLINE") == "1":
            pytest.skip(f"{reason}")
        pytest.fail(f"{reason}", pytrace=False)
    paths = (*folders[1:], Path(trimtab.__file__).parents[1], HERE)
    peer = Peer(
        folders[0], STUBS, paths=paths, VERL_USE_EXTERNAL_MODULES="trimtab.integrations.verl", TRIMTAB_RECIPE=""
    )
    yield peer
    peer.close()


def called(peers: Peer, function: str, leaf: str, batch: Padded, **given: Any) -> tuple[Pair, list[Any]]:
    found, gradient = peers.call(f"inside:{function}", gradient=(leaf,), **{leaf: batch.current}, **given)
    return (found[0], gradient[leaf].reshape(batch.mask.shape)), found[1:]


def in_verl(peers: Peer, mode: str, *, agg: str = "token-mean", advantage: float = 1.0, **given: Any) -> Any:
    batch = padded(0, dtype=torch.float32)
    settings = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 1.3}
    return called(
        peers, "verl_ppo_loss", "log_prob", batch, loss_mode=mode, info=INFO, response_mask=batch.mask,
        settings={**settings, "loss_agg_mode": agg}, old_log_probs=batch.old,
        advantages=batch.advantage * advantage, **given,
    )  # fmt: skip


def in_skyrl(peers: Peer, name: str, *, advantage: float = 1.0, **given: Any) -> Any:
    batch = padded(1, dtype=torch.float32)
    off = OFF | {"tis_ratio_type": "token", "sequence_mask_metric": "geometric", "geo_mask_low": 0.8,
                 "geo_mask_high": 1.2}  # fmt: skip
    return called(
        peers, "skyrl_loss", "log_probs", batch, name=name, reduction="token_mean", old_log_probs=batch.old,
        settings={"eps_clip_low": 0.2, "eps_clip_high": 0.28, "off_policy_correction": off},
        advantages=batch.advantage * advantage, loss_mask=batch.mask, rollout_logprobs=batch.rollout, **given,
    )  # fmt: skip


def in_openrlhf(peers: Peer, name: str, *, advantage: float = 1.0, settings: Any = None, **given: Any) -> Any:
    batch = padded(2, dtype=torch.float32)
    own = {"clip_eps_low": 0.2, "clip_eps_high": 0.28, "dual_clip": 1.3, "token_level_loss": True,
           "is_correction_level": "seq", "is_correction_threshold": [0.9, 1.2]}  # fmt: skip
    return called(
        peers, "openrlhf_loss", "log_probs", batch, ours=name == "trimtab", settings=own | (settings or {}), info=INFO,
        old_log_probs=batch.old, advantages=batch.advantage * advantage, action_mask=batch.mask,
        rollout_log_probs=batch.rollout, **given,
    )  # fmt: skip


def in_areal(peers: Peer, name: str, *, advantage: float = 1.0, settings: Any = None, **given: Any) -> Any:
    batch = padded(0, dtype=torch.float32)
    packed = {"logprobs": batch.rollout, "prox_logp": batch.old, "advantages": batch.advantage * advantage,
              "loss_mask": batch.mask}  # fmt: skip
    data = {key: values.reshape(-1) for key, values in packed.items()} | {"cu_seqlens": torch.arange(7) * 9}
    rejection = {"metric": "ratio", "level": "token", "action": "mask", "agg": "mean", "lower": 0.8, "upper": 1.5}
    own = {"eps_clip": 0.2, "eps_clip_higher": 0.28, "c_clip": 1.3, "rejection_sampling": rejection}
    found, gradient = peers.call(
        "inside:areal_loss", gradient=("logprobs",), logprobs=batch.current.reshape(-1), data=data,
        ours=name == "trimtab", settings=own | (settings or {}), **given,
    )  # fmt: skip
    return (found[0], gradient["logprobs"].reshape(batch.mask.shape)), found[1:]


FRAMEWORKS = {"verl": (in_verl, "vanilla"), "SkyRL": (in_skyrl, "regular"), "OpenRLHF": (in_openrlhf, "own"),
              "AReaL": (in_areal, "own")}  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_as_configured_our_arithmetic_is_the_frameworks(peers: Peer, name: str) -> None:
    call, theirs = FRAMEWORKS[name]
    mine, other = call(peers, "trimtab")[0], call(peers, theirs)[0]
    assert other[1].abs().sum() > 0.1
    assert_agree(mine, other, tolerance=FLOAT32)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_doubled_weight_doubles_the_frameworks_loss(peers: Peer, name: str) -> None:
    call, _ = FRAMEWORKS[name]
    once, twice = call(peers, "trimtab")[0], call(peers, "trimtab", advantage=2.0)[0]
    assert_agree(twice, (2 * once[0], 2 * once[1]), tolerance=FLOAT32)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_watch_changes_nothing_and_learns_of_the_step(peers: Peer, name: str, tmp_path: Path) -> None:
    call, theirs = FRAMEWORKS[name]
    plain, (watched, rest) = call(peers, theirs)[0], call(peers, theirs, watch=str(tmp_path))
    assert_agree(watched, plain, tolerance=0.0)
    assert rest[-1]["steps"] == 1
    assert rest[-1]["failures"] == []
    assert rest[-1]["tokens"] > 20
    assert (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "token-sum"])
def test_verl_divides_as_its_option_says(peers: Peer, mode: str) -> None:
    assert_agree(in_verl(peers, "trimtab", agg=mode)[0], in_verl(peers, "vanilla", agg=mode)[0], tolerance=FLOAT32)


@pytest.mark.parametrize("framework", ["verl", "skyrl"])
@pytest.mark.parametrize("by_std", [True, False])
def test_advantages_of_the_frameworks_grpo(peers: Peer, framework: str, by_std: bool) -> None:
    batch = padded(0)
    named: dict[str, Any] = {"index": np.array([*"aaabbb"]), "grpo_norm_by_std": by_std}
    if framework == "verl":
        named = {"uid": np.array([*"aaabbb"]), "settings": {"norm_adv_by_std_in_grpo": by_std}}
    mine, theirs = (
        peers.call(
            f"inside:{framework}_advantage", token_level_rewards=batch.token_reward, response_mask=batch.mask,
            adv_estimator=name, **named,
        )[0]
        for name in ("trimtab", "grpo")
    )  # fmt: skip
    assert_agree(mine, theirs, tolerance=1e-6)  # SkyRL takes means in float32


CORRECTIONS = {
    "token": {"rollout_is": "token", "rollout_is_threshold": 1.2},
    "sequence": {"rollout_is": "sequence", "rollout_is_threshold": "1.5"},
    "rejection": {"rollout_rs": "seq_mean_k1,token_k1", "rollout_rs_threshold": "0.9_1.2,1.4"},
    "both": {"rollout_is": "token", "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.3_1.5"},
}


@pytest.mark.parametrize("settings", CORRECTIONS.values(), ids=CORRECTIONS)
def test_rollout_correction_of_verl(peers: Peer, settings: dict[str, Any]) -> None:
    batch = padded(0)
    mine, theirs = (
        peers.call(
            "inside:verl_correction", ours=ours, settings=settings, response_mask=batch.mask, old_log_probs=batch.old,
            rollout_log_probs=batch.rollout,
        )[0]
        for ours in (True, False)
    )  # fmt: skip
    assert_agree(mine["response_mask"], theirs["response_mask"], tolerance=0.0)
    if "rollout_is" in settings:
        assert_agree(mine["rollout_is_weights"], theirs["rollout_is_weights"], tolerance=1e-12)
    else:
        assert mine["rollout_is_weights"] is None


def test_a_recipe_inside_openrlhf_is_the_signal_on_the_same_batch(peers: Peer) -> None:
    batch = padded(2, dtype=torch.float32)
    mine, _ = in_openrlhf(peers, "trimtab", recipe="tis", settings={"token_level_loss": True})
    leaf = batch.current.clone().requires_grad_()
    loss, _ = trimtab.loss(
        leaf, recipe="tis", mask=batch.mask, advantage=batch.advantage, logp_old=batch.old, logp_rollout=batch.rollout,
        counts=trimtab.Counts(tokens=90, sequences=14), ranks=2,
    )  # fmt: skip
    loss.backward()
    assert_agree(mine, (loss.detach(), leaf.grad), tolerance=1e-7)


@pytest.mark.parametrize(
    ("call", "settings", "said"),
    [
        (in_openrlhf, {"policy_loss_type": "gspo"}, "OpenRLHF: policy_loss_type=gspo is not mapped"),
        (in_openrlhf, {"is_correction_gating": "tv"}, "OpenRLHF: is_correction_gating=tv has no equivalent"),
        (in_areal, {"m2_threshold": 0.1, "use_sapo_loss": True}, "AReaL: m2_threshold, use_sapo_loss is not mapped"),
        (in_areal, {"something_new": 3}, "AReaL: something_new is not mapped"),
    ],
)
def test_an_option_that_is_not_mapped_is_refused_by_name(peers: Peer, call: Any, settings: Any, said: str) -> None:
    with pytest.raises(PeerError, match=said):
        call(peers, "trimtab", settings=settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_2"}, r"IcePop"),
        ({"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 2}, "rollout_rs=seq_max_k2 has no equivalent"),
        ({"rollout_is": "token", "rollout_is_batch_normalize": True}, "rollout_is_batch_normalize has no equivalent"),
        ({}, "switches nothing on"),
    ],
)
def test_corrections_of_verl_that_are_not_mapped(peers: Peer, settings: Any, said: str) -> None:
    batch = padded(0)
    with pytest.raises(PeerError, match=said):
        peers.call("inside:verl_correction", ours=True, settings=settings, response_mask=batch.mask,
                   old_log_probs=batch.old, rollout_log_probs=batch.rollout)  # fmt: skip
