"""SkyRL (NovaSky-AI/SkyRL): estimators, KL, policy and value losses, off-policy correction, batches, metrics.

The bindings rely on guarantees of its trainer. Tensors of a batch are right-aligned (padding on the left). Token
rewards are 0 except on the last token. Estimators get the mask of the whole answer, losses that of trained tokens.
Advantages are scaled once over the mini-batch, so that micro-batch losses add up.
"""

from trimtab.sentinel.targets.skyrl import advantage, batch, correction, loss
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "skyrl",
    "NovaSky-AI/SkyRL",
    bindings=(*advantage.BINDINGS, *loss.BINDINGS, *correction.BINDINGS, *batch.BINDINGS),
    wheel="skyrl",
)
