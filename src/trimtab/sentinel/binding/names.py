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
IDS = {
    "eos": "eos_id", "eos_token": "eos_id", "pad": "pad_id", "stop": "eos_id", "stop_id": "eos_id", "end_id": "eos_id",
    "eos_token_id": "eos_id", "eos_id": "eos_id", "pad_token_id": "pad_id", "pad_id": "pad_id",
    "stop_token_ids": "stop_ids", "stop_ids": "stop_ids", "eos_token_ids": "stop_ids", "prompt_ids": "group",
}  # fmt: skip
"""Ids of tokens with a meaning, and of prompts."""
REDUCERS = frozenset({"sum_of_sample_mean", "reducer", "reduce_fn", "sum_of_sample_mean_fn"})
"""Functions that a caller hands over: one number per token of all answers to one number."""
HIDDEN = frozenset({"hidden_states", "hidden", "hiddens", "last_hidden_state", "last_hidden_states"})
"""What a head turns into logits. Logits and a head that changes nothing are as good."""
HEADS = frozenset({"vocab_weights", "vocab_weight", "lm_head_weight", "head_weight", "output_weight"})
WIDTHS = frozenset({"logits_to_keep", "response_length", "completion_length"})
"""How many columns belong to the answers."""
BOUNDARIES = frozenset({"cu_seqlens", "cu_lens", "offsets"})
"""Where each sequence of a packed row starts; so does whatever has `cu` in its name."""
