"""What no converter asks for by name: parts of a signal without an equivalent, switches that another choice would
read, and which tokens answers are drawn from."""

import pytest
from tests.convert.converting import converted, stages, told

GSPO = "policy_loss.geometric_clipped"
DRAWS = {
    "verl": ("actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_k=-1"),
    "skyrl": ("generator.sampling_params.top_p=0.9", "generator.sampling_params.top_k=-1"),
    "trl": ("--top_p", "0.9", "--top_k", "0"),
    "slime": ("--rollout-top-p", "0.9", "--rollout-top-k", "-1"),
    "openrlhf": ("--algo.advantage.estimator", "rloo", "--rollout.top_p", "0.9", "--rollout.top_k", "-1"),
    "areal": ("gconfig.top_p=0.9", "gconfig.top_k=100000000"),
    "nemo-rl": ("policy.generation.top_p=0.9", "policy.generation.top_k=0"),
    "prime-rl": ("--orchestrator.sampling.top_p", "0.9", "--orchestrator.sampling.top_k", "-1"),
}  # fmt: skip


@pytest.mark.parametrize("framework", DRAWS)
def test_a_part_of_the_tokens_is_drawn_from_here_too_and_said(framework: str) -> None:
    made = converted(framework, *DRAWS[framework])
    assert made.train["engine"] == {"top_p": 0.9, "top_k": 0}
    assert "engine = { top_p = 0.9, top_k = 0 }" in made.toml
    (said,) = (one for one in made.warnings if "drawn from a part" in one)
    assert "top_p = 0.9" in said
    assert "record_support = true" in said


def test_all_tokens_are_no_part() -> None:
    made = converted("trl", "--top_p", "1.0", "--top_k", "20")
    assert made.train["engine"] == {"top_p": 1.0, "top_k": 20}
    assert any("top_k = 20: answers are drawn from a part" in one for one in made.warnings)
    assert not any("drawn" in one for one in converted("trl", "--top_p", "1.0").warnings)


@pytest.mark.parametrize(
    ("framework", "flags", "key"),
    [
        ("verl", ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.1"), ""),
        ("verl", ("algorithm.adv_estimator=grpo", "algorithm.filter_groups.max_num_gen_batches=5"), ""),
        ("skyrl", ("trainer.algorithm.policy_loss_type=regular", "trainer.algorithm.sapo.tau_pos=2.0"), ""),
        ("skyrl", ("trainer.algorithm.value_clip=0.4",), ""),
        ("skyrl", ("trainer.algorithm.zero_variance_filter_tol=1e-6",), ""),
        ("trl", ("--loss_type", "dapo", "--vespo_k_pos", "3"), "vespo_k_pos"),
        ("trl", ("--entropy_target", "0.3"), "entropy_target"),
        ("slime", ("--advantage-estimator", "grpo", "--value-clip", "0.3"), "value_clip"),
        ("areal", ("actor.eps_clip=0.2", "actor.sapo_tau_pos=2.0"), ""),
        ("areal", ("actor.eps_clip=0.2", "actor.overlong_tokens=100"), ""),
        ("nemo-rl", ("grpo.adv_estimator.gae_lambda=0.9",), ""),
        ("nemo-rl", ("grpo.zero_variance_prompt_filtering=true",), ""),
        ("verl", ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.grad_clip=1.0"), ""),
    ],
)
def test_what_only_another_choice_would_read_is_inert(framework: str, flags: tuple[str, ...], key: str) -> None:
    key = key or flags[-1].partition("=")[0]
    made = converted(framework, *flags)
    status, note = told(made, key)
    assert (status, note[:7]) == ("no equivalent", "inert: ")
    assert any(key in one and "nothing" in one for one in made.warnings)


@pytest.mark.parametrize(
    ("framework", "flags", "key"),
    [
        ("verl", ("algorithm.use_pf_ppo=true",), "algorithm.use_pf_ppo"),
        ("verl", ("async_training.staleness_threshold=0.5",), "async_training.staleness_threshold"),
        ("verl", ("actor_rollout_ref.actor.megatron.router_replay.mode=R3",),
         "actor_rollout_ref.actor.megatron.router_replay.mode"),
        ("skyrl", ("generator.step_wise_trajectories=true",), "generator.step_wise_trajectories"),
        ("slime", ("--custom-advantage-function-path", "mine.py"), "custom_advantage_function_path"),
        ("slime", ("--update-weights-interval", "4"), "update_weights_interval"),
        ("openrlhf", ("--algo.advantage.estimator", "rloo", "--reward.normalize_enable"), "reward.normalize_enable"),
        ("trl", ("--sync_ref_model", "true"), "sync_ref_model"),
        ("areal", ("rollout.agent.turn_discount=0.9",), "rollout.agent.turn_discount"),
        ("areal", ("actor.behave_imp_weight_cap=5.0",), "actor.behave_imp_weight_cap"),
        ("nemo-rl", ("grpo.invalid_tool_call_advantage=-5.0",), "grpo.invalid_tool_call_advantage"),
        ("prime-rl", ("--trainer.enable_router_replay", "true"), "trainer.enable_router_replay"),
    ],
)  # fmt: skip
def test_a_part_of_the_signal_without_an_equivalent_is_no_placement(
    framework: str, flags: tuple[str, ...], key: str
) -> None:
    made = converted(framework, *flags)
    assert told(made, key)[0] == "no equivalent"
    assert any(key in one and "has no equivalent" in one for one in made.warnings)


def test_a_part_that_is_off_there_is_off_here() -> None:
    made = converted("areal", "rollout.agent.turn_discount=1.0", "actor.eps_clip=0.2")
    assert told(made, "rollout.agent.turn_discount") == ("kept", "off, as here")
    assert not any("turn_discount" in one for one in made.warnings)


@pytest.mark.parametrize(
    ("framework", "flags"),
    [
        ("slime", ("--advantage-estimator", "gspo", "--use-tis")),
        ("areal", ("actor.importance_sampling_level=sequence", "actor.use_decoupled_loss=true",
                   "actor.rejection_sampling.upper=5.0", "actor.kl_ctl=0.0")),
    ],
)  # fmt: skip
def test_a_weight_of_tokens_beside_a_gradient_of_sequences_becomes_one_of_sequences(
    framework: str, flags: tuple[str, ...]
) -> None:
    made = converted(framework, *flags)
    assert stages(made)[0].startswith(GSPO)
    (weight,) = (one for one in stages(made) if one.startswith("importance"))
    assert weight.startswith("importance.truncated(level=geometric")
    assert any("one gradient per sequence, so importance.truncated is written as one weight" in one
               for one in made.warnings)  # fmt: skip


def test_trl_cuts_what_was_generated_at_once_into_optimiser_steps() -> None:
    """2 rows by 4 accumulated are 8 answers per step; 16 generations at once are 32 answers: 4 steps, twice each."""
    flags = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4", "--num_generations", "4",
             "--steps_per_generation", "16", "--num_iterations", "2")  # fmt: skip
    made = converted("trl", *flags)
    assert (made.train["prompts_per_step"], made.train["updates_per_batch"]) == (8, 8)
    assert told(made, "steps_per_generation")[0] == "changed"


def test_verls_gradient_is_bounded_by_the_option_of_its_optimiser() -> None:
    at = "actor_rollout_ref.actor."
    made = converted("verl", "algorithm.adv_estimator=grpo", f"{at}grad_clip=9.0", f"{at}optim.clip_grad=0.5")
    assert made.train["grad_clip"] == 0.5


def test_openrlhf_clips_the_credit_of_an_answer() -> None:
    rloo = ("--algo.advantage.estimator", "rloo", "--algo.kl.init_coef", "0", "--algo.advantage.no_std_norm")
    made = converted("openrlhf", *rloo, "--reward.clip_range", "-5", "5")
    assert made.recipe.clip_advantage == 5.0
    apart = converted("openrlhf", *rloo, "--reward.clip_range", "-1", "5")
    assert told(apart, "reward.clip_range")[0] == "no equivalent"
    assert converted("openrlhf", *rloo).recipe.clip_advantage is None


def test_openrlhf_forced_on_policy_has_no_old_policy_of_its_own() -> None:
    made = converted("openrlhf", "--algo.advantage.estimator", "rloo", "--train.force_on_policy")
    assert made.recipe.old == "current"


def test_skyrls_dapo_example_pays_less_for_long_answers() -> None:
    at = "trainer.algorithm.overlong_buffer_"
    made = converted(
        "skyrl", f"{at}len=512", f"{at}penalty_factor=0.5", "generator.sampling_params.max_generate_length=2048"
    )
    (one,) = made.recipe.reward
    assert str(one) == "reward.soft_overlong(max_length=2048.0, buffer=512.0, factor=0.5)"


def test_skyrl_copies_of_good_groups_are_not_built() -> None:
    made = converted("skyrl", "trainer.algorithm.dynamic_sampling.type=replace")
    assert told(made, "trainer.algorithm.dynamic_sampling.type")[0] == "no equivalent"
    assert not made.recipe.filter_constant_groups
    filtered = converted("skyrl", "trainer.algorithm.dynamic_sampling.type=filter",
                         "trainer.algorithm.dynamic_sampling.max_sample_batches=30")  # fmt: skip
    assert filtered.train["dynamic_sampling"] == 30


def test_verls_longest_answer_is_the_reward_managers() -> None:
    at = "reward_model.reward_kwargs."
    made = converted("verl", "algorithm.adv_estimator=grpo", "data.max_response_length=4096", f"{at}max_resp_len=2048",
                     f"{at}overlong_buffer_cfg.enable=True", f"{at}overlong_buffer_cfg.len=512")  # fmt: skip
    (one,) = made.recipe.reward
    assert str(one) == "reward.soft_overlong(max_length=2048.0, buffer=512.0, factor=1.0)"
