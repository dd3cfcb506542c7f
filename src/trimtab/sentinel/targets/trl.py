"""TRL (huggingface/trl): the losses of GRPO and RLOO, rewards to advantages, masks, log-probs, distillation.

The bindings rely on guarantees of its trainers. Completions are padded on the right, separate from prompts. There is
one advantage per completion. All prompts have the same number of completions, next to each other. All micro-batches
have the same number of completions, so a mean over completions is weighted correctly. A missing reward is NaN.
"""

from trimtab.sentinel.targets import trl_advantage, trl_loss, trl_token
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "trl",
    "huggingface/trl",
    bindings=(*trl_loss.BINDINGS, *trl_advantage.BINDINGS, *trl_token.BINDINGS),
    wheel="trl",
)
