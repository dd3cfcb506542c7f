"""SkyRL (NovaSky-AI/SkyRL): estimators, KL, policy and value losses, off-policy correction, batches, metrics.

The bindings rely on guarantees of its trainer. Tensors of a batch are right-aligned (padding on the left). Token
rewards are 0 except on the last token. Estimators get the mask of the whole answer, losses that of trained tokens.
Advantages are scaled once over the mini-batch, so that micro-batch losses add up.
"""

from trimtab.sentinel.targets import skyrl_advantage, skyrl_batch, skyrl_correction, skyrl_loss
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "skyrl",
    "NovaSky-AI/SkyRL",
    bindings=(*skyrl_advantage.BINDINGS, *skyrl_loss.BINDINGS, *skyrl_correction.BINDINGS, *skyrl_batch.BINDINGS),
    wheel="skyrl",
)
