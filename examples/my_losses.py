"""Your own policy loss, outside the package. `trimtab check my_losses.tempered` checks its promises."""

from torch import Tensor

from trimtab import formula
from trimtab.signal.layout import PerToken


@formula(
    source="an example",
    stage="policy_loss",
    scope="token",
    promises=("mask_content", "nonfinite_isolation", "no_aliasing", "split", "permutation"),
)
def tempered(
    logp_current: PerToken, advantage: PerToken, *, temperature: float = 1.0
) -> tuple[PerToken, dict[str, Tensor]]:
    """REINFORCE with the advantage softened by a constant.

    l_t = -temperature * A_t * logp_current_t
    """
    return -temperature * advantage.detach() * logp_current, {}
