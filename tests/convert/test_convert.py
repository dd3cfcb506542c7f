"""Configurations of other frameworks as run files: every option is accounted for, and the recipe is theirs."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.config import load_run
from trimtab.convert import FRAMEWORKS, Converted, convert
from trimtab.convert.source import read
from trimtab.convert.table import as_toml, signal_table
from trimtab.errors import ConfigError
from trimtab.signal import names, part, recipe

VERL = """
set -x
export N=${N:-8}
LENGTH=$((1024 * 4))
ARGS=(
    algorithm.adv_estimator=grpo
    data.train_batch_size=${BATCH:-256}   # prompts
    data.max_response_length=$LENGTH
)
python3 -m verl.trainer.main_ppo "${ARGS[@]}" \\
    actor_rollout_ref.rollout.n=$N actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    +algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=2.0 \\
    trainer.n_gpus_per_node=8 $@
"""
SLIME = """
GRPO=(
   --eps-clip 0.2
   --eps-clip-high 0.28
   --use-tis
   --tis-clip 2.0
   --advantage-estimator grpo
)
python train.py ${GRPO[@]} --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 128
"""
OPENRLHF = """
python -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator group_norm --actor.eps_clip_low_high 0.2 0.27 \\
   --algo.kl.init_coef 0 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 1024
"""
SKYRL = """
uv run -m skyrl.train trainer.algorithm.advantage_estimator=grpo trainer.algorithm.policy_loss_type=dual_clip \\
  trainer.algorithm.use_kl_loss=false trainer.algorithm.off_policy_correction.tis_ratio_type=token \\
  generator.n_samples_per_prompt=5
"""
AREAL = """
gconfig:
  n_samples: 4
  max_new_tokens: 64
actor:
  eps_clip: 0.4
  use_decoupled_loss: true
  kl_ctl: 0.0
  max_new_tokens: ${gconfig.max_new_tokens}
  reward_norm:
    mean_level: group
    std_level: group
  rejection_sampling:
    metric: ratio
    upper: 5.0
"""
NEMO = """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  use_leave_one_out_baseline: false
loss_fn:
  ratio_clip_min: 0.2
  ratio_clip_max: 0.28
  reference_policy_kl_penalty: 0.01
"""
TRL = """
from trl import GRPOConfig
lr = 1e-6
args = GRPOConfig(
    output_dir="x", loss_type="dr_grpo", epsilon_high=0.28, learning_rate=lr, num_generations=8, beta=0.04,
    max_completion_length=512, bf16=is_new(),
)
"""
PRIME = """
[trainer.loss]
type = "default"
dppo_mask_low = 0.3
[trainer.optim]
lr = 3e-6
[orchestrator]
batch_size = 128
rollouts_per_example = 16
"""
RATIO_C = "trainer.algorithm.clip_ratio_c"
GIVEN = {
    "verl": (".sh", VERL), "slime": (".sh", SLIME), "openrlhf": (".sh", OPENRLHF), "skyrl": (".sh", SKYRL),
    "areal": (".yaml", AREAL), "nemo_rl": (".yaml", NEMO), "trl": (".py", TRL), "prime_rl": (".toml", PRIME),
}  # fmt: skip


def converted(name: str, tmp_path: Path, more: str = "") -> Converted:
    end, text = GIVEN[name]
    path = tmp_path / f"given{end}"
    path.write_text(text + more)
    return convert(name, path)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_option_is_told_and_the_run_file_is_read_back_as_the_same_recipe(name: str, tmp_path: Path) -> None:
    found = converted(name, tmp_path)
    given = {one.key for one in read(next(tmp_path.glob("given*")))}
    assert {one.given.key for one in found.told} == given
    assert not [one for one in found.told if one.status == "unknown"]
    path = tmp_path / "run.toml"
    path.write_text(found.toml)
    run = load_run(path)
    assert signal_table(run.build_recipe()) == signal_table(found.recipe)
    assert all(getattr(run.train, key) == value for key, value in found.train.items())
    assert all(f"#   {key} = " in found.toml for key in given)


def test_verl_in_our_words(tmp_path: Path) -> None:
    found = converted("verl", tmp_path)
    made = found.recipe
    assert made.loss.part == part("policy_loss.dual_clipped", band=(0.8, 1.28), cap=3.0)
    assert made.weighting.formula.name == "weighting.sequence_mean_token_mean"
    assert str(made.correction[0]) == "importance.truncated(level=token, band=(0, 2)) on engine"
    assert made.kl is not None
    assert (made.kl.part.formula.name, made.kl.coef, made.kl.into) == ("kl.k3", 0.001, "loss")
    assert made.normalize == part("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6)
    assert found.train == {
        "max_new_tokens": 4096, "prompts_per_step": 256, "samples_per_prompt": 8, "updates_per_batch": 4,
    }  # fmt: skip


def test_the_others_in_our_words(tmp_path: Path) -> None:
    slime = converted("slime", tmp_path).recipe
    assert slime.loss.part == part("policy_loss.clipped", band=(0.8, 1.28))
    assert slime.weighting.formula.name == "weighting.episode_mean"
    assert converted("slime", tmp_path).train["updates_per_batch"] == 2
    openrlhf = converted("openrlhf", tmp_path)
    assert openrlhf.recipe.loss.part == part("policy_loss.clipped", band=(0.8, 1.27))
    assert openrlhf.recipe.kl is None
    assert openrlhf.train["updates_per_batch"] == 1
    areal = converted("areal", tmp_path).recipe
    assert [str(stage) for stage in areal.correction] == [
        "keep.token_band(band=(0, 5)) on engine", "importance.truncated(level=token, band=(0, inf)) on engine",
    ]  # fmt: skip
    assert areal.loss.anchor == "old"
    nemo = converted("nemo_rl", tmp_path).recipe
    assert nemo.loss.part == part("policy_loss.clipped", band=(0.8, 1.28))
    assert nemo.kl is not None
    trl = converted("trl", tmp_path)
    assert trl.recipe.weighting == part("weighting.constant_divisor", divisor=512.0)
    assert trl.recipe.kl is not None
    assert trl.recipe.kl.part.formula.name == "kl.importance_weighted_k3"
    assert trl.train["lr"] == 1e-6
    prime = converted("prime_rl", tmp_path)
    assert "keep.probability_band(low=0.3, high=0.2, by_sign=True) on total" in str(prime.recipe.correction[0])
    assert prime.train["prompts_per_step"] == 8


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("verl", "python x algorithm.use_kl_in_reward=True\n", "both on: the same distance is paid twice"),
        ("verl", "python x actor_rollout_ref.actor.clip_ratio=0.3\n", "clip_ratio = 0.3 does nothing: clip_ratio_low"),
        ("verl", "python x algorithm.lam=0.95\n", "lam = 0.95 does nothing: adv_estimator = grpo has no lambda"),
        ("verl", "python x algorithm.adv_estimator=mine\n", "no baseline is written"),
        ("verl", "python x actor_rollout_ref.rollout.n=$1\n", r"rollout.n = \$1 is only known when it runs"),
        ("verl", "python x data.train_batch_size=64\n", "is given with 2 values, 256, 64: the last one counts."),
        ("slime", "python x --use-kl-loss --kl-loss-coef 0.0 --opsm-delta 0.1\n", "opsm_delta = 0.1 does nothing"),
        ("openrlhf", "python x --algo.dynamic_filtering_range 0.1 0.9\n", "dynamic_filtering_enable is off"),
        ("areal", "  m2_threshold: 0.04\n  gae_lambda: 0.9\n", None),
        ("nemo_rl", "  truncated_importance_sampling_ratio: 2.0\n", "use_importance_sampling_correction is off"),
        ("skyrl", f"python x {RATIO_C}=2 trainer.algorithm.policy_loss_type=regular\n", "has no dual clip"),
    ],
)  # fmt: skip
def test_switches_that_do_nothing_or_contradict_are_pointed_out(
    name: str, more: str, said: str | None, tmp_path: Path
) -> None:
    found = converted(name, tmp_path, more)
    assert said is None or any(re.search(said, one) for one in found.warnings), found.warnings
    assert all(f"#  - {one}" in found.toml for one in found.warnings)


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    script = tmp_path / "given.sh"
    mark = tmp_path / "ran"
    script.write_text(
        f"X=$(touch {mark})\n"
        f"python x algorithm.gamma=`touch {mark}` algorithm.adv_estimator=grpo data.train_batch_size=$X\n"
    )
    found = convert("verl", script)
    assert not mark.exists()
    assert any("only known when it runs" in one for one in found.warnings)
    code = tmp_path / "given.py"
    code.write_text(f"import os\nos.system('touch {mark}')\na = GRPOConfig(beta=float(os.environ['B']), epsilon=0.1)\n")
    assert convert("trl", code).recipe.loss.part.settings["band"] == (0.9, 1.1)
    assert not mark.exists()
    unsafe = tmp_path / "given.yaml"
    unsafe.write_text("a: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ConfigError, match="only plain YAML is read"):
        _ = convert("areal", unsafe)


def given(text: str, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "given.sh"
    path.write_text(text)
    return {one.key: one for one in read(path)}


def test_words_without_a_dot_are_options_too(tmp_path: Path) -> None:
    """hydra takes `group=choice` and `group@place=choice`; before a command, and behind export, it is a variable."""
    found = given(
        "mode=fast python3 -m x model_engine=megatron actor@a.actor=own ++a.b=1\nexport low=1 high=2\n"
        "OWN=(\n  plain=3\n)\n",
        tmp_path,
    )
    assert {key: one.value for key, one in found.items()} == {
        "model_engine": "megatron", "actor@a.actor": "own", "a.b": 1, "plain": 3,
    }  # fmt: skip


def test_an_empty_variable_has_its_default(tmp_path: Path) -> None:
    found = given(
        'SIZE=${SIZE:-}\nMEAN=${LOW:-$HIGH}\n: "${MODE:=token}"\n: "${SIZE:=256}"\nHIGH=2\n'
        'python x a.size=${SIZE:-512} a.mode=$MODE a.mean=${MEAN} b.json="$SPACED"\n',
        tmp_path,
    )
    assert (found["a.size"].value, found["a.mode"].value, found["a.mean"].value) == (256, "token", 2)


BRANCHES = """
case "$DEVICE" in
    gpu)
        SIZE=${SIZE:-512}
        SAME=1
        ;;
    npu)
        SIZE=${SIZE:-256}
        SAME=1
        ;;
    *)
        echo unknown
        ;;
esac
LOSS=vanilla
if [ "$FAST" = 1 ]; then
    LOSS=gspo
fi
python x algorithm.adv_estimator=grpo data.train_batch_size=$SIZE actor_rollout_ref.actor.policy_loss.loss_mode=$LOSS
"""


def test_a_value_that_depends_on_a_branch_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "given.sh"
    path.write_text(BRANCHES)
    made = convert("verl", path)
    assert made.train["prompts_per_step"] == 256
    assert made.recipe.loss.part.formula.name == "policy_loss.geometric_clipped_token"
    said = [one for one in made.warnings if "one branch" in one]
    assert said == [
        "data.train_batch_size = 256 is one branch of the script, in another it is 512. Check it.",
        "actor_rollout_ref.actor.policy_loss.loss_mode = gspo is one branch of the script, in another it is vanilla. "
        "Check it.",
    ]


def test_a_branch_about_placement_is_said_beside_the_option_alone(tmp_path: Path) -> None:
    path = tmp_path / "given.sh"
    path.write_text("if [ $1 = big ]; then\n  TP=4\nelse\n  TP=2\nfi\npython x algorithm.adv_estimator=grpo "
                    "actor_rollout_ref.rollout.tensor_model_parallel_size=$TP\n")  # fmt: skip
    made = convert("verl", path)
    assert not any("tensor_model" in one for one in made.warnings)
    (told,) = (one for one in made.told if one.given.key.endswith("tensor_model_parallel_size"))
    assert told.note == "the engine and its placement; is one branch of the script, in another it is 4. Check it"


FULLY_ASYNC = "python3 -m x --config-name=fully_async_ppo_trainer algorithm.adv_estimator=grpo data.train_batch_size=0"


@pytest.mark.parametrize(
    ("name", "end", "text", "said"),
    [
        ("verl", ".sh", "python x distillation.enabled=True\n", "the loss towards the teacher is not written"),
        ("verl", ".sh", "python x algorithm.rollout_correction.bypass_mode=True "
         "algorithm.rollout_correction.loss_type=reinforce\n", "verl's default trainer (use_v1) does not read it"),
        ("areal", ".yaml", "actor: {kl_ctl: 0.0}\nteacher: {path: x}\n", "loss towards the teacher is not written"),
        ("verl", ".sh", "python x algorithm.adv_estimator=grpo algorithm.rollout_correction.rollout_rs=token_k1 "
         "algorithm.rollout_correction.rollout_rs_threshold=2\n", "rejects whole does not count in its group's"),
        ("skyrl", ".sh", "python x trainer.algorithm.use_kl_loss=true\n", "the KL is weighed as the loss is"),
        ("skyrl", ".sh", "python x trainer.algorithm.policy_loss_type=kl_cov\n", "there the penalty is summed"),
        ("openrlhf", ".sh", "python x --algo.advantage.estimator reinforce_baseline\n", "over n - 1 here"),
        ("openrlhf", ".sh", "python x --algo.advantage.estimator reinforce_baseline --algo.advantage.no_std_norm\n",
         "still takes the batch's mean off"),
        ("areal", ".yaml", "actor: {use_decoupled_loss: true, kl_ctl: 0.1}\n", "takes the sampler's log-probs"),
    ],
)  # fmt: skip
def test_what_a_run_file_does_not_say_is_told(name: str, end: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / f"given{end}"
    path.write_text(text)
    assert any(said in one for one in convert(name, path).warnings), convert(name, path).warnings


def test_the_fully_asynchronous_verl_takes_the_samplers_log_probs(tmp_path: Path) -> None:
    path = tmp_path / "given.sh"
    path.write_text(FULLY_ASYNC)
    made = convert("verl", path)
    assert (made.recipe.loss.anchor, made.recipe.old) == ("rollout", "absent")
    assert "prompts_per_step" not in made.train


@pytest.mark.parametrize(
    ("framework", "text", "end", "said"),
    [
        ("verk", "", ".sh", "did you mean 'verl'"),
        ("verl", "echo hello\n", ".sh", "no option was found"),
        ("verl", "a", ".pkl", "ends in .pkl, which is not read here"),
        ("trl", "x = 1\n", ".py", "calls no …Config"),
        ("verl", "python x algorithm.gamma=fast\n", ".sh", "algorithm.gamma = 'fast' is not a number"),
        ("verl", "python x actor_rollout_ref.actor.use_kl_loss=3\n", ".sh", "is not true or false"),
        ("prime_rl", "a = [", ".toml", "is not TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(framework: str, text: str, end: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / f"given{end}"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        _ = convert(framework, path)


@pytest.mark.parametrize("name", names())
def test_a_named_recipe_survives_being_written(name: str, tmp_path: Path) -> None:
    table = signal_table(recipe(name))
    path = tmp_path / "run.toml"
    path.write_text(
        'recipe = "reinforce"\n[signal]\n' + "\n".join(f"{key} = {as_toml(value)}" for key, value in table.items())
    )
    assert signal_table(load_run(path).build_recipe()) == table


def test_the_command_writes_a_file_and_says_what_was_lost(tmp_path: Path) -> None:
    source = tmp_path / "given.sh"
    source.write_text(VERL)
    out = tmp_path / "run.toml"
    asked: list[Any] = ["convert", "--from", "verl", str(source), "-o", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "options of verl 0.9.1" in done.output
    assert "[signal]" in out.read_text()
    again = CliRunner().invoke(app, asked)
    assert again.exit_code != 0
    printed = CliRunner().invoke(app, ["convert", "--from", "slime", "--", "--eps-clip", "0.3", "--use-tis"])
    assert "band = [0.7, 1.3]" in printed.output, printed.output
