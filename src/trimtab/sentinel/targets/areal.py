"""AReaL (areal-project/AReaL): rewards to advantages, normalisation, KL, actor and critic losses, rejection, log-probs.

What its trainer guarantees, and the bindings rely on: batches are padded on the right to their longest sequence, what
belongs to a token stands one cell before it, the sequences of a prompt are next to each other, and micro-batch losses
are means that the engine weighs by their tokens.
"""

from trimtab.sentinel.targets import areal_advantage, areal_loss
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "areal",
    "areal-project/AReaL",
    bindings=(*areal_advantage.BINDINGS, *areal_loss.BINDINGS),
    wheel="areal",
)
