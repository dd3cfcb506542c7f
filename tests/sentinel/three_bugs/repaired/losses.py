"""The same three functions, repaired."""

import torch

from trimtab.sentinel import like, subject


@subject(role="statistic", args={"values": "advantage", "mask": "trainable"})
def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum().clamp(min=1)


@subject(role="kl", definition=like("kl.k3"))
def kl_penalty(logp_current, logp_ref, mask):
    delta = logp_ref - logp_current
    return (torch.exp(delta) - delta - 1) * mask


@subject(role="reward_normalisation", args={"rewards": "reward", "group": "group"})
def group_advantages(rewards, group):
    means = [rewards[group == name].mean() for name in group]
    return rewards - torch.stack(means)
