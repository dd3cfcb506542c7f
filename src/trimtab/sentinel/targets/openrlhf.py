"""OpenRLHF (OpenRLHF/OpenRLHF): policy, value and SFT losses, KL, rewards, advantages, length penalties, log-probs.

What its trainer guarantees, and the bindings rely on: everything a token has stands in [rows, width - 1] without the
first token, prompts included and masked; counts of the whole batch are handed to every micro-batch's loss; the samples
of a prompt are equally many and next to each other.
"""

from trimtab.sentinel.targets import openrlhf_advantage, openrlhf_loss, openrlhf_token
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "openrlhf",
    "OpenRLHF/OpenRLHF",
    bindings=(*openrlhf_loss.BINDINGS, *openrlhf_advantage.BINDINGS, *openrlhf_token.BINDINGS),
    wheel="openrlhf",
)
