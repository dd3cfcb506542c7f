"""Three functions with one bug each: padding enters the mean, the KL is turned around, groups share a mean.

From this folder: trimtab check losses.py --findings findings --fixed repaired
"""

import torch

from trimtab.sentinel import like, subject


@subject(role="statistic", args={"values": "advantage", "mask": "trainable"})
def masked_mean(values, mask):
    return values.sum() / mask.sum().clamp(min=1)


@subject(role="kl", definition=like("kl.k3"))
def kl_penalty(logp_current, logp_ref, mask):
    delta = logp_current - logp_ref
    return (torch.exp(delta) - delta - 1) * mask


@subject(role="reward_normalisation", args={"rewards": "reward", "group": "group"})
def group_advantages(rewards, group):
    return rewards - rewards.mean()
