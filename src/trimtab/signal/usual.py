"""Parts that most recipes share, under short names: the only place that holds them."""

import math

from trimtab.signal.ingredient import Stage
from trimtab.signal.parts import Part, part


def group() -> Part:
    """Rewards around the mean of their group, in units of its spread."""
    return part("normalize.mean_std", mean="group", std="group")


def group_mean() -> Part:
    """Rewards around the mean of their group."""
    return part("normalize.mean_std", mean="group", std="none")


def token_mean() -> Part:
    """Every token counts the same."""
    return part("weighting.token_mean")


def ppo() -> Stage:
    """The PPO clip, 0.2 both ways, against the old policy."""
    return Stage(part("policy_loss.clipped", band=(0.8, 1.2)), anchor="old")


def unclipped() -> Stage:
    """The ratio to the sampler as it is."""
    return Stage(part("policy_loss.clipped", band=(0.0, math.inf)), anchor="rollout")


def reinforce() -> Stage:
    """The policy gradient."""
    return Stage(part("policy_loss.reinforce"))
