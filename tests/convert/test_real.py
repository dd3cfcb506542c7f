"""Real configurations: TRIMTAB_CHECKOUTS names a folder with a checkout of each framework. Without it, files made here.

The comparison itself is in `tests.convert.real`; `python -m tests.convert.real --checkouts DIR` prints its tables.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.convert.real import shell
from tests.convert.real.compare import compare
from tests.convert.real.examples import EXAMPLES, count, dropped, second_reading
from tests.convert.real.sweep import COMPARED, started, sweep
from tests.peers.peer import Peer
from tests.peers.wheels import WheelError

from trimtab.convert import convert
from trimtab.signal import Recipe, Stage

ACTOR = "actor_rollout_ref.actor"
VERL = f"""
set -euo pipefail
LOW=${{LOW:-0.2}}
ACTOR=(
    {ACTOR}.clip_ratio_low=$LOW {ACTOR}.clip_ratio_high=0.28
    {ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_coef=0.1 {ACTOR}.kl_loss_type=low_var_kl
    {ACTOR}.entropy_coeff=0.01 {ACTOR}.loss_agg_mode=seq-mean-token-mean
)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "${{ACTOR[@]}}" \\
    algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=1.2
"""
ROLLOUT = "algorithm.rollout_correction"
MAIN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator"
BYPASS = f"{MAIN}=rloo {ROLLOUT}.bypass_mode=True {ROLLOUT}.rollout_is=token {ROLLOUT}.rollout_is_threshold=1.3"
ALGORITHM = "uv run -m skyrl.train.entrypoints.main_base trainer.algorithm.use_kl_loss=false trainer.algorithm"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --rollout.n_samples_per_prompt 3 --algo.advantage.estimator"
DECOUPLED = """
actor:
  eps_clip: 0.2
  use_decoupled_loss: true
  kl_ctl: 0.0
  gae_lambda: 0.9
  reward_norm:
    mean_level: group
    std_level: null
"""
REJECTED = (
    f"{ROLLOUT}.rollout_rs=token_k1 {ROLLOUT}.rollout_rs_threshold=0.65_2.0 {ACTOR}.use_kl_loss=True "
    f"{ACTOR}.kl_loss_coef=0.1 {ACTOR}.entropy_coeff=0.01"
)
LEFT_OUT = """
actor:
  kl_ctl: 0.0
  reward_norm:
    mean_level: group
    mean_leave1out: true
    std_level: group
    eps: 1.0e-9
"""


def rejecting(metric: str, level: str, agg: str, upper: float) -> str:
    """AReaL with a rejection."""
    return f"""
actor:
  use_decoupled_loss: true
  kl_ctl: 0.0
  rejection_sampling: {{metric: {metric}, level: {level}, agg: {agg}, upper: {upper}}}
"""


RECOMPUTED = """
actor:
  eps_clip: 0.2
  recompute_logprob: true
  kl_ctl: 0.1
  kl_estimator: k3
  discount: 0.9
"""
MADE = {
    "verl: KL, entropy, sequence mean, importance": ("verl", VERL),
    "verl: clip_ratio alone counts for nothing": ("verl", f"{MAIN}=grpo {ACTOR}.clip_ratio=0.05"),
    "verl: bypass": ("verl", f"{BYPASS} {ROLLOUT}.loss_type=reinforce"),
    "verl: bypass, REINFORCE": ("verl", f"{BYPASS} {ROLLOUT}.loss_type=reinforce trainer.use_v1=False"),
    "verl: bypass, PPO and rejection": (
        "verl", f"{BYPASS} {ROLLOUT}.rollout_rs=token_k1 {ROLLOUT}.rollout_rs_threshold=0.5_1.5 trainer.use_v1=False",
    ),
    "verl: fully asynchronous": (
        "verl", f"{MAIN}=grpo --config-name=fully_async_ppo_trainer {ROLLOUT}.rollout_rs=token_k1 "
        f"{ROLLOUT}.rollout_rs_threshold=0.5_1.5",
    ),
    "verl: SAPO, whatever loss_agg_mode": (
        "verl", f"{MAIN}=grpo {ACTOR}.policy_loss.loss_mode=sapo {ACTOR}.loss_agg_mode=token-mean",
    ),
    "verl: GMPO": (
        "verl", f"{MAIN}=gpg {ACTOR}.policy_loss.loss_mode=geo_mean {ACTOR}.clip_ratio_low=0.4 "
        f"{ACTOR}.clip_ratio_high=0.4",
    ),
    "verl: a rejection, a KL and an entropy": ("verl", f"{MAIN}=grpo {REJECTED}"),
    "verl: a rejection before V1": ("verl", f"{MAIN}=grpo {REJECTED} trainer.use_v1=False"),
    "verl: a rejection, by sequences": ("verl", f"{MAIN}=grpo {REJECTED} {ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    "verl: bypass, DPPO": (
        "verl", f"{MAIN}=grpo {ROLLOUT}.bypass_mode=True {ACTOR}.policy_loss.loss_mode=dppo_tv "
        f"{ACTOR}.clip_ratio_low=0.02 {ACTOR}.clip_ratio_high=0.02",
    ),
    "verl: OPO, DRO": ("verl", f"{MAIN}=opo {ACTOR}.policy_loss.loss_mode=dro {ACTOR}.policy_loss.dro_beta=0.2"),
    "verl: DPPO by its KL": (
        "verl", f"{MAIN}=grpo {ACTOR}.policy_loss.loss_mode=dppo_kl {ACTOR}.clip_ratio_low=0.01 "
        f"{ACTOR}.clip_ratio_high=0.01 {ACTOR}.clip_ratio_c=1.1",
    ),
    "verl: IcePop": ("verl", f"{MAIN}=grpo {ROLLOUT}.rollout_is=token {ROLLOUT}.rollout_is_threshold=0.5_1.5"),
    "verl: weights with a mean of 1": (
        "verl", f"{MAIN}=grpo {ROLLOUT}.rollout_is=token {ROLLOUT}.rollout_is_threshold=1.2 "
        f"{ROLLOUT}.rollout_is_batch_normalize=True",
    ),
    "verl: a KL with the gradient of k2": (
        "verl", f"{MAIN}=grpo {ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_coef=0.1 {ACTOR}.kl_loss_type=k3+",
    ),
    "verl: Pass@k": ("verl", f"{MAIN}=grpo_passk"),
    "SkyRL: DPPO": ("skyrl", f"{ALGORITHM}.policy_loss_type=dppo trainer.algorithm.dppo.delta_high=0.02"),
    "SkyRL: DPPO by its KL": (
        "skyrl", f"{ALGORITHM}.policy_loss_type=dppo trainer.algorithm.dppo.dppo_type=binary_kl "
        "trainer.algorithm.dppo.delta_low=0.01 trainer.algorithm.dppo.delta_high=0.01",
    ),
    "SkyRL: CISPO": ("skyrl", f"{ALGORITHM}.policy_loss_type=cispo trainer.algorithm.cispo.cispo_eps_clip_low=0.1"),
    "SkyRL: a mask of tokens": (
        "skyrl", f"{ALGORITHM}.off_policy_correction.token_mask_is_threshold_low=0.5 "
        "trainer.algorithm.off_policy_correction.token_mask_is_threshold_high=1.5",
    ),
    "SkyRL: rollout_is, weighed once more": (
        "skyrl", f"{ALGORITHM}.policy_loss_type=rollout_is "
        "trainer.algorithm.off_policy_correction.tis_ratio_type=token",
    ),
    "AReaL: a spread around the others' mean": ("areal", LEFT_OUT),
    **{
        f"AReaL: {metric} of {level}, {agg}": ("areal", rejecting(metric, level, agg, upper))
        for metric, level, agg, upper in (
            ("ratio", "sequence", "sum", 1.5), ("ratio", "sequence", "max", 1.3), ("kl_k1", "token", "mean", 0.1),
            ("kl_k2", "sequence", "mean", 0.06), ("kl_k2", "token", "mean", 0.02), ("kl_k3", "token", "mean", 0.02),
        )
    },
    "OpenRLHF: a KL in the loss": (
        "openrlhf", f"{OPENRLHF} rloo --algo.kl.init_coef 0.1 --algo.kl.use_loss --algo.kl.estimator k3",
    ),
    "SkyRL: rollout_is": ("skyrl", f"{ALGORITHM}.policy_loss_type=rollout_is"),
    "SkyRL: a mean by prompt": ("skyrl", f"{ALGORITHM}.loss_reduction=prompt_mean"),
    "AReaL: no rejection, no spread, a lambda": ("areal", DECOUPLED),
    "AReaL: recomputed, and a KL in the reward": ("areal", RECOMPUTED),
    "OpenRLHF: sequences, and a KL in the reward": (
        "openrlhf", f"{OPENRLHF} group_norm --algo.kl.init_coef 0.1 --actor.loss_agg_mode seq-mean-token-mean",
    ),
}  # fmt: skip
"""Files that differ from the framework's usual signal in one thing each; most of them were converted wrongly once."""


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, tuple[Peer, Path]]]:
    try:
        made = {name: started(name) for name in COMPARED}
    except WheelError as reason:
        if os.environ.get("TRIMTAB_OFFLINE") == "1":
            pytest.skip(f"{reason}")
        pytest.fail(f"{reason}", pytrace=False)
    yield made
    for peer, _ in made.values():
        peer.close()


def written(tmp_path: Path, framework: str, text: str) -> Path:
    path = tmp_path / f"given{EXAMPLES[framework].ending}"
    _ = path.write_text(text)
    return path


@pytest.mark.peers
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_file_computes_what_the_framework_makes_of_it(
    peers: dict[str, tuple[Peer, Path]], made: tuple[str, str], tmp_path: Path
) -> None:
    framework = made[0]
    found = compare(framework, written(tmp_path, *made), *peers[framework])
    assert found.agrees, found


def perturbed(made: Recipe, **settings: Any) -> Recipe:
    part = made.loss.part
    return replace(made, loss=Stage(replace(part, settings={**part.settings, **settings}), anchor=made.loss.anchor))


@pytest.mark.peers
def test_a_wrong_bound_or_a_lost_term_is_seen(peers: dict[str, tuple[Peer, Path]], tmp_path: Path) -> None:
    path = written(tmp_path, "verl", VERL)
    made = convert("verl", path).recipe
    wrong = {
        "clip bound": perturbed(made, band=(0.8, 1.27)),
        "KL": replace(made, kl=None),
        "entropy": replace(made, entropy=None),
        "importance": replace(made, correction=()),
        "weighting": replace(made, weighting=convert("verl", "", ("algorithm.adv_estimator=grpo",)).recipe.weighting),
    }
    for name, recipe in wrong.items():
        assert not compare("verl", path, *peers["verl"], recipe=recipe).agrees, name


def test_bash_says_what_a_script_hands_over_and_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"""
set -eu
touch {mark}; echo hello > {mark}; /usr/bin/touch {mark}; command -p touch {mark}
N=${{N:-8}}; : "${{MODE:=token}}"; REST="x.y=1 x.z=2"
if [ "$N" -gt 4 ]; then SIZE=$((N * 2)); else SIZE=1; fi
OWN=(a.b=$SIZE "c.d=[1, 2]"); OWN+=(group=megatron)
python3 -m verl.trainer.main_ppo "${{OWN[@]}}" mode.is=$MODE $REST e.f=${{NEEDED:?}} > {mark} 2>&1
"""
    assert shell.options(shell.handed(text, "main_ppo")) == {
        "a.b": "16", "c.d": "[1, 2]", "group": "megatron", "mode.is": "token", "x.y": "1", "x.z": "2", "e.f": "given",
    }  # fmt: skip
    assert not mark.exists()


def test_a_dropped_option_and_a_wrong_value_are_seen(tmp_path: Path) -> None:
    path = written(tmp_path, "verl", VERL)
    made, second = convert("verl", path), second_reading("verl", path)
    assert dropped(second, made, path) == []
    assert dropped({**second, "algorithm.new": "3"}, made, path) == ["algorithm.new is not told"]
    (said,) = dropped({**second, f"{ACTOR}.clip_ratio_high": "0.3"}, made, path)
    assert said == f"{ACTOR}.clip_ratio_high is '0.3', and was read as 0.28"


def checkouts(framework: str) -> Path:
    folder = os.environ.get("TRIMTAB_CHECKOUTS")
    if not folder:
        pytest.skip("TRIMTAB_CHECKOUTS names no folder with checkouts")
    if not (Path(folder) / framework).is_dir():
        pytest.skip(f"TRIMTAB_CHECKOUTS has no {framework}")
    return Path(folder)


@pytest.mark.parametrize("framework", EXAMPLES)
def test_no_option_of_a_real_file_is_dropped(framework: str) -> None:
    found = count(framework, checkouts(framework) / framework)
    assert found.dropped == []
    assert found.converted >= 0.85 * found.files > 0
    assert found.read_twice >= 0.8 * found.converted


@pytest.mark.peers
@pytest.mark.parametrize("framework", COMPARED)
def test_a_real_file_is_equal_or_the_run_file_says_why_not(framework: str) -> None:
    found = sweep(framework, checkouts(framework))
    assert found.unsaid == {}
    assert found.equal
