"""TRL (huggingface/trl): the losses of GRPO and RLOO, rewards to advantages, masks, log-probs, distillation.

What its trainers guarantee, and the bindings rely on: completions are padded on the right, prompts apart; an advantage
belongs to a completion; the completions of a prompt are equally many and next to each other; micro-batches have equally
many completions, so a mean over completions is weighed by them; a reward that no function gave is NaN.
"""

from trimtab.sentinel.targets import trl_advantage, trl_loss, trl_token
from trimtab.sentinel.targets.target import Target

TARGET = Target(
    "trl",
    "huggingface/trl",
    bindings=(*trl_loss.BINDINGS, *trl_advantage.BINDINGS, *trl_token.BINDINGS),
    wheel="trl",
)
