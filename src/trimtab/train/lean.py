"""The only place that runs a known model for training without its modules: one row of matrices per distinct token.

The linear layers see each distinct beginning once and no padding. Attention needs rectangles: queries, keys and values
are laid out as rows, where causal attention hides padding on the right. The numbers are those of the model's own
forward pass up to rounding, and so are the gradients; the first pass of an actor checks that.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.rollout.plain import Layer, Linear, Plain, read_plain
from trimtab.rollout.rows import Rows
from trimtab.train.distinct import Tree, distinct
from trimtab.train.pieces import attention, gated, heads, rms_norm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE = ((3, 1, 4, 1, 5, 9, 2, 6), (3, 1, 4, 2, 7, 1, 8, 2), (3, 1, 4, 1, 0, 0, 0, 0))
LAST = (7, 7, 3)
"""Ids on which both passes must agree, and the last column of each row: three rows with a common beginning."""
STACKED = 2**20
"""Parameters up to which matrices with the same input are copied together: one product is faster than three. The copies
live until the backward pass, so that of a large model they would take half as much memory as the model."""
APART = 1e-4
"""How far the states of the two passes may be apart, of the largest. Rounding in float32 gives 1e-6; another rotary
angle, scale or norm gives 1e-2."""


def checked_plain(model: "PreTrainedModel") -> Plain | str:
    """The model as plain matrices, if the lean pass gives its numbers; else why the model runs as it is."""
    plain = read_plain(model)
    if isinstance(plain, str):
        return plain
    if plain.dtype != torch.float32:
        return "it is in float64, and norms in float32 inside it would make gradients differ in the eighth digit"
    ids = torch.tensor(PROBE) % len(plain.embedding)
    last = torch.tensor(LAST)
    row, column = (torch.arange(ids.shape[1]) <= last[:, None]).nonzero(as_tuple=True)
    rows = Rows(ids, row[column > 0], column[column > 0], last)
    with torch.no_grad():
        tree = distinct(rows, with_last=True)
        lean = hidden_states(plain, tree)[tree.target_node[tree.target_of_token]]
        own = cast(Tensor, model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    own = own[rows.row_of_token, rows.column_of_token - 1]
    apart = float((lean - own).abs().max() / own.abs().max())
    return plain if apart <= APART else f"its lean pass is {apart:.1e} apart from its own"


def hidden_states(plain: Plain, tree: Tree) -> Tensor:
    """The last hidden state, after the last norm, of each node, `[nodes, hidden]`."""
    angle = tree.position[:, None].float() * plain.frequency.float()
    turn = tuple((one * plain.rope_scale).to(plain.dtype)[:, None] for one in (angle.cos(), angle.sin()))
    hidden = functional.embedding(tree.ids, plain.embedding, padding_idx=plain.padding)
    for layer in plain.layers:
        hidden = _layer(plain, layer, hidden, cast("tuple[Tensor, Tensor]", turn), tree)
    return rms_norm(hidden, plain.norm, plain.eps)


def _layer(plain: Plain, layer: Layer, hidden: Tensor, turn: tuple[Tensor, Tensor], tree: Tree) -> Tensor:
    normed = rms_norm(hidden, layer.attention_norm, plain.eps)
    hidden = _add_linear(hidden, _attend(plain, layer, normed, turn, tree), layer.output)
    normed = rms_norm(hidden, layer.feed_norm, plain.eps)
    return _add_linear(hidden, gated(_linears(normed, layer.gate, layer.up)), layer.down)


def _attend(plain: Plain, layer: Layer, normed: Tensor, turn: tuple[Tensor, Tensor], tree: Tree) -> Tensor:
    joined = _linears(normed, layer.query, layer.key, layer.value).view(len(normed), -1, plain.head_size)
    norms = None if layer.query_norm is None or layer.key_norm is None else (layer.query_norm, layer.key_norm)
    found = heads(joined, norms, turn, (plain.heads, plain.key_heads), plain.eps)
    query, key, value = (_laid_out(one, tree.node) for one in found)
    if plain.key_heads < plain.heads:
        key, value = (one.repeat_interleave(plain.heads // plain.key_heads, 1) for one in (key, value))
    mixed = attention(query, key, value).transpose(1, 2)
    return functional.embedding(tree.cell, mixed.reshape(tree.node.numel(), plain.heads * plain.head_size))


def _laid_out(values: Tensor, node: Tensor) -> Tensor:
    """Heads of each node as `[rows, heads, columns, size]`. An embedding is a gather whose gradient adds up quickly."""
    return functional.embedding(node, values.flatten(1)).view(*node.shape, *values.shape[1:]).transpose(1, 2)


def _linears(values: Tensor, *parts: Linear) -> Tensor:
    """What each of these layers makes of the values, side by side."""
    if sum(part.weight.numel() for part in parts) > STACKED:
        return torch.cat([functional.linear(values, *part) for part in parts], -1)
    biases = [part.bias for part in parts if part.bias is not None]
    return functional.linear(values, torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


def _add_linear(values: Tensor, more: Tensor, layer: Linear) -> Tensor:
    """values + layer(more), in one operation."""
    if layer.bias is not None:
        return values + functional.linear(more, layer.weight, layer.bias)
    return torch.addmm(values, more, layer.weight.t())
