"""verl (verl-project/verl): estimators, KL, policy and value losses, aggregation, correction, log-probs, metrics.

The bindings rely on guarantees of its trainer. Token rewards are 0 except on the last response token. The loss of every
micro-batch gets counts of the whole batch (workers/utils/losses.py), and micro-batch losses are summed.
"""

from trimtab.sentinel.targets.target import Target
from trimtab.sentinel.targets.verl import advantage, loss, token

TARGET = Target(
    "verl",
    "verl-project/verl",
    bindings=(*advantage.BINDINGS, *loss.BINDINGS, *token.BINDINGS),
    wheel="verl",
)
