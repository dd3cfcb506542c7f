"""Our hooks inside frameworks that have no wheel: TRIMTAB_SLIME, TRIMTAB_PRIME_RL, TRIMTAB_NEMO_RL name checkouts."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.peers.padded import Padded, assert_agree, padded
from tests.peers.peer import Peer, PeerError

import trimtab
from trimtab.signal import recipe

HERE = Path(__file__).parent
FLOAT32 = 2e-6
STUBS = {
    "SLIME": ("megatron", "ray", "sglang", "sglang_router", "transformers", "transformer_engine", "wandb", "mbridge",
              "httpx", "tensorboard", "slime.utils.accelerator", "slime.backends.sglang_utils"),
    "PRIME_RL": ("prime_rl.configs", "prime_rl.utils.utils", "vllm", "verifiers", "transformers", "renderers"),
    "NEMO_RL": ("ray", "transformers", "nemo_rl.algorithms.x_token", "nemo_rl.distributed", "nemo_rl.models",
                "nemo_rl.data", "tensordict", "omegaconf", "mlflow", "wandb", "hydra", "swanlab",
                "nemo_rl.utils"),
}  # fmt: skip


def started(name: str) -> Iterator[Peer]:
    folder = os.environ.get(f"TRIMTAB_{name}")
    if not folder:
        pytest.skip(f"TRIMTAB_{name} names no checkout")
    places = [Path(folder), Path(folder) / "src"]
    paths = (*places[1:], Path(trimtab.__file__).parents[1], HERE)
    peer = Peer(places[0], STUBS[name], paths=paths, TORCHDYNAMO_DISABLE="1", TRIMTAB_RECIPE="")
    yield peer
    peer.close()


slime = pytest.fixture(scope="module", name="slime")(lambda: (yield from started("SLIME")))
prime = pytest.fixture(scope="module", name="prime")(lambda: (yield from started("PRIME_RL")))
nemo = pytest.fixture(scope="module", name="nemo")(lambda: (yield from started("NEMO_RL")))


def lists(batch: Padded, **names: str) -> dict[str, list[torch.Tensor]]:
    """Fields as one tensor per row."""
    return {theirs: [*getattr(batch, ours)] for theirs, ours in names.items()}


def in_slime(peer: Peer, ours: str | None, *, advantage: float = 1.0, **given: Any) -> Any:
    batch = padded(0, dtype=torch.float32)
    rows = lists(batch, loss_masks="mask", log_probs="old", rollout_log_probs="rollout", ref_log_probs="ref")
    rows["advantages"] = [*(batch.advantage.mean(1, keepdim=True).expand_as(batch.mask) * advantage)]
    found, gradient = peer.call(
        "inside:slime_loss", gradient=("logits",), logits=batch.current.reshape(-1), ours=ours, lists=rows,
        settings=given.pop("settings", {}), **given,
    )  # fmt: skip
    return (found[0], gradient["logits"]), found[1:]


SLIME = {
    "grpo": {},
    "tokens": {"calculate_per_token_loss": True},
    "dual clip": {"eps_clip_c": 1.3},
    "TIS": {"use_tis": True},
    "KL and entropy": {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coef": 0.05},
    "gspo": {"advantage_estimator": "gspo"},
    "OPSM": {"use_opsm": True, "opsm_delta": -0.1},
}


@pytest.mark.parametrize("settings", SLIME.values(), ids=SLIME)
def test_slime_as_it_is_configured(slime: Peer, settings: dict[str, Any]) -> None:
    mine, theirs = in_slime(slime, "custom_loss", settings=settings), in_slime(slime, None, settings=settings)
    assert_agree(mine[0], theirs[0], tolerance=FLOAT32)
    assert_agree(mine[1][0], theirs[1][0], tolerance=0.0)


def test_a_doubled_weight_doubles_slimes_loss(slime: Peer) -> None:
    once, twice = in_slime(slime, "custom_loss")[0], in_slime(slime, "custom_loss", advantage=2.0)[0]
    assert_agree(twice, (2 * once[0], 2 * once[1]), tolerance=FLOAT32)


def test_the_watch_changes_nothing_in_slime(slime: Peer, tmp_path: Path) -> None:
    watched, plain = in_slime(slime, "watched", watch=str(tmp_path)), in_slime(slime, None)
    assert_agree(watched[0], plain[0], tolerance=0.0)
    assert (watched[1][-1]["steps"], watched[1][-1]["failures"]) == (1, [])


def test_a_recipe_inside_slime_is_the_signal_on_the_same_batch(slime: Peer) -> None:
    batch = padded(0, dtype=torch.float32)
    mine, rest = in_slime(slime, "custom_loss", recipe="tis", settings={"calculate_per_token_loss": True})
    leaf = batch.current.clone().requires_grad_()
    advantage = batch.advantage.mean(1)
    loss, _ = trimtab.loss(
        leaf, recipe="tis", mask=batch.mask, advantage=advantage, logp_old=batch.old, logp_rollout=batch.rollout
    )
    loss.backward()
    assert leaf.grad is not None
    assert_agree(mine, (loss.detach() * rest[0], leaf.grad.reshape(-1) * rest[0]), tolerance=2e-5)  # sums of 25 tokens
    with pytest.raises(PeerError, match=r"slime makes weighting\.sequence_mean_token_mean"):
        _ = in_slime(slime, "custom_loss", recipe="tis")


def test_our_tis_is_slimes(slime: Peer) -> None:
    path = {"use_tis": True, "custom_tis_function_path": "trimtab.integrations.slime.tis"}
    mine, theirs = in_slime(slime, None, settings=path), in_slime(slime, None, settings={"use_tis": True})
    assert_agree(mine[0], theirs[0], tolerance=FLOAT32)


def test_opsm_is_decided_once_per_sequence(slime: Peer) -> None:
    """Advantages are the same at all tokens of a row here, so slime's own mask must agree."""
    settings = {"use_opsm": True, "opsm_delta": -0.1}
    mine, theirs = in_slime(slime, None, settings=settings, opsm=True), in_slime(slime, None, settings=settings)
    assert_agree(mine[0], theirs[0], tolerance=FLOAT32)


@pytest.mark.parametrize("std", [True, False])
def test_rewards_of_slime(slime: Peer, std: bool) -> None:
    settings = {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": std,
                "n_samples_per_prompt": 3, "rollout_batch_size": 2}  # fmt: skip
    theirs, mine = slime.call(
        "inside:slime_rewards", rewards=[1.0, 0.0, 0.5, 2.0, 0.0, 1.0], groups=[0, 0, 0, 1, 1, 1], settings=settings
    )
    assert mine[0] == theirs[0]
    assert mine[1] == pytest.approx(theirs[1], abs=1e-6)


def test_ppo_advantages_of_slime_and_the_raw_kl(slime: Peer) -> None:
    batch = padded(0, holes=False, dtype=torch.float32)
    whole = torch.ones_like(batch.mask)
    rows = lists(batch, log_probs="old", ref_log_probs="ref", values="value")
    settings = {"advantage_estimator": "ppo", "kl_coef": 0.05, "kl_loss_type": "k1", "gamma": 1.0, "lambd": 0.9}
    theirs, mine = slime.call(
        "inside:slime_advantages", settings=settings,
        lists={**rows, "loss_masks": [*whole], "rewards": batch.reward.tolist()},
    )  # fmt: skip
    for name in ("advantages", "returns"):
        assert_agree(torch.stack(mine[name]), torch.stack(theirs[name]), tolerance=1e-5)
    assert_agree(torch.stack(mine["kl"]), batch.old - batch.ref, tolerance=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_unbiased_kl": True}, "slime: use_unbiased_kl is not mapped"),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"}, "bounds the estimate"),
        ({"advantage_estimator": "cispo"}, "cispo is not mapped"),
    ],
)
def test_an_option_of_slime_that_is_not_mapped_is_refused(slime: Peer, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PeerError, match=said):
        _ = in_slime(slime, "custom_loss", settings=settings)


def in_prime(peer: Peer, ours: str | None, settings: dict[str, Any], *, advantage: float = 1.0, **given: Any) -> Any:
    batch = padded(0, dtype=torch.float32)
    rows = lists(batch, loss_mask="mask", inference_logprobs="rollout", advantages="advantage")
    rows["advantages"] = [row * advantage for row in rows["advantages"]]
    found, gradient = peer.call(
        "inside:prime_rl_loss", gradient=("trainer_logprobs",), trainer_logprobs=batch.current.reshape(-1), ours=ours,
        settings=settings, lists=rows, **given,
    )  # fmt: skip
    return (found[0], gradient["trainer_logprobs"]), found[1:]


RATIO = {"dppo_mask_low": 1e9, "dppo_mask_high": 1e9, "kl_tau": 0.0}
"""prime-rl's default loss without its mask and its KL: the ratio to the sampler times the advantage."""


OURS = {"recipe": "cispo", "loss": {"formula": "policy_loss.clipped", "anchor": "rollout", "band": [0.0, 1e30]}}


def test_prime_rls_ratio_is_a_recipe(prime: Peer) -> None:
    mine, theirs = in_prime(prime, "loss", OURS), in_prime(prime, None, RATIO)
    assert_agree(mine[0], theirs[0], tolerance=FLOAT32)
    twice = in_prime(prime, "loss", OURS, advantage=2.0)
    assert_agree(twice[0], (2 * mine[0][0], 2 * mine[0][1]), tolerance=FLOAT32)


def test_a_recipe_inside_prime_rl_is_the_signal_on_the_same_batch(prime: Peer) -> None:
    batch = padded(0, dtype=torch.float32)
    mine, _ = in_prime(prime, "loss", {"recipe": "cispo", "loss": {"anchor": "rollout"}})
    leaf = batch.current.clone().requires_grad_()
    loss, _ = trimtab.loss(
        leaf, recipe=recipe("cispo", loss={"anchor": "rollout"}, old="absent"), mask=batch.mask,
        advantage=batch.advantage, logp_rollout=batch.rollout,
        counts=trimtab.Counts(tokens=90, sequences=6),
    )  # fmt: skip
    loss.backward()
    assert leaf.grad is not None
    assert_agree(mine, (loss.detach(), leaf.grad.reshape(-1)), tolerance=FLOAT32)


def test_the_watch_changes_nothing_in_prime_rl(prime: Peer, tmp_path: Path) -> None:
    watched, plain = (
        in_prime(prime, "watched", RATIO | {"folder": str(tmp_path)}, watch="yes"),
        in_prime(prime, None, RATIO),
    )
    assert_agree(watched[0], plain[0], tolerance=0.0)
    assert (watched[1][-1]["steps"], watched[1][-1]["failures"]) == (1, [])


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "dppo_mask_high, ipo_threshold"), ({"recipe": "tis"}, "compares with logp_old in .*prime-rl has none"),
     ({"recipe": "dr_grpo"}, "weighs tokens by weighting.constant_divisor")],
)  # fmt: skip
def test_what_cannot_act_in_prime_rl_is_refused(prime: Peer, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PeerError, match=said):
        _ = in_prime(prime, "loss", settings)


NEMO = {"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "ratio_clip_c": None, "reference_policy_kl_penalty": 0.0,
        "reference_policy_kl_type": "k3", "kl_input_clamp_value": None, "kl_output_clamp_value": None,
        "token_level_loss": True, "use_importance_sampling_correction": False, "use_on_policy_kl_approximation": False,
        "truncated_importance_sampling_ratio": None}  # fmt: skip


def in_nemo(peer: Peer, ours: bool, settings: dict[str, Any], *, advantage: float = 1.0, **given: Any) -> Any:
    batch = padded(0, dtype=torch.float32)

    def shifted(field: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros(len(field), 1), field], 1)

    names = {"token_mask": "mask", "prev_logprobs": "old", "generation_logprobs": "rollout", "advantages": "advantage",
             "reference_policy_logprobs": "ref"}  # fmt: skip
    data = {theirs: shifted(getattr(batch, mine)) for theirs, mine in names.items()}
    data |= {
        "sample_mask": torch.ones(6),
        "advantages": data["advantages"] * advantage,
        "input_ids": data["token_mask"],
    }
    found, gradient = peer.call(
        "inside:nemo_rl_loss", gradient=("next_token_logprobs",), next_token_logprobs=batch.current, ours=ours,
        settings=NEMO | settings, data=data, **given,
    )  # fmt: skip
    return (found[0], gradient["next_token_logprobs"]), found[1:]


@pytest.mark.parametrize(
    "settings",
    [{}, {"ratio_clip_c": 1.3}, {"token_level_loss": False},
     {"use_importance_sampling_correction": True, "truncated_importance_sampling_ratio": 1.2,
      "truncated_importance_sampling_type": "tis"}],
)  # fmt: skip
def test_nemo_rl_as_it_is_configured(nemo: Peer, settings: dict[str, Any]) -> None:
    assert_agree(in_nemo(nemo, True, settings)[0], in_nemo(nemo, False, settings)[0], tolerance=FLOAT32)


def test_the_watch_changes_nothing_in_nemo_rl(nemo: Peer, tmp_path: Path) -> None:
    watched, plain = in_nemo(nemo, False, {}, watch=str(tmp_path)), in_nemo(nemo, False, {})
    assert_agree(watched[0], plain[0], tolerance=0.0)
    assert (watched[1][-1]["steps"], watched[1][-1]["failures"]) == (1, [])


def test_an_option_of_nemo_rl_that_is_not_mapped_is_refused(nemo: Peer) -> None:
    with pytest.raises(PeerError, match="NeMo-RL: use_cispo is not mapped"):
        _ = in_nemo(nemo, True, {"use_cispo": True})
