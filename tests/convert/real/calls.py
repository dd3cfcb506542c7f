"""Runs in the child process: a framework's own path from rewards to the loss, with the options of one file.

Each function takes the framework's options as nested tables, and tensors [rows, width]; it gives (loss, advantages).
Nothing of Trimtab is imported here. The entropy of a token stands for itself: it is a function of its log-prob.
"""

from types import SimpleNamespace
from typing import Any

import torch


class Table(SimpleNamespace):
    """Options as attributes and as a dictionary."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)


def table(values: Any) -> Any:
    """Nested dictionaries as tables."""
    return Table(**{str(k): table(v) for k, v in values.items()}) if isinstance(values, dict) else values


class Rows(dict[str, Any]):
    """Stands in for a TensorDict of padded rows."""

    @property
    def batch_size(self) -> list[int]:
        return [len(next(iter(self.values())))]

    def select(self, *names: str) -> "Rows":
        return Rows({name: self[name] for name in names})

    def to_padded_tensor(self) -> "Rows":
        return self


class Protocol(SimpleNamespace):
    """Stands in for verl's DataProto."""

    def union(self, other: Any) -> "Protocol":
        self.batch.update(other.batch)
        return self


def entropy_of(logp: torch.Tensor) -> torch.Tensor:
    return 0.5 + 0.1 * logp * logp


def verl(logp, options, mask, old, rollout, ref, token_reward, group, width):
    """`apply_kl_penalty`, the rollout correction, `compute_advantage`, then `ppo_loss`, in its trainer's order."""
    from verl.trainer.ppo import core_algos, ray_trainer, rollout_corr_helper
    from verl.workers.utils import losses

    made = lambda tensors: Protocol(batch=Rows(tensors))  # noqa: E731
    rollout_corr_helper.DataProto = SimpleNamespace(from_dict=made, from_single_dict=made)
    losses.no_padding_2_padding = lambda rows, _: rows
    core_algos.ActorConfig = Table
    algorithm, actor = table(options["algorithm"]), table(options["actor_rollout_ref"]["actor"])
    asked = algorithm.rollout_correction
    fields = Rows(
        response_mask=mask, old_log_probs=rollout if asked.bypass_mode else old, rollout_log_probs=rollout,
        ref_log_prob=ref, token_level_scores=token_reward, token_level_rewards=token_reward,
    )  # fmt: skip
    data = Protocol(batch=fields, non_tensor_batch={"uid": group})
    if algorithm.use_kl_in_reward:
        control = SimpleNamespace(value=algorithm.kl_ctrl.kl_coef, update=lambda **_: None)
        data, _ = ray_trainer.apply_kl_penalty(data, control, algorithm.kl_penalty)
    if asked.bypass_mode and not options["trainer"]["use_v1"]:  # as `apply_bypass_mode` has it
        actor.policy_loss.rollout_correction, actor.policy_loss.loss_mode = asked, "bypass_mode"
    elif not asked.bypass_mode:
        data, _ = rollout_corr_helper.compute_rollout_correction_and_add_to_batch(data, asked)
    data = ray_trainer.compute_advantage(
        data, algorithm.adv_estimator, gamma=algorithm.gamma, lam=algorithm.lam, config=algorithm,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
    )  # fmt: skip
    kept = data.batch["response_mask"]
    # The default trainer's loss_mask is the mask of the sampler; `left_right_2_no_padding` takes the corrected one.
    counted = mask if options["trainer"]["use_v1"] else kept
    data.batch.update(dp_size=1, batch_num_tokens=counted.sum(), global_batch_size=len(mask))
    actor.global_batch_info = {}
    output = {"log_probs": logp} | ({"entropy": entropy_of(logp)} if actor.entropy_coeff else {})
    loss, _ = losses.ppo_loss(actor, output, data.batch)
    return loss, data.batch["advantages"]


def skyrl(logp, options, mask, old, rollout, ref, token_reward, group, width):
    """The trainer's advantages, its division of them, the policy loss, and the worker's KL and entropy beside it."""
    from skyrl.backends.skyrl_train.utils import ppo_utils

    config = table(options)
    chosen = config.trainer.algorithm
    if chosen.use_tis:  # as its `validate_cfg` has it
        chosen.off_policy_correction.tis_ratio_type = "token"
        chosen.off_policy_correction.token_tis_ratio_clip_high = chosen.tis_imp_ratio_cap
    data = Rows(rewards=token_reward, response_mask=mask, loss_mask=mask, base_action_log_probs=ref,
                action_log_probs=old)  # fmt: skip
    if chosen.use_kl_in_reward:
        kl = ppo_utils.compute_approx_kl(old, ref, loss_mask=mask, kl_estimator_type=chosen.kl_estimator_type)
        data["rewards"] = token_reward - kl * max(0, chosen.kl_loss_coef)
    advantages, _ = ppo_utils.compute_advantages_and_returns(
        token_level_rewards=data["rewards"], response_mask=mask, index=group, values=None, config=chosen,
        adv_estimator=chosen.advantage_estimator, gamma=chosen.gamma, lambd=chosen.lambd,
        grpo_norm_by_std=chosen.grpo_norm_by_std,
    )  # fmt: skip
    kept = advantages
    if chosen.advantage_batch_normalize:
        mean = advantages.mean()
        spread = ((advantages - mean).pow(2) * mask).sum()
        advantages = (advantages - mean) * (spread / mask.sum()).clamp(min=1e-8).rsqrt()
    prompts = [(0, 3), (3, 6)]
    scaled = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
        advantages=advantages, loss_mask=mask, loss_reduction=chosen.loss_reduction, micro_batch_size=len(mask),
        max_seq_len=chosen.max_seq_len, prompt_boundaries=prompts,
    )  # fmt: skip
    found = ppo_utils.PolicyLossRegistry.get(chosen.policy_loss_type)(
        logp, old, scaled, config=chosen, loss_mask=mask, rollout_logprobs=rollout
    )
    loss = found[0]
    if chosen.use_kl_loss:
        kl = ppo_utils.compute_approx_kl(logp, ref, loss_mask=mask, kl_estimator_type=chosen.kl_estimator_type)
        loss = loss + ppo_utils.masked_mean(kl, mask, dim=-1).mean() * chosen.kl_loss_coef
    if chosen.use_entropy_loss:
        loss = loss - ppo_utils.masked_mean(entropy_of(logp), mask) * chosen.entropy_loss_coef
    return loss, kept


def _openrlhf_correction(args):
    """What `PolicyLoss` is given beside the clip: in 0.11.2, and before it."""
    asked = args.algo.advantage
    bounds = asked.is_correction_threshold
    if "is_correction_enable" in asked:
        return {
            "enable_vllm_is_correction": asked.is_correction_enable,
            "vllm_is_truncated_threshold": bounds if asked.is_correction_enable else None,
            "vllm_is_correction_type": asked.is_correction_type,
        }
    return {
        "token_level_loss": args.actor.loss_agg_mode == "token-mean", "is_correction_level": asked.is_correction_level,
        "is_correction_mode": asked.is_correction_mode, "is_correction_gating": asked.is_correction_gating,
        "is_correction_threshold": [0.0, *bounds] if len(bounds) == 1 else bounds,
    }  # fmt: skip


def openrlhf(logp, options, mask, old, rollout, ref, token_reward, group, width):
    """The experience maker's advantages, then `training_step`'s policy loss, KL and entropy."""
    from openrlhf.models import loss as losses
    from openrlhf.models.utils import compute_approx_kl
    from openrlhf.trainer.ppo_utils import experience_maker

    args = table(options)
    asked, kl_of = args.algo.advantage, args.algo.kl
    if args.actor.eps_clip_low_high is None:
        args.actor.eps_clip_low_high = (args.actor.eps_clip, args.actor.eps_clip)
    args.rollout.n_samples_per_prompt = 3
    experience_maker.apply_length_penalties = lambda *_: None  # the answers here are shorter than every limit
    in_reward = compute_approx_kl(old, ref, kl_estimator=kl_of.estimator) * mask
    experience = SimpleNamespace(
        rewards=token_reward.sum(1), index=[*range(len(mask))], info={}, action_mask=mask.bool(), values=None,
        kl=torch.zeros_like(old) if kl_of.use_loss or not kl_of.init_coef else in_reward,
    )  # fmt: skip
    kind = experience_maker.RemoteExperienceMaker
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=args), kl_ctl=SimpleNamespace(value=kl_of.init_coef),
        advantage_estimator=asked.estimator,
        get_cumulative_returns=lambda *given: kind.get_cumulative_returns(None, *given),
    )  # fmt: skip
    (done,) = kind.compute_advantages_and_returns(maker, [experience])
    made = losses.PolicyLoss(
        clip_eps_low=args.actor.eps_clip_low_high[0], clip_eps_high=args.actor.eps_clip_low_high[1],
        dual_clip=args.actor.dual_clip, policy_loss_type=args.actor.policy_loss_type, **_openrlhf_correction(args),
    )  # fmt: skip
    info = {"dp_size": 1, "batch_num_tokens": mask.sum(), "global_batch_size": len(mask)}
    loss = made(logp, old, done.advantages, action_mask=mask, rollout_log_probs=rollout, **info)[0]
    if kl_of.use_loss and kl_of.init_coef > 0:
        unbiased = {"log_probs_old": old, "unbiased_gradient": True} if kl_of.get("unbiased_gradient") else {}
        kl = compute_approx_kl(logp, ref, kl_estimator=kl_of.estimator, **unbiased)
        loss = loss + losses.aggregate_loss(kl, mask, **info) * kl_of.init_coef
    if args.actor.entropy_coef:
        loss = loss - losses.aggregate_loss(entropy_of(logp), mask, **info) * args.actor.entropy_coef
    return loss, done.advantages


def areal(logp, options, mask, old, rollout, ref, token_reward, group, width):
    """`PPOActor._compute_advantages`, then `grpo_loss_fn`, on one row of prompt and answer each."""
    from areal.trainer.ppo import actor
    from areal.utils.data import KLEstimator, Normalization

    config = table(options)
    if config.prox_logp_method not in (None, "recompute"):  # the default is a constant's name, read as None
        raise ValueError(f"prox_logp_method = {config.prox_logp_method} takes the versions of the tokens")
    rows, answer = mask.shape

    def placed(field):  # a prompt token, the answer, and an end: what a row of AReaL looks like
        return torch.cat([torch.zeros(rows, 1), field, torch.zeros(rows, 1)], 1)

    def early(field):  # at the place of the token that predicts it
        return torch.cat([field, torch.zeros(rows, 2)], 1)

    norm = lambda asked: Normalization(asked) if asked else None  # noqa: E731
    maker = SimpleNamespace(
        config=config, reward_bias=config.reward_bias, reward_scaling=config.reward_scaling,
        reward_clip=config.reward_clip, kl_ctl=config.kl_ctl, kl_estimator=KLEstimator(config.kl_estimator),
        adv_norm=norm(config.adv_norm), reward_norm=norm(config.reward_norm), discount=config.discount,
        gae_lambda=config.gae_lambda, mask_no_eos_with_zero=config.mask_no_eos_with_zero,
    )  # fmt: skip
    data = {
        "input_ids": torch.zeros(rows, answer + 2), "rewards": token_reward.sum(1), "loss_mask": placed(mask),
        "logprobs": placed(rollout), "prox_logp": early(old), "ref_logp": early(ref),
        "attention_mask": torch.cat([torch.ones(rows, 1), mask, torch.zeros(rows, 1)], 1),
    }  # fmt: skip
    config.overlong_reward_penalty = False  # the answers here are shorter than every limit
    data = actor.PPOActor._compute_advantages(maker, data)
    flat = {name: data[name][:, :answer].reshape(-1) for name in ("logprobs", "advantages", "loss_mask", "prox_logp")}
    flat["cu_seqlens"] = torch.arange(rows + 1, dtype=torch.int32) * answer
    loss = actor.grpo_loss_fn(
        logp.reshape(-1), torch.zeros(rows * answer), flat, eps_clip=config.eps_clip, current_version=1,
        eps_clip_higher=config.eps_clip_higher, c_clip=config.c_clip, rejection_sampling=config.rejection_sampling,
        m2_threshold=config.m2_threshold, importance_sampling_level=config.importance_sampling_level,
        prox_logp_method="recompute", use_sapo_loss=config.use_sapo_loss, sapo_tau_pos=config.sapo_tau_pos,
        sapo_tau_neg=config.sapo_tau_neg, use_decoupled_loss=config.use_decoupled_loss,
    )  # fmt: skip
    return loss, data["advantages"][:, :answer]


def skyrl_defaults():
    """SkyRL's own defaults, as its configuration makes itself."""
    import dataclasses

    from skyrl.train import config

    made = {name: dataclasses.asdict(getattr(config, kind)()) for name, kind in (("algorithm", "AlgorithmConfig"),)}
    return {"trainer": made}
