"""The only forward pass of the trainer: backbone, head and critic as one module, so that sharding wraps one thing.

Old, current and reference log-probs and values all come from here. It does not know batches, losses or optimisers.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from trimtab.rollout.plain import Plain
from trimtab.rollout.rows import Rows
from trimtab.train.lean import checked_plain
from trimtab.train.logp import token_pass

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Passed(NamedTuple):
    """What one forward pass says, float32; a tuple, because hooks on a sharded module look for tensors in it."""

    logp: Tensor
    """Of each trainable token, under the tempered distribution."""
    entropy: Tensor
    """Of that distribution, in nats."""
    value: Tensor | None
    """The critic's value of the state that predicted each token; only when asked for."""
    value_after: Tensor | None
    """The value of the state after each sequence's last token; only when asked for."""


class Actor(nn.Module):
    """A causal LM and a critic on its last hidden states."""

    def __init__(
        self, model: "PreTrainedModel", critic: nn.Linear, *, temperature: float, float32_head: bool = True
    ) -> None:
        super().__init__()
        self.model: PreTrainedModel = model
        self.critic: nn.Linear = critic
        self.temperature: float = temperature
        self.float32_head: bool = float32_head
        self._read: Plain | str | None = None

    @property
    def path(self) -> str:
        """How passes are computed: `lean Qwen3`, or `transformers` and why."""
        plain = self.plain
        return f"transformers ({self._read})" if plain is None else f"lean {plain.kind}"

    @property
    def plain(self) -> Plain | None:
        """The model as plain matrices, if it is a known one. Read at the first pass: sharding comes before it."""
        if self._read is None:
            self._read = checked_plain(self.model)
        return None if isinstance(self._read, str) else self._read

    def forward(
        self, rows: Rows, *, entropy_graph: bool = False, with_value: bool = False, with_value_after: bool = False
    ) -> Passed:
        """Log-probs and entropies of the trainable tokens of these rows, and values if they are asked for."""
        passed = token_pass(
            self.model,
            rows,
            temperature=self.temperature,
            float32_head=self.float32_head,
            with_state=with_value,
            entropy_graph=entropy_graph,
            with_state_after=with_value_after,
            plain=self.plain,
        )
        return Passed(passed.logp, passed.entropy, self.value(passed.state), self.value(passed.state_after))

    def value(self, state: Tensor | None) -> Tensor | None:
        """The critic's value. It sends no gradient into the state: its error must not change the policy."""
        if state is None:
            return None
        return self.critic(state.detach().to(self.critic.weight)).sum(1).to(state.device)  # of one column: no view
