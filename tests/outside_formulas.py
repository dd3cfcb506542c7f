"""Formulas that live outside the package, as a user's would."""

from typing import Any

from torch import Tensor

from trimtab import formula
from trimtab.signal.layout import PerToken


@formula(source="a test", stage="importance", scope="token", consumes="ratio", promises=("no_aliasing",))
def halved(logratio: PerToken, *, factor: float, **ignored: Any) -> tuple[PerToken, dict[str, Tensor]]:
    """The raw ratio times a constant; accepts and ignores other keyword arguments, as slime's hooks do."""
    return factor * logratio.detach().exp(), {}


def undecorated(logratio: PerToken) -> PerToken:
    """Not a formula."""
    return logratio


@formula(source="a test", stage="keep", scope="token", promises=("no_aliasing",))
def wants_too_much(logratio: PerToken, temperature_field: PerToken) -> tuple[Tensor, dict[str, Tensor]]:
    """Asks for an input that nobody provides."""
    return logratio > temperature_field, {}


@formula(
    source="a test", stage="policy_loss", scope="token", consumes="ratio", promises=("split", "on_policy_identity")
)
def leaky(logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """A surrogate with a planted bug: it forgets the sign of the advantage."""
    return -(logp_current - logp_anchor.detach()).exp() * advantage.abs(), {}


@formula(source="a test", stage="policy_loss", scope="token", promises=("split",))
def averaged(logp_current: PerToken, advantage: PerToken) -> tuple[Tensor, dict[str, Tensor]]:
    """Takes the mean inside, which a formula never does."""
    return (-advantage * logp_current).mean(), {}


@formula(source="a test", stage="policy_loss", scope="token", promises=("split",))
def bare(logp_current: PerToken, advantage: PerToken) -> PerToken:
    """Forgets its observations."""
    return -advantage * logp_current


@formula(source="Wang et al. 2025, arXiv:2506.01939, top entropy tokens", stage="keep", scope="update", promises=())
def high_entropy(entropy: PerToken, *, share: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Keep the share of the update's tokens with the highest entropy."""
    bound = entropy.quantile(1 - share)
    return entropy >= bound, {"over_high_tokens": entropy > bound}


@formula(source="a test", stage="advantage", scope="group", promises=())
def by_turn(outcome: PerToken, turn: Tensor, segments: Any, group_of_episode: Tensor, level: PerToken) -> Any:
    """Turn-level credit: the outcome, divided by the turn's number plus a field of the caller's own."""
    per_token = outcome[segments.sequence_of_token] / (1 + turn) + level + 0 * group_of_episode.sum()
    return per_token, per_token.clone()


@formula(source="a test", stage="policy_loss", scope="token", promises=())
def fresh_only(logp_current: PerToken, advantage: PerToken, version: Tensor) -> tuple[PerToken, dict[str, Tensor]]:
    """REINFORCE on tokens of version 3 alone: a version mask."""
    return -(version == 3).to(advantage.dtype) * advantage * logp_current, {}


@formula(source="a test", stage="keep", scope="sequence", promises=())
def who_trains(trains: Tensor, segments: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A keep that reads who trains, so it decides after the vote."""
    return trains[segments.sequence_of_token], {}


@formula(source="a test", stage="keep", scope="update", promises=())
def farthest(logratio: PerToken, segments: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Looks across the whole update: rejects the half of its tokens that drifted most, and says so at both levels."""
    far = logratio.abs() > logratio.abs().median()
    rows = logratio.new_zeros(segments.num_sequences).index_add(0, segments.sequence_of_token, far.to(logratio.dtype))
    return ~far, {"over_high_tokens": far, "over_high_sequences": rows > 0}


@formula(source="a test", stage="normalize", scope="batch", promises=())
def reads_the_future(reward: PerToken, advantage: PerToken) -> tuple[Tensor, Tensor]:
    """Asks for what does not exist yet."""
    return reward - advantage, reward > 0


@formula(source="a test", stage="importance", scope="token", consumes="ratio", promises=())
def undetached(logratio: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """The ratio itself. It forgets to detach."""
    return logratio.exp(), {}


@formula(source="a test", stage="importance", scope="update", promises=())
def as_entropy(entropy: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """An importance from the entropy of the current policy, over its mean in the update. It forgets to detach."""
    return entropy / entropy.mean(), {}


@formula(source="a test", stage="policy_loss", scope="token", promises=())
def weighed_by_entropy(
    logp_current: PerToken, advantage: PerToken, entropy: PerToken
) -> tuple[PerToken, dict[str, Tensor]]:
    """A policy loss that reads a quantity of the current policy besides its log-prob, and forgets to detach it."""
    return -advantage * logp_current * entropy, {}
