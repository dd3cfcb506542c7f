"""OpenRLHF (OpenRLHF/OpenRLHF): policy, value and SFT losses, KL, rewards, advantages, length penalties, log-probs.

The bindings rely on guarantees of its trainer. Token fields are [rows, width - 1] without the first token, with masked
prompts. The loss of every micro-batch gets counts of the whole batch. All prompts have the same number of samples, and
these are next to each other.
"""

from trimtab.sentinel.targets.openrlhf import advantage, loss, token
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "openrlhf",
    "OpenRLHF/OpenRLHF",
    bindings=(*loss.BINDINGS, *advantage.BINDINGS, *token.BINDINGS),
    wheel="openrlhf",
)
