"""AReaL (areal-project/AReaL): rewards to advantages, normalisation, KL, actor and critic losses, rejection, log-probs.

The bindings rely on guarantees of its trainer. Batches are padded on the right to their longest sequence. The value of
a token is one cell before the token. The sequences of a prompt are next to each other. Micro-batch losses are means
that the engine weights by their tokens.
"""

from trimtab.sentinel.targets.areal import advantage, loss
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "areal",
    "areal-project/AReaL",
    bindings=(*advantage.BINDINGS, *loss.BINDINGS),
    wheel="areal",
)
