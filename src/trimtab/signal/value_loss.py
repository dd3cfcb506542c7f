"""Value losses: one number per token, to be minimised, never averaged."""

import torch
from torch.nn.functional import huber_loss

from trimtab.signal.catalogue import Ceiling, Positive, formula
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


@formula(
    source="Huber 1964, Robust Estimation of a Location Parameter; AReaL, critic loss (huber)",
    scope="token",
    promises=(*_PROMISES, "metric_truth"),
)
def huber_clipped(
    value: PerToken, value_old: PerToken, returns: PerToken, *, reach: Ceiling = 0.2, width: Positive = 10.0
) -> Losses:
    """The larger of two Huber errors: of the value, and of the value held within `reach` of the old one.

    l_t = max(h(value_t - returns_t), h(clamp(value_t, value_old_t ± reach) - returns_t))
    h(e) = e^2 / 2 where |e| < width, width * (|e| - width / 2) elsewhere

    A far return pulls with `width` and no harder. reach = inf holds nothing back.
    Settings in use: width is 10 in AReaL.
    """
    held = value_old.detach() + (value - value_old.detach()).clamp(-reach, reach)
    free, bounded = (huber_loss(one, returns.detach(), reduction="none", delta=width) for one in (value, held))
    return torch.maximum(free, bounded), {"clipped_tokens": bounded > free}
