"""SkyRL (NovaSky-AI/SkyRL): estimators, KL, policy and value losses, off-policy correction, batches, metrics.

What its trainer guarantees, and the bindings rely on: tensors of a batch are right-aligned (padding on the left), token
rewards are 0 but on the last token, estimators get the mask of the whole answer and losses that of what trains, and
advantages are scaled once over the mini-batch so that micro-batch losses add up.
"""

from trimtab.sentinel.targets import skyrl_advantage, skyrl_batch, skyrl_correction, skyrl_loss
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "skyrl",
    "NovaSky-AI/SkyRL",
    bindings=(*skyrl_advantage.BINDINGS, *skyrl_loss.BINDINGS, *skyrl_correction.BINDINGS, *skyrl_batch.BINDINGS),
    wheel="skyrl",
)
