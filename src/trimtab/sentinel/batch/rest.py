"""Fields at rest: what a function does not read says nothing to its definition either."""

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case

SAME_AS = {"logp_old": "logp_current", "logp_rollout": "logp_old", "logp_ref": "logp_current", "value_old": "value"}
"""A policy or a value head that nobody reads is the one that is read."""


def at_rest(case: Case, reads: frozenset[str] | None) -> Case:
    """The case with every field that is not read at rest: everyone votes, ended and is kept; policies agree; the
    reward is on the last token. None leaves every field as it is.

    A function that takes no `votes` has one meaning, that everyone votes. A definition with random votes would differ.
    """
    if reads is None:
        return case
    tokens = {name: value for name, value in _resting_tokens(case, reads).items() if name not in reads}
    rows = {name: value for name, value in _resting_sequences(case).items() if name not in reads}
    return case.with_tokens(**tokens).with_sequences(**rows)


def _resting_tokens(case: Case, reads: frozenset[str]) -> dict[str, Tensor]:
    yes = torch.ones(case.trainable.numel(), dtype=torch.bool)
    resting = {"keep": yes, "selected": ~yes}
    for name, other in SAME_AS.items():
        resting[name] = case.tokens[name] if name in reads else resting.get(other, case.tokens[other])
    if reads & {"reward", "outcome"}:
        resting["token_reward"] = reward_on_last(case)
    return resting


def _resting_sequences(case: Case) -> dict[str, Tensor]:
    yes = torch.ones(case.num_sequences, dtype=torch.bool)
    return {"votes": yes, "ended": yes, "value_after": torch.zeros(case.num_sequences, dtype=torch.float64)}


def reward_on_last(case: Case) -> Tensor:
    """One number per token: the reward of the sequence on its last trainable token, 0 on all others."""
    paid = torch.zeros_like(case.tokens["token_reward"])
    for row in range(case.num_sequences):
        own = ((case.owner == row) & case.trainable).nonzero().squeeze(1)
        if own.numel():
            paid[own[-1]] = case.sequences["reward"][row]
    return paid
