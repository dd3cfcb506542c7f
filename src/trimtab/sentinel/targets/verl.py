"""verl (verl-project/verl): estimators, KL, policy and value losses, aggregation, correction, log-probs, metrics.

What its trainer guarantees, and the bindings rely on: token rewards are 0 but on the last response token; counts of the
whole batch are handed to every micro-batch's loss (workers/utils/losses.py), and micro-batch losses are summed.
"""

from trimtab.sentinel.targets import verl_advantage, verl_loss, verl_token
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "verl",
    "verl-project/verl",
    bindings=(*verl_advantage.BINDINGS, *verl_loss.BINDINGS, *verl_token.BINDINGS),
    wheel="verl",
)
