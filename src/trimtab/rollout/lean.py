"""The only place that runs a known model for sampling without its modules: some columns in, the next logits out.

At the sizes of one decode step, the modules of transformers take three times as long as their matrices. Here a layer
is some twenty operations on matrices that lie joined in memory. The numbers are the model's own up to rounding. The
first load checks that, and a model for which it does not hold runs as it is.
"""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.rollout.plain import Layer, Linear, Plain

if TYPE_CHECKING:
    from trimtab.rollout.cache import RowCache


class Joined(NamedTuple):
    """The matrices of one layer that are multiplied with the same values, one below the other."""

    heads: Linear
    """Queries, keys and values."""
    feed: Linear
    """Gate and up."""


class Lean:
    """A model as matrices. They are the model's own memory, so parameters that are loaded into it are loaded here."""

    def __init__(self, plain: Plain) -> None:
        self._plain: Plain = plain
        self._joined: list[Joined] = [
            Joined(_join(layer.query, layer.key, layer.value), _join(layer.gate, layer.up)) for layer in plain.layers
        ]

    def forward(self, ids: Tensor, hidden: Tensor, position: Tensor, cache: "RowCache") -> Tensor:
        """Logits of each row's next token, float32 `[rows, vocabulary]`; the cache then holds these ids too.

        A row does not see its first `hidden` columns.
        """
        plain, (rows, columns) = self._plain, ids.shape
        angle = position.reshape(-1, 1).float() * plain.frequency.float()
        turn = [(one * plain.rope_scale).to(plain.dtype)[:, None] for one in (angle.cos(), angle.sin())]
        bias = _bias(hidden, columns, cache.get_seq_length() + columns, plain.dtype)
        values = functional.embedding(ids.reshape(-1), plain.embedding)
        for number, (layer, joined) in enumerate(zip(plain.layers, self._joined, strict=True)):
            normed = _normed(values, plain.eps).mul_(layer.attention_norm)
            found = functional.linear(normed, *joined.heads).view(rows, columns, -1, plain.head_size)
            mixed = self._attend(layer, found, turn, bias, (cache, number))
            values = _add(values, mixed, layer.output)
            normed = _normed(values, plain.eps).mul_(layer.feed_norm)
            gate, up = functional.linear(normed, *joined.feed).chunk(2, -1)
            values = _add(values, functional.silu(gate).mul_(up), layer.down)
        last = values.view(rows, columns, -1)[:, -1]
        return functional.linear(_normed(last, plain.eps).mul_(plain.norm), *plain.head).float()

    def _attend(
        self, layer: Layer, found: Tensor, turn: list[Tensor], bias: Tensor | None, where: "tuple[RowCache, int]"
    ) -> Tensor:
        """Norm and turn queries and keys, put keys and values into the cache, and mix its values."""
        plain, (cache, number) = self._plain, where
        rows, columns = found.shape[:2]
        both = found[:, :, : plain.heads + plain.key_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            both = _normed(both, plain.eps)
            both[:, :, : plain.heads] *= layer.query_norm
            both[:, :, plain.heads :] *= layer.key_norm
        both = _turned(both.reshape(rows * columns, -1, plain.head_size), turn).view(both.shape)
        query, key = both.split([plain.heads, plain.key_heads], 2)
        value = found[:, :, plain.heads + plain.key_heads :]
        keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), number)
        if columns == 1:
            return _mix_one(query, keys, values, bias)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=bias, is_causal=bias is None, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(rows * columns, -1)


def _join(*parts: Linear) -> Linear:
    """Lay parameters one below the other in memory, where they stay; nothing else changes about them."""
    found = [[cast("Tensor | None", one) for one in column] for column in zip(*parts, strict=True)]
    return Linear(cast(Tensor, _laid_together(found[0])), _laid_together(found[1]))


def _laid_together(parts: "list[Tensor | None]") -> Tensor | None:
    real = [part for part in parts if part is not None]
    if not real:
        return None
    whole = torch.cat([part.detach() for part in real])
    for part, held in zip(real, whole.split([len(one) for one in real]), strict=True):
        part.data = held
    return whole


def _bias(hidden: Tensor, columns: int, width: int, dtype: torch.dtype) -> Tensor | None:
    """0 where a row may look, else -inf, `[rows, 1, columns, width]`; None if only what is to come is hidden."""
    if not bool(hidden.any()):
        return None
    place = torch.arange(width, device=hidden.device)
    here = place[width - columns :, None]
    sees = (place >= hidden[:, None, None]) & (place <= here)
    return torch.zeros(sees.shape, dtype=dtype, device=hidden.device).masked_fill_(~sees, -torch.inf)[:, None]


def _normed(values: Tensor, eps: float) -> Tensor:
    """values / sqrt(mean(values²) + eps), in float32 whatever the format, as the models do it."""
    wide = values.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(eps))).to(values.dtype)


def _turned(heads: Tensor, turn: list[Tensor]) -> Tensor:
    """Turn each pair (i, i + half) of a head by its angle."""
    cos, sin = turn
    half = heads.shape[-1] // 2
    first, second, out = heads[..., :half], heads[..., half:], torch.empty_like(heads)
    torch.sub(first * cos, second * sin, out=out[..., :half])
    torch.add(second * cos, first * sin, out=out[..., half:])
    return out


def _mix_one(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Attention of one column of queries `[rows, 1, heads, size]`. The queries that share a key are one matrix."""
    rows, key_heads, width, size = keys.shape
    flat = query.reshape(rows * key_heads, -1, size) * size**-0.5
    scores = torch.bmm(flat, keys.reshape(rows * key_heads, width, size).transpose(1, 2))
    if bias is not None:
        scores = (scores.view(rows, -1, width) + bias[:, 0]).view(scores.shape)
    share = torch.softmax(scores, -1)
    return torch.bmm(share, values.reshape(rows * key_heads, width, size)).view(rows, -1)


def _add(values: Tensor, more: Tensor, layer: Linear) -> Tensor:
    """values + layer(more)."""
    out = torch.addmm(values, more, layer.weight.t())
    return out if layer.bias is None else out.add_(layer.bias)
