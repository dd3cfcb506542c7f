"""Runs in the child process: methods of OpenRLHF, AReaL and TRL as functions of plain tensors."""

import os
from collections import defaultdict
from types import SimpleNamespace

import torch


def openrlhf_loss(log_probs, settings, **fields):
    """OpenRLHF's PolicyLoss: the loss, and the fraction that its correction filters."""
    from openrlhf.models.loss import PolicyLoss

    loss, *_, filtered = PolicyLoss(**settings)(log_probs, **fields)
    return loss, filtered


def openrlhf_advantage(rewards, action_mask, estimator, samples):
    """The advantages of OpenRLHF's experience maker, without KL."""
    from openrlhf.trainer.ppo_utils import experience_maker as theirs

    theirs.apply_length_penalties = lambda *_: None
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage), rollout=SimpleNamespace(n_samples_per_prompt=samples),
        reward=SimpleNamespace(clip_range=None),
    )  # fmt: skip
    made = theirs.RemoteExperienceMaker.__new__(theirs.RemoteExperienceMaker)
    made.strategy, made.advantage_estimator, made.kl_ctl = (
        SimpleNamespace(args=args),
        estimator,
        SimpleNamespace(value=0),
    )
    batch = SimpleNamespace(
        rewards=rewards,
        index=[*range(len(rewards))],
        kl=torch.zeros_like(action_mask),
        action_mask=action_mask,
        info={},
    )
    return made.compute_advantages_and_returns([batch])[0].advantages


def areal_rejection(proximal, behaviour, mask, metric, agg, upper):
    """The tokens that AReaL's rejection by sequence leaves."""
    from areal.utils.functional.functional import apply_rejection_sampling

    config = SimpleNamespace(metric=metric, level="sequence", agg=agg, action="mask", lower=None, upper=upper)
    return apply_rejection_sampling(proximal, behaviour, mask, None, config).loss_mask


class Alone:
    """Stands in for an accelerator of one process."""

    num_processes = 1

    def gather(self, values):
        return values

    def reduce(self, values, reduction):
        return values

    def pad_across_processes(self, values, dim, pad_index):
        return values


DEFAULTS = {
    "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "beta": 0.0,
    "importance_sampling_level": "token", "loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28,
    "use_vllm": False, "vllm_importance_sampling_correction": False, "current_gradient_accumulation_steps": 1,
    "max_completion_length": 9, "_entropy_bonus_enabled": False,
}  # fmt: skip
ARGUMENTS = {
    "use_bias_correction_kl": False, "delta": None, "steps_per_generation": 1, "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
}  # fmt: skip


def trl_loss(logps, mask, settings, entropy=None, gmpo=False, **fields):
    """TRL's `_compute_loss`, from the log-probs on; its model is never asked."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    if gmpo:
        from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer as Trainer
    else:
        from trl.trainer.grpo_trainer import GRPOTrainer as Trainer
    self = Trainer.__new__(Trainer)
    vars(self).update(DEFAULTS | {name: value for name, value in settings.items() if name not in ARGUMENTS})
    self.args = SimpleNamespace(**{name: settings.get(name, value) for name, value in ARGUMENTS.items()})
    self.model, self.accelerator = SimpleNamespace(training=True), Alone()
    self._metrics = defaultdict(lambda: defaultdict(list))
    entropy = torch.zeros_like(logps.detach()) if entropy is None else entropy
    self._get_per_token_logps_and_entropies = lambda *_, **__: (logps, entropy, None)
    tokens = {"prompt_ids": mask[:, :0], "prompt_mask": mask[:, :0], "completion_ids": mask, "completion_mask": mask}
    return self._compute_loss(None, {**tokens, "num_items_in_batch": mask.sum(), **fields})


def trl_mask(name, **given):
    """One of the masks or weights of TRL's GRPO trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    self = GRPOTrainer.__new__(GRPOTrainer)
    self.accelerator = Alone()
    return getattr(self, name)(**given)
