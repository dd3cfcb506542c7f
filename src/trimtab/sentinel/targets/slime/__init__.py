"""slime (THUDM/slime): estimators, corrections, losses and their scale in Megatron, reward post-processing, log-probs.

Sequences are lists of response tensors; the loss is a sum over samples of masked means, scaled for Megatron, which
divides by the number of micro-batches (or by all tokens) and averages over ranks. Group and batch size are options.
"""

from functools import partial

from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.slime import around, batch, token
from trimtab.sentinel.targets.stand_in import Alone, OneProcess
from trimtab.sentinel.targets.target import Binding, Target


def one_process() -> dict[str, object]:
    """Stand-ins for Megatron's parallel state and torch.distributed."""
    return {"mpu": OneProcess(), "dist": Alone()}


def _place(name: str, *files: str) -> tuple[Spec, ...]:
    return (Spec(name, file=files[0], or_files=files[1:]),)


PPO = "slime/utils/ppo_utils.py"
LOSS = "slime/backends/megatron_utils/loss.py"


def bindings() -> tuple[Binding, ...]:
    """Every function of the path, with one process instead of a cluster."""
    one = partial(Binding, given=one_process)
    return (
        one("compute_approx_kl", _place("compute_approx_kl", PPO), token.approx_kl),
        one("compute_opsm_mask", _place("compute_opsm_mask", PPO), token.opsm),
        one("compute_gspo_kl", _place("compute_gspo_kl", PPO), token.gspo_kl),
        one("compute_policy_loss", _place("compute_policy_loss", PPO), token.policy_term),
        one("compute_cispo_loss", _place("compute_cispo_loss", PPO), token.cispo_term),
        one("get_grpo_returns", _place("get_grpo_returns", PPO), token.grpo_returns),
        one("get_reinforce_plus_plus_returns", _place("get_reinforce_plus_plus_returns", PPO), token.togo),
        one("baseline_advantages", _place("get_reinforce_plus_plus_baseline_advantages", PPO),
            token.baseline_advantages),
        one("get_advantages_and_returns_batch", _place("get_advantages_and_returns_batch", PPO), token.gae),
        one("calculate_log_probs_and_entropy", _place("calculate_log_probs_and_entropy", PPO), around.log_probs),
        one("vanilla_tis_function", _place("vanilla_tis_function", LOSS),
            partial(around.weights, name="vanilla_tis_function")),
        one("icepop_function", _place("icepop_function", LOSS), partial(around.weights, name="icepop_function")),
        one("distributed_masked_whiten",
            _place("distributed_masked_whiten", "slime/utils/distributed_utils.py"), around.whiten),
        one("get_sum_of_sample_mean", _place("get_sum_of_sample_mean", "slime/backends/megatron_utils/cp_utils.py"),
            around.reduced),
        one("_post_process_rewards", _place("RolloutManager._post_process_rewards", "slime/ray/rollout.py"),
            around.post_processed_rewards),
        one("get_log_probs_and_entropy", _place("get_log_probs_and_entropy", LOSS), around.scored_responses),
        one("compute_advantages_and_returns", _place("compute_advantages_and_returns", LOSS), batch.estimated),
        Binding("policy_loss", _place("loss_function", LOSS), batch.policy_losses, given=batch.given),
        Binding("value_loss", _place("loss_function", LOSS), batch.value_losses, given=batch.given),
    )  # fmt: skip


TARGET = Target("slime", "THUDM/slime", bindings=bindings())
