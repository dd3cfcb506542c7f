"""The only place that computes log-probs, entropies and the states they come from, with their shift and temperature.

Old, current and reference numbers all come from here, so they differ by parameters and nothing else. Logits exist
only at the positions that predict a trainable token, and only a chunk of them at a time.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trimtab.errors import SignalError
from trimtab.rollout.assemble import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK_TOKENS = 8192
"""Positions whose logits are held at once: 1 GiB of float32 at a vocabulary of 32k."""


@dataclass(frozen=True)
class TokenPass:
    """What one forward pass says of the trainable tokens, flat, sequence after sequence."""

    logp: Tensor
    """Of the token that stands there, under the tempered distribution; float32."""
    entropy: Tensor
    """Of that distribution, in nats; float32."""
    state: Tensor
    """The last hidden state that predicted the token, `[tokens, hidden]`."""
    state_after: Tensor | None
    """The last hidden state at each sequence's last token, `[sequences, hidden]`; only when asked for."""


def token_pass(
    model: "PreTrainedModel",
    rows: Rows,
    *,
    temperature: float,
    with_state_after: bool = False,
    chunk_tokens: int = CHUNK_TOKENS,
) -> TokenPass:
    """Log-prob and entropy of every trainable token of `rows`.

    logp_t = log_softmax(logits[column_t - 1] / temperature)[id_t]

    Undefined when a trainable token stands in the first column: nothing precedes it that could predict it.
    """
    if not bool((rows.column_of_token > 0).all()):
        first = rows.row_of_token[rows.column_of_token == 0].tolist()
        raise SignalError(
            f"token_pass: rows {first} train their first token, so nothing predicts it. Put a prompt token before it."
        )
    # No attention mask: padding stands to the right of every real token, where causal attention cannot see it.
    # The last column predicts nothing in these rows, so it is computed only for the state after it.
    ids = rows.ids if with_state_after else rows.ids[:, :-1]
    out = model.base_model(input_ids=ids, use_cache=False)
    hidden = cast(Tensor, out.last_hidden_state)
    state = hidden[rows.row_of_token, rows.column_of_token - 1]
    target = rows.ids[rows.row_of_token, rows.column_of_token]
    logp, entropy = _chunked(model, state, target, temperature, chunk_tokens)
    return TokenPass(
        logp=logp,
        entropy=entropy,
        state=state,
        state_after=hidden[torch.arange(len(rows.ids)), rows.last_column] if with_state_after else None,
    )


def _chunked(
    model: "PreTrainedModel", state: Tensor, target: Tensor, temperature: float, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """Chunk after chunk; with several, the backward pass computes each chunk's logits again instead of keeping them."""
    head = cast(torch.nn.Linear, model.get_output_embeddings())

    def scored(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(states).float() / temperature
        normaliser = logits.logsumexp(-1)
        logp = logits.gather(-1, targets[:, None])[:, 0] - normaliser
        entropy = normaliser - (torch.softmax(logits, -1) * logits).sum(-1)
        return logp, entropy

    if len(state) <= chunk_tokens:
        return scored(state, target)
    pieces = [
        cast(tuple[Tensor, Tensor], checkpoint(scored, states, targets, use_reentrant=False))
        for states, targets in zip(state.split(chunk_tokens), target.split(chunk_tokens), strict=True)
    ]
    logp, entropy = zip(*pieces, strict=True)
    return torch.cat(logp), torch.cat(entropy)
