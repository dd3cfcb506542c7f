"""Names of our fields in other frameworks: argument names that have the same meaning wherever they occur."""

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "logp_current": (
        "logp_current", "log_prob", "log_probs", "logprobs", "per_token_logps", "curr_logprobs", "trainer_logprobs",
        "new_log_probs", "action_log_probs", "current_logprobs", "new_logprobs", "logps",
    ),
    "logp_old": (
        "logp_old", "old_log_prob", "old_log_probs", "old_logprobs", "old_per_token_logps", "prev_logprobs",
        "old_action_log_probs", "proximal_logprobs", "logp_anchor", "old_logps",
    ),
    "logp_rollout": (
        "logp_rollout", "rollout_log_probs", "rollout_logprobs", "inference_logprobs", "generation_logprobs",
        "sampling_logprobs", "sampling_per_token_logps", "behav_logprobs", "vllm_logprobs", "rollout_log_prob",
    ),
    "logp_ref": (
        "logp_ref", "ref_log_prob", "ref_log_probs", "ref_logprobs", "ref_per_token_logps", "ref_logps",
        "log_probs_base",        "reference_policy_logprobs", "ref_logp", "base_action_log_probs", "log_prob_ref",
    ),
    "advantage": ("advantage", "advantages"),
    "value": ("values", "vpreds", "value_preds", "value"),
    "value_old": ("old_values", "value_old", "old_value"),
    "returns": ("returns", "value_targets"),
    "token_reward": ("token_level_rewards", "token_level_scores", "token_rewards", "token_reward"),
    "reward": ("rewards", "scores", "reward"),
    "trainable": (
        "trainable", "response_mask", "loss_mask", "loss_masks", "action_mask", "completion_mask", "eos_mask", "mask",
        "token_mask", "response_masks",
    ),
    "token_loss": ("loss_mat", "per_token_loss", "token_loss", "loss_matrix", "losses"),
    "token_id": ("input_ids", "token_ids", "response_ids", "response", "completion_ids", "responses"),
    "entropy": ("entropy", "entropies", "token_entropy"),
    "kl": ("kl", "kls", "kld"),
    "group": ("group", "groups", "group_ids"),
}  # fmt: skip

KNOWN_ARGUMENTS: dict[str, str] = {name: field for field, names in _SPELLINGS.items() for name in names}

GROUP_NAMES = ("index", "uid", "uids")
"""Group ids that frameworks pass as an array of names for dictionary lookups, never as a tensor."""
