"""One attempt at a prompt, as an engine and an environment produced it, before it becomes part of `Rollouts`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Status = Literal["ok", "error", "timeout", "abstain", "abort", "cancel"]
"""How an episode came out. Only an `ok` one has a reward; the others neither vote in their group nor train.

`error` and `timeout` are the reward's or the environment's, `abstain` the reward's; `abort` means that the engine gave
the answer up, `cancel` that the environment did.
"""
Numbers = Sequence[int] | Tensor
"""Whole numbers or booleans. A list costs less than a tensor where there is one for each of many episodes."""
STATUSES: tuple[Status, ...] = ("ok", "error", "timeout", "abstain", "abort", "cancel")
"""In the order of their numbers in the serial form; new ones are added at the end."""


@dataclass(frozen=True)
class Episode:
    """All that the model read and wrote in one attempt, in order, and what it earned.

    Prompt `7*8+5=`, turn `[7*8]`, observation `56;`, turn `61<eos>`: `trainable` is true at the two turns, and the
    fields below it have one entry for each true cell: `turn` is 0 in the first five and 1 in the last three.
    """

    ids: Numbers
    trainable: Numbers
    logp: Tensor
    """float32; of the distribution that the engine sampled from."""
    version: Numbers
    """Of the parameters that chose the token."""
    turn: Numbers
    ended: bool
    """The policy closed its last turn itself."""
    reward: float
    """nan unless `status` is ok."""
    status: Status
    message: str = ""
    support: "tuple[Numbers, Numbers] | None" = None
    """Where top-p or top-k left fewer tokens: their ids, flat, and how many for each trainable token."""
    seal: int = 0
    """Of what the engine drew (`seal.py`); 0 where nobody sampled."""
