"""The only place that computes log-probs, entropies and the states they come from, with their shift and temperature.

Old, current and reference numbers all come from here, so they differ by parameters and nothing else. Logits exist
only at the positions that predict a trainable token, and only a chunk of them at a time. Results come back on the
device of the rows, whichever device the model is on.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trimtab.errors import SignalError
from trimtab.rollout.plain import Plain
from trimtab.rollout.rows import Rows
from trimtab.signal import logp_from_hidden
from trimtab.train.distinct import distinct
from trimtab.train.lean import hidden_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGITS_BYTES = 16 * 2**20
"""Room for the float32 logits of one chunk: 256k tokens at a vocabulary of 16, 128 at one of 32k."""


@dataclass(frozen=True)
class TokenPass:
    """What one forward pass computes for the trainable tokens, flat, sequence after sequence, at least in float32."""

    logp: Tensor
    """Of the token itself, under the tempered distribution."""
    entropy: Tensor
    """Of that distribution, in nats."""
    state: Tensor | None
    """The last hidden state that predicted the token, `[tokens, hidden]`; only when asked for."""
    state_after: Tensor | None
    """The last hidden state at each sequence's last token, `[sequences, hidden]`; only when asked for."""


def token_pass(
    model: "PreTrainedModel",
    rows: Rows,
    *,
    temperature: float,
    float32_head: bool = True,
    with_state: bool = False,
    with_state_after: bool = False,
    entropy_graph: bool = False,
    logits_bytes: int = LOGITS_BYTES,
    plain: Plain | None = None,
) -> TokenPass:
    """Log-prob and entropy of every trainable token of `rows`.

    logp_t = log_softmax(logits[column_t - 1] / temperature)[id_t]

    Where `rows.support` says which tokens the sampler drew from, the softmax is over those alone. `logits_bytes`
    bounds memory; another value changes the numbers by rounding only (1e-5 at most in float32). The entropy carries a
    gradient only with `entropy_graph`: its graph is as large as that of the log-probs. With `plain`, the model as plain
    matrices, each distinct beginning of the rows is computed once; without it, the model's own forward pass runs.

    Undefined when a trainable token stands in the first column: nothing precedes it that could predict it.
    """
    check_places(rows)
    states = (
        _states(model, rows, with_state_after) if plain is None else _distinct_states(plain, rows, with_state_after)
    )
    here = rows.ids.device
    head = _head(model, float32=float32_head)
    predicting, of_token = states.predicting, states.of_token
    if rows.support is not None and of_token is not None:  # each token has a support of its own
        predicting, of_token = states.each(predicting), None
    target = states.target if of_token is states.of_token else states.target[states.of_token]
    if rows.support is None and _is_wide(head):  # the same in one pass that computes its gradient by hand
        chunk = max(1, logits_bytes // 4)
        logp, entropy = logp_from_hidden(
            predicting, head.weight, target, bias=head.bias, temperature=temperature, chunk=chunk
        )
        entropy = entropy if entropy_graph else entropy.detach()
    else:
        logp, entropy = _chunked(head, predicting, target, temperature, logits_bytes, rows.support, entropy_graph)
    if of_token is not None:
        logp, entropy = logp.index_select(0, of_token), entropy.index_select(0, of_token)
    return TokenPass(
        logp=logp.to(here),
        entropy=entropy.to(here),
        state=wide(states.each(states.predicting)).to(here) if with_state else None,
        state_after=None if states.after is None else wide(states.after).to(here),
    )


@dataclass(frozen=True)
class _States:
    """Last hidden states of one pass, on the model's device."""

    predicting: Tensor
    """The states that predict trainable tokens: one for each token, or for each distinct beginning and token."""
    target: Tensor
    """The ids that they predict."""
    of_token: Tensor | None
    """Which of them belongs to each trainable token; None: its own."""
    after: Tensor | None

    def each(self, values: Tensor) -> Tensor:
        """One for each trainable token."""
        return values if self.of_token is None else values.index_select(0, self.of_token)


def _states(model: "PreTrainedModel", rows: Rows, with_after: bool) -> _States:
    """By the model's own forward pass over the rectangle."""
    # No attention mask: padding stands to the right of every real token, where causal attention cannot see it.
    # The last column predicts nothing in these rows, so it is computed only for the state after it.
    there = model.device
    ids = rows.ids if with_after else rows.ids[:, :-1]
    hidden = cast(Tensor, model.base_model(input_ids=ids.to(there), use_cache=False).last_hidden_state)
    row, column = rows.row_of_token.to(there), rows.column_of_token.to(there)
    after = hidden[torch.arange(len(ids), device=there), rows.last_column.to(there)] if with_after else None
    return _States(hidden[row, column - 1], rows.ids[rows.row_of_token, rows.column_of_token].to(there), None, after)


def _distinct_states(plain: Plain, rows: Rows, with_after: bool) -> _States:
    """By the lean forward pass: each distinct beginning once."""
    tree = distinct(rows, with_last=with_after)
    hidden = hidden_states(plain, tree)
    after = hidden.index_select(0, tree.last) if with_after else None
    return _States(hidden.index_select(0, tree.target_node), tree.target, tree.target_of_token, after)


def check_places(rows: Rows) -> None:
    """Refuse rows whose trainable tokens nothing predicts, or that could not have been sampled. It reads values."""
    if not bool((rows.column_of_token > 0).all()):
        first = rows.row_of_token[rows.column_of_token == 0].tolist()
        raise SignalError(
            f"token_pass: rows {first} train their first token, so nothing predicts it. Put a prompt token before it."
        )
    if rows.support is not None:
        _check_support(*rows.support, rows.ids[rows.row_of_token, rows.column_of_token])


def wide(values: Tensor) -> Tensor:
    """In float32, or in float64 where they are."""
    return values if values.dtype == torch.float64 else values.float()


def _head(model: "PreTrainedModel", *, float32: bool) -> "nn.Linear | _Float32":
    """The output head; with `float32`, one that computes in float32 whatever its parameters are stored in."""
    head = cast(nn.Linear, model.get_output_embeddings())
    return _Float32(head) if float32 and head.weight.dtype in (torch.bfloat16, torch.float16) else head


class _Float32:
    """Logits from float32 products: rounding them to bfloat16 first moves log-probs by 1e-3 on average."""

    def __init__(self, head: nn.Linear) -> None:
        self.weight: Tensor = head.weight
        self.bias: Tensor | None = head.bias

    def __call__(self, states: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(states.float(), self.weight.float(), bias)


def _is_wide(head: object) -> bool:
    """Whether the head is a plain product in float32 at least."""
    return isinstance(head, _Float32) or (
        type(head) is nn.Linear and head.weight.dtype in (torch.float32, torch.float64)
    )


def _chunked(
    head: "nn.Linear | _Float32",
    state: Tensor,
    target: Tensor,
    temperature: float,
    logits_bytes: int,
    support: tuple[Tensor, Tensor] | None,
    entropy_graph: bool,
) -> tuple[Tensor, Tensor]:
    """Chunk after chunk; with several, the backward pass computes each chunk's logits again instead of keeping them."""
    chunk_tokens = max(1, logits_bytes // (4 * head.weight.shape[0]))

    def score(states: Tensor, targets: Tensor, ids: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor]:
        logits = wide(head(states)) / temperature
        if ids is None or counts is None:
            return _scores(logits, targets, entropy_graph)
        owner = torch.repeat_interleave(torch.arange(len(counts), device=logits.device), counts.to(logits.device))
        ruled_out = torch.ones_like(logits, dtype=torch.bool)
        ruled_out[owner, ids.to(logits.device)] = False
        return _scores_among(logits, targets, ruled_out, entropy_graph)

    if len(state) <= chunk_tokens:
        return score(state, target, *(support or (None, None)))
    parts = zip(
        state.split(chunk_tokens),
        target.split(chunk_tokens),
        _cut_support(support, len(state), chunk_tokens),
        strict=True,
    )
    pieces = [
        checkpoint(score, states, targets, *left, use_reentrant=False, preserve_rng_state=False)
        for states, targets, left in parts
    ]
    logp, entropy = zip(*cast("list[tuple[Tensor, Tensor]]", pieces), strict=True)
    return torch.cat(logp), torch.cat(entropy)


def _scores(logits: Tensor, target: Tensor, entropy_graph: bool) -> tuple[Tensor, Tensor]:
    """Log-prob of the target and entropy of the distribution, one of each per row."""
    normaliser = logits.logsumexp(-1)
    logp = logits.gather(-1, target[:, None])[:, 0] - normaliser
    with torch.set_grad_enabled(entropy_graph and torch.is_grad_enabled()):
        return logp, normaliser - (torch.softmax(logits, -1) * logits).sum(-1)


def _scores_among(logits: Tensor, target: Tensor, ruled_out: Tensor, entropy_graph: bool) -> tuple[Tensor, Tensor]:
    """The same over the tokens that are not ruled out."""
    among = logits.masked_fill(ruled_out, -math.inf)
    normaliser = among.logsumexp(-1)
    logp = logits.gather(-1, target[:, None])[:, 0] - normaliser
    # Not `among` in the product: zero times infinity is nan.
    with torch.set_grad_enabled(entropy_graph and torch.is_grad_enabled()):
        return logp, normaliser - (torch.softmax(among, -1) * logits.masked_fill(ruled_out, 0.0)).sum(-1)


def _cut_support(
    support: tuple[Tensor, Tensor] | None, num_tokens: int, chunk_tokens: int
) -> "list[tuple[Tensor, Tensor] | tuple[None, None]]":
    """Ids and counts for each chunk of tokens."""
    if support is None:
        return [(None, None)] * -(-num_tokens // chunk_tokens)
    ids, counts = support
    parts = counts.split(chunk_tokens)
    return list(zip(ids.split([int(part.sum()) for part in parts]), parts, strict=True))


def _check_support(ids: Tensor, counts: Tensor, target: Tensor) -> None:
    owner = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    found = torch.zeros(len(counts), dtype=torch.bool, device=counts.device)
    found[owner[ids == target[owner]]] = True
    if not bool(found.all()):
        lost = (~found).nonzero()[:, 0].tolist()
        raise SignalError(
            f"token_pass: {len(lost)} trainable tokens (first: {lost[0]}, id {int(target[lost[0]])}) are not among the "
            "ids that their support names, so they could not have been sampled. Record the support of the same samples."
        )
