"""The only place that runs a known model for sampling without its modules: some columns in, the next logits out.

At the sizes of one decode step, the modules of transformers take three times as long as their matrices. Here a layer
is some twenty operations on matrices that lie joined in memory. The numbers are the model's own up to rounding. The
first load checks that, and a model for which it does not hold runs as it is.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.rollout.plain import Layer, Linear, Plain

if TYPE_CHECKING:
    from trimtab.rollout.cache import Columns, RowCache
    from trimtab.rollout.decode import Prompts


class Joined(NamedTuple):
    """The matrices of one layer that are multiplied with the same values, one below the other."""

    heads: Linear
    """Queries, keys and values."""
    feed: Linear
    """Gate and up."""


class Block(NamedTuple):
    """Rows whose columns are computed at once: those of the cache, or prompts that enter it."""

    rows: int
    columns: int
    bias: Tensor | None
    into: Tensor | None
    """The rows of the cache that prompts go into."""
    bands: tuple[tuple[int, int], ...] = ((0, 0),)
    """The first row of each band of rows, and the first column that it sees."""

    @property
    def size(self) -> int:
        return self.rows * self.columns


class Lean:
    """A model as matrices. They are the model's own memory, so parameters that are loaded into it are loaded here."""

    def __init__(self, plain: Plain) -> None:
        self._plain: Plain = plain
        self._joined: list[Joined] = [
            Joined(_join(layer.query, layer.key, layer.value), _join(layer.gate, layer.up)) for layer in plain.layers
        ]

    def __call__(
        self, ids: Tensor, hidden: Tensor, position: Tensor, cache: "RowCache", entering: "Sequence[Prompts]" = ()
    ) -> Tensor:
        """Logits of each row's next token, float32 `[rows, vocabulary]`; the cache then holds these ids too.

        A row does not see its first `hidden` columns. Prompts that enter go through the same matrices beside the rows.
        """
        plain = self._plain
        blocks = _blocks(ids, hidden, cache, entering, plain.dtype)
        flat = [ids.reshape(-1), *(prompts.ids.reshape(-1) for prompts in entering)]
        place = [position.reshape(-1), *(prompts.position.reshape(-1) for prompts in entering)]
        angle = (torch.cat(place) if entering else place[0])[:, None].float() * plain.frequency.float()
        cos, sin = ((one * plain.rope_scale).to(plain.dtype)[:, None] for one in (angle.cos(), angle.sin()))
        turn = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        values = functional.embedding(torch.cat(flat) if entering else flat[0], plain.embedding)
        for number, (layer, joined) in enumerate(zip(plain.layers, self._joined, strict=True)):
            normed = _normed(values, layer.attention_norm, plain.eps)
            found = functional.linear(normed, *joined.heads).view(len(values), -1, plain.head_size)
            mixed = self._attend(layer, found, turn, blocks, cache.layer(number))
            values = _add(values, mixed, layer.output)
            normed = _normed(values, layer.feed_norm, plain.eps)
            gate, up = functional.linear(normed, *joined.feed).chunk(2, -1)
            values = _add(values, functional.silu(gate).mul_(up), layer.down)
        lasts = [
            part.view(block.rows, block.columns, -1)[:, -1]
            for block, part in zip(blocks, values.split([block.size for block in blocks]), strict=True)
        ]
        last = torch.cat(lasts) if len(lasts) > 1 else lasts[0]
        return functional.linear(_normed(last, plain.norm, plain.eps), *plain.head).float()

    def _attend(
        self, layer: Layer, found: Tensor, turn: tuple[Tensor, Tensor], blocks: "list[Block]", store: "Columns"
    ) -> Tensor:
        """Norm and turn queries and keys, put keys and values into the cache, and mix its values."""
        plain = self._plain
        both = found[:, : plain.heads + plain.key_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = layer.query_norm.expand(plain.heads, -1), layer.key_norm.expand(plain.key_heads, -1)
            both = _normed(both, None, plain.eps).mul_(torch.cat(norms))
        both = _turned(both, *turn)
        begin, mixed = 0, list[Tensor]()
        for block in blocks:
            shape, end = (block.rows, block.columns, -1, plain.head_size), begin + block.size
            query, key = both[begin:end].view(shape).split([plain.heads, plain.key_heads], 2)
            value = found[begin:end, plain.heads + plain.key_heads :].view(shape)
            mixed.append(_mix(query, key.transpose(1, 2), value.transpose(1, 2), block, store))
            begin = end
        return torch.cat(mixed) if len(mixed) > 1 else mixed[0]


def _blocks(
    ids: Tensor, hidden: Tensor, cache: "RowCache", entering: "Sequence[Prompts]", dtype: torch.dtype
) -> "list[Block]":
    """The rows of the cache first, if there are any, then each rectangle of prompts."""
    rows, columns = ids.shape
    width = cache.get_seq_length() + columns
    bands = tuple((begin, first - cache.start) for begin, first in cache.bands)
    own = [Block(rows, columns, _bias(hidden, columns, width, dtype), None, bands)] if rows else []
    for prompts in entering:
        rows, columns = prompts.ids.shape
        own.append(Block(rows, columns, _bias(prompts.hidden, columns, columns, dtype), prompts.rows))
    return own


def _mix(query: Tensor, key: Tensor, value: Tensor, block: Block, store: "Columns") -> Tensor:
    """Put keys and values into the cache, and mix all values that these queries see."""
    if block.into is None:
        key, value = store.update(key, value)
    else:
        store.put(block.into, key, value)
    if block.columns == 1:
        return _mix_bands(query, key, value, block)
    mixed = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key, value, attn_mask=block.bias, is_causal=block.bias is None, enable_gqa=True
    )
    return mixed.transpose(1, 2).reshape(block.size, -1)


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


def _normed(values: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """weight * values / sqrt(mean(values²) + eps), in float32 whatever the format, as the models do it."""
    if values.dtype == torch.float32:
        return functional.rms_norm(values, values.shape[-1:], weight, eps)
    wide = values.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(eps))).to(values.dtype)
    return normed if weight is None else normed.mul_(weight)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of a head by its angle. The first half of the sines has its sign turned."""
    return (heads * cos).addcmul_(heads.roll(heads.shape[-1] // 2, -1), sin)


def _mix_bands(query: Tensor, keys: Tensor, values: Tensor, block: Block) -> Tensor:
    """Attention of one column, band by band: each looks only at columns that one of its rows sees."""
    ends = [begin for begin, _ in block.bands[1:]] + [block.rows]
    mixed: list[Tensor] = []
    for (begin, first), end in zip(block.bands, ends, strict=True):
        own = slice(begin, end)
        bias = None if block.bias is None else block.bias[own, ..., first:]
        mixed.append(_mix_one(query[own], keys[own, :, first:], values[own, :, first:], bias))
    return torch.cat(mixed) if len(mixed) > 1 else mixed[0]


def _mix_one(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Attention of one column of queries `[rows, 1, heads, size]`. The queries that share a key are one matrix."""
    rows, key_heads, width, size = keys.shape
    flat = query.reshape(rows * key_heads, -1, size) * size**-0.5
    scores = torch.bmm(flat, keys.reshape(rows * key_heads, width, size).transpose(1, 2))
    if bias is not None:
        _ = scores.view(rows, -1, width).add_(bias[:, 0])
    share = torch.softmax(scores, -1)
    return torch.bmm(share, values.reshape(rows * key_heads, width, size)).view(rows, -1)


def _add(values: Tensor, more: Tensor, layer: Linear) -> Tensor:
    """values + layer(more)."""
    out = torch.addmm(values, more, layer.weight.t())
    return out if layer.bias is None else out.add_(layer.bias)
