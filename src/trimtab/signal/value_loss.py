"""Value losses: one number per token, to be minimised, never averaged."""

import torch

from trimtab.signal.catalogue import Positive, formula
from trimtab.signal.layout import PerToken
from trimtab.signal.policy_loss import Losses

_PROMISES = ("mask_content", "nonfinite_isolation", "no_aliasing", "split", "permutation", "equals_definition")


@formula(source="Sutton and Barto 2018, ch. 9, squared error", scope="token", promises=_PROMISES)
def squared(value: PerToken, returns: PerToken) -> Losses:
    """Half the squared distance to the return.

    l_t = (value_t - returns_t)^2 / 2
    """
    return 0.5 * (value - returns.detach()).square(), {}


@formula(source="OpenAI baselines, ppo2, clipped value loss", scope="token", promises=(*_PROMISES, "metric_truth"))
def squared_clipped(value: PerToken, value_old: PerToken, returns: PerToken, *, reach: Positive = 0.2) -> Losses:
    """Half the larger of two squared errors: of the value, and of the value held within `reach` of the old one.

    l_t = max((value_t - returns_t)^2, (clamp(value_t, value_old_t ± reach) - returns_t)^2) / 2
    """
    held = value_old.detach() + (value - value_old.detach()).clamp(-reach, reach)
    free, bounded = (value - returns.detach()).square(), (held - returns.detach()).square()
    return 0.5 * torch.maximum(free, bounded), {"clipped_tokens": bounded > free}
