"""The only place with gradients written by hand for the pieces of a transformer layer: norm, heads, attention, gate.

Autograd gives the same numbers with two to three times as many passes over memory. Each piece is a function of tensors
alone; the order of operations in the forward pass is that of the models, so that float32 values come out bit for bit.
"""
# pyright: reportIncompatibleMethodOverride=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

NORM_FORMAT = torch.float32
"""The models normalise in float32 whatever their own format. Tests set float64, to compare gradients exactly."""
LONGEST_TABLE = 160
"""Columns up to which attention keeps its table of probabilities. Beyond, torch's own kernel computes it in tiles: the
table would be larger than the keys and values by the ratio of columns to head size."""


def rms_norm(values: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * values / sqrt(mean(values²) + eps), over the last dimension."""
    return cast(Tensor, _RmsNorm.apply(values, weight, eps))


def heads(
    joined: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    turn: tuple[Tensor, Tensor],
    counts: tuple[int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from their joined projections `[tokens, heads, size]`: normed, then turned by position.

    `counts`: how many of the heads are queries, and how many are keys. `turn`: cosine and sine, `[tokens, 1, size/2]`.
    """
    query_norm, key_norm = norms or (None, None)
    return cast("tuple[Tensor, Tensor, Tensor]", _Heads.apply(joined, query_norm, key_norm, *turn, *counts, eps))


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over `[rows, heads, columns, size]`."""
    if query.shape[2] > LONGEST_TABLE:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return cast(Tensor, _Attention.apply(query, key, value))


def gated(joined: Tensor) -> Tensor:
    """silu(gate) * up, of the two halves of `joined`."""
    return cast(Tensor, _Gated.apply(joined))


def _normed(values: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """values / rms in the format of norms, and 1 / rms."""
    wide = values.to(NORM_FORMAT)
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(eps))
    return wide * scale, scale


def _norm_backward(grad: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """x = n / s, n = x s:  dx = s (dn - n mean(dn n))."""
    along = torch.linalg.vecdot(grad, normed).div_(normed.shape[-1]).unsqueeze_(-1)
    return torch.addcmul(grad, normed, along, value=-1).mul_(scale)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normed(values, eps)
        ctx.save_for_backward(normed, scale, weight)
        return weight * normed.to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        normed, scale, weight = ctx.saved_tensors
        wide = grad.to(normed.dtype)
        to_weight = (wide * normed).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return _norm_backward(wide * weight.to(wide.dtype), normed, scale).to(grad.dtype), to_weight, None


class _Heads(Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, query_norm, key_norm, cos, sin, queries: int, keys: int, eps: float) -> Any:
        turning, value = joined[:, : queries + keys], joined[:, queries + keys :]
        ctx.counts = queries, keys
        if query_norm is None:
            ctx.save_for_backward(cos, sin)
        else:
            weight = torch.cat([query_norm.expand(queries, -1), key_norm.expand(keys, -1)])
            normed, scale = _normed(turning, eps)
            ctx.save_for_backward(cos, sin, normed, scale, weight)
            turning = weight * normed.to(joined.dtype)
        query, key = torch.empty_like(turning[:, :queries]), torch.empty_like(turning[:, queries:])
        _turn(turning[:, :queries], cos, sin, query)
        _turn(turning[:, queries:], cos, sin, key)
        return query, key, value.contiguous()

    @staticmethod
    def backward(ctx: Any, to_query: Tensor, to_key: Tensor, to_value: Tensor) -> Any:
        (queries, keys), (cos, sin, *norm) = ctx.counts, ctx.saved_tensors
        both = queries + keys
        grad = to_query.new_empty(len(to_query), both + to_value.shape[1], to_query.shape[2])
        grad[:, both:] = to_value
        _turn(to_query, cos, -sin, grad[:, :queries])
        _turn(to_key, cos, -sin, grad[:, queries:both])
        to_query_norm = to_key_norm = None
        if norm:
            normed, scale, weight = norm
            wide = grad[:, :both].to(normed.dtype)
            to_weight = (wide * normed).sum(0).to(weight.dtype)
            to_query_norm, to_key_norm = to_weight[:queries].sum(0), to_weight[queries:].sum(0)
            grad[:, :both] = _norm_backward(wide * weight.to(wide.dtype), normed, scale)
        return grad, to_query_norm, to_key_norm, None, None, None, None, None


def _turn(given: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Turn each pair (i, i + half) of a head by its angle, into `out`."""
    half = given.shape[-1] // 2
    first, second = given[..., :half], given[..., half:]
    torch.sub(first * cos, second * sin, out=out[..., :half])
    torch.add(second * cos, first * sin, out=out[..., half:])


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, heads, columns, size = query.shape
        flat = [one.reshape(rows * heads, columns, size) for one in (query * size**-0.5, key, value)]
        hidden = torch.full((columns, columns), -torch.inf, dtype=query.dtype).triu_(1)
        share = torch.softmax(torch.bmm(flat[0], flat[1].transpose(1, 2)).add_(hidden), -1)
        ctx.save_for_backward(*flat, share)
        ctx.shape = query.shape
        return torch.bmm(share, flat[2]).view(query.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, share = ctx.saved_tensors  # the query with its scale: the table is passed over less often
        flat = grad.reshape(query.shape)
        to_value = torch.bmm(share.transpose(1, 2), flat)
        to_share = torch.bmm(flat, value.transpose(1, 2))
        to_scores = torch.ops.aten._softmax_backward_data(to_share, share, -1, share.dtype)
        to_query = torch.bmm(to_scores, key).mul_(query.shape[-1] ** -0.5)
        to_key = torch.bmm(to_scores.transpose(1, 2), query)
        return to_query.view(ctx.shape), to_key.view(ctx.shape), to_value.view(ctx.shape)


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        gate, up = joined.chunk(2, -1)
        opened = functional.silu(gate)
        ctx.save_for_backward(joined, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        joined, opened = ctx.saved_tensors
        gate, up = joined.chunk(2, -1)
        out = torch.empty_like(joined)
        to_gate, to_up = out.chunk(2, -1)
        torch.mul(grad, opened, out=to_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=to_gate)
        return out
