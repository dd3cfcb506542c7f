"""An old policy that nobody computed: the only place that puts one between the sampler and the current policy.

A-3PO, 2025, arXiv:2512.06547: the proximal policy of decoupled PPO needs a forward pass of its own per batch.
Where it lies between the two other policies is known from versions alone, so it is interpolated instead.
"""

import torch

from trimtab.signal.layout import PerToken, TokenIndex

CURRENT_SHARE = "current_share:"
"""The field of an update that holds these shares; no formula can name it."""


def current_share(version: TokenIndex, now: int, dtype: torch.dtype) -> PerToken:
    """How far the old policy is on its way from the sampler to the current policy, per token.

    share_t = 1 - 1 / max(now - version_t, 1)

    now = 5: a token of version 4 has 0, so its old policy is its sampler; of version 3 it has 1/2, of version 1 3/4.
    """
    return 1 - 1 / (now - version).to(dtype).clamp(min=1)


def interpolated(logp_current: PerToken, logp_rollout: PerToken, share: PerToken) -> PerToken:
    """logp_old_t = logp_rollout_t + share_t * (logp_current_t - logp_rollout_t), without gradient."""
    return logp_rollout + share * (logp_current.detach() - logp_rollout)
