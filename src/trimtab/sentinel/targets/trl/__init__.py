"""TRL (huggingface/trl): the losses of GRPO and RLOO, rewards to advantages, masks, log-probs, distillation.

The bindings rely on guarantees of its trainers. Completions are padded on the right, separate from prompts. There is
one advantage per completion. All prompts have the same number of completions, next to each other. All micro-batches
have the same number of completions, so a mean over completions is weighted correctly. A missing reward is NaN.
"""

from trimtab.sentinel.targets.target import Target
from trimtab.sentinel.targets.trl import advantage, loss, token

TARGET = Target(
    "trl",
    "huggingface/trl",
    bindings=(*loss.BINDINGS, *advantage.BINDINGS, *token.BINDINGS),
    wheel="trl",
)
