"""Log-probs and entropies from logits, or from hidden states and the output head: exact, and a few rows at a time.

One exponential per logit and direction, accumulated in float32 (float64 where the input is); the backward pass computes
probabilities again instead of keeping them. From hidden states, the logits of the whole batch never exist.
"""

from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError

CHUNK = 2**19
"""Logits that are worked on at once: two megabytes of float32, which stay in the processor's cache."""
FAR_CHUNK = 2**24
"""The same off the processor, where every operation on a chunk is a launch: 64 megabytes of float32."""
HIDDEN_CHUNK = 2**22
"""Logits that are made from hidden states at once: the head is read once per chunk, so chunks are larger."""


def logp(logits: Tensor, ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-prob of `ids` under softmax(logits / temperature).

    logits [..., vocabulary], ids [...]; the result has the shape of ids, in float32 at least.

    >>> logp(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([-0.6931])
    """
    return logp_and_entropy(logits, ids, temperature=temperature)[0]


def logp_and_entropy(logits: Tensor, ids: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-prob of `ids`, and the entropy of each distribution in nats; both carry a gradient."""
    _check(logits, ids, temperature)
    rows = logits.reshape(-1, logits.shape[-1])
    found = cast("tuple[Tensor, Tensor]", _FromLogits.apply(rows, ids.reshape(-1), float(temperature)))
    return found[0].reshape(ids.shape), found[1].reshape(ids.shape)


def logp_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for logits = hidden @ weight.T + bias, of which at most `chunk` are held at once (4 million).

    hidden [..., width], weight [vocabulary, width], ids [...]. Products are taken in float32 at least.
    """
    if weight.ndim != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise SignalError(
            f"logp_from_hidden: hidden has shape {list(hidden.shape)} and weight {list(weight.shape)}, so there are no "
            "logits. Give weight as [vocabulary, width] and hidden as [..., width]."
        )
    _check(hidden, ids, temperature, vocabulary=weight.shape[0])
    rows = hidden.reshape(-1, hidden.shape[-1])
    found = cast(
        "tuple[Tensor, Tensor]",
        _FromHidden.apply(rows, weight, bias, ids.reshape(-1), float(temperature), chunk or HIDDEN_CHUNK),
    )
    return found[0].reshape(ids.shape), found[1].reshape(ids.shape)


def _check(values: Tensor, ids: Tensor, temperature: float, *, vocabulary: int | None = None) -> None:
    if not values.dtype.is_floating_point or ids.dtype.is_floating_point or values.shape[:-1] != ids.shape:
        raise SignalError(
            f"logp: logits or hidden states are {list(values.shape)} of {values.dtype} and ids {list(ids.shape)} of "
            f"{ids.dtype}, so tokens and distributions do not match. Give floats [..., vocabulary] and integers [...]."
        )
    if not 0 < temperature < float("inf"):
        raise SignalError(f"logp: temperature is {temperature}. It divides the logits: a number above 0.")
    if (values.shape[-1] if vocabulary is None else vocabulary) == 0:
        raise SignalError("logp: the vocabulary is empty, so there is no distribution. Give logits of every token.")


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _like(values: Tensor) -> Tensor:
    """Nothing, on the same device and in the precision in which these values are computed with."""
    return _wide(values[:0])


def _forward(logits: Tensor, ids: Tensor, temperature: float, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a few rows: log-prob, entropy, and the log of the normaliser. `room`: two scratch tables as wide."""
    largest = logits.amax(1, keepdim=True)
    shifted, power = room[0, : len(logits)], room[1, : len(logits)]
    _ = torch.sub(logits, largest, out=shifted)
    if temperature != 1:
        shifted /= temperature
    _ = torch.exp(shifted, out=power)
    total = power.sum(1)
    log_total = total.log()
    own = shifted.gather(1, ids[:, None])[:, 0] - log_total
    # A logit of -inf has no mass; 0 times -inf would be nan.
    inner = power.mul_(shifted.clamp_(min=torch.finfo(shifted.dtype).min)).sum(1)
    return own, log_total - inner / total, log_total + largest[:, 0] / temperature


def _backward(
    out: Tensor, logits: Tensor, ids: Tensor, saved: tuple[Tensor, Tensor], by: tuple[Tensor | None, Tensor | None],
    temperature: float, room: Tensor,
) -> None:  # fmt: skip
    """Of a few rows, the gradient with respect to the logits into `out`, which may be `logits` itself.

    d logp / d x_j = [j is the token] - p_j,   d entropy / d x_j = -p_j (log p_j + entropy),   x = logits / temperature
    """
    entropy, normaliser = saved
    by_logp, by_entropy = (None if one is None else one / temperature for one in by)
    logs = room[0, : len(logits)]
    if temperature != 1:
        _ = torch.div(logits, temperature, out=logs).sub_(normaliser[:, None])
    else:
        _ = torch.sub(logits, normaliser[:, None], out=logs)
    _ = torch.exp(logs, out=out)
    if by_entropy is None:
        out.mul_(-cast("Tensor", by_logp)[:, None])
    else:
        # p_j (-by_entropy (log p_j + entropy) - by_logp), as one factor and one summand per row.
        fixed = -by_entropy * entropy
        slope = logs.clamp_(min=torch.finfo(logs.dtype).min).mul_(-by_entropy[:, None])
        out.mul_(slope.add_((fixed if by_logp is None else fixed - by_logp)[:, None]))
    if by_logp is not None:
        out.scatter_add_(1, ids[:, None], by_logp[:, None])


def _room(like: Tensor, spans: list[tuple[int, int]], vocabulary: int) -> Tensor:
    """Scratch for the largest chunk: taking it once is faster than taking it anew for every chunk."""
    return like.new_empty((2, max((stop - start for start, stop in spans), default=0), vocabulary))


def _refuse_second() -> None:
    if torch.is_grad_enabled():
        raise SignalError(
            "logp: a second derivative was asked for (create_graph=True), and the gradient is made by hand, so it "
            "would be wrong. Use logits.log_softmax(-1) where you need one."
        )


def _at_once(like: Tensor) -> int:
    return CHUNK if like.device.type == "cpu" else FAR_CHUNK


def _spans(rows: int, vocabulary: int, chunk: int) -> list[tuple[int, int]]:
    step = max(1, chunk // vocabulary)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        spans, like = _spans(logits.shape[0], logits.shape[1], _at_once(logits)), _like(logits)
        kept, room = like.new_empty((3, len(ids))), _room(like, spans, logits.shape[1])
        for start, stop in spans:
            for place, values in enumerate(_forward(_wide(logits[start:stop]), ids[start:stop], temperature, room)):
                kept[place, start:stop] = values
        own, entropy, normaliser = kept.unbind(0)
        ctx.save_for_backward(logits, ids, entropy, normaliser)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return own.clone(), entropy.clone()

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> Any:
        _refuse_second()
        logits, ids, entropy, normaliser = ctx.saved_tensors
        if by[0] is None and by[1] is None:
            return None, None, None
        gradient, spans = torch.empty_like(logits), _spans(logits.shape[0], logits.shape[1], _at_once(logits))
        room = _room(_like(logits), spans, logits.shape[1])
        for start, stop in spans:
            rows = slice(start, stop)
            given = _wide(logits[rows])
            part = gradient[rows] if gradient.dtype == given.dtype else room[1, : stop - start]
            saved = entropy[rows], normaliser[rows]
            _backward(part, given, ids[rows], saved, _of(by, rows), ctx.temperature, room)
            if part.dtype != gradient.dtype:
                gradient[rows] = part
        return gradient, None, None


def _of(by: tuple[Tensor | None, ...], rows: slice) -> tuple[Tensor | None, Tensor | None]:
    return None if by[0] is None else by[0][rows], None if by[1] is None else by[1][rows]


def _tables(like: Tensor, spans: list[tuple[int, int]], vocabulary: int) -> tuple[Tensor, Tensor]:
    """Room for the logits of one chunk, and scratch for the rows of it that are worked on together."""
    most = max((stop - start for start, stop in spans), default=0)
    return like.new_empty((most, vocabulary)), _room(like, _spans(most, vocabulary, _at_once(like)), vocabulary)


def _product(states: Tensor, head: Tensor, offset: Tensor | None, table: Tensor) -> Tensor:
    """Logits of a few rows, written into the table: a chunk never waits for the one before it to be freed."""
    out = torch.mm(states, head.T, out=table[: len(states)])
    return out if offset is None else out.add_(offset)


class _FromHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        head, offset = _wide(weight), None if bias is None else _wide(bias)
        like, vocabulary = _like(hidden), weight.shape[0]
        kept, spans = like.new_empty((3, len(ids))), _spans(len(ids), vocabulary, chunk)
        table, room = _tables(like, spans, vocabulary)
        for start, stop in spans:
            logits = _product(_wide(hidden[start:stop]), head, offset, table)
            for first, last in _spans(stop - start, vocabulary, _at_once(like)):
                rows = slice(start + first, start + last)
                for place, values in enumerate(_forward(logits[first:last], ids[rows], temperature, room)):
                    kept[place, rows] = values
        own, entropy, normaliser = kept.unbind(0)
        ctx.save_for_backward(hidden, weight, bias, ids, entropy, normaliser)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        return own.clone(), entropy.clone()

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> Any:
        _refuse_second()
        hidden, weight, bias, ids, entropy, normaliser = ctx.saved_tensors
        if by[0] is None and by[1] is None:
            return None, None, None, None, None, None
        head, offset = _wide(weight), None if bias is None else _wide(bias)
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(offset) if offset is not None and ctx.needs_input_grad[2] else None
        spans = _spans(len(ids), weight.shape[0], ctx.chunk)
        table, room = _tables(head, spans, weight.shape[0])
        for start, stop in spans:
            states = _wide(hidden[start:stop])
            slope = _product(states, head, offset, table)  # logits, until they are replaced
            for first, last in _spans(stop - start, weight.shape[0], _at_once(head)):
                rows, part = slice(start + first, start + last), slope[first:last]
                saved = entropy[rows], normaliser[rows]
                _backward(part, part, ids[rows], saved, _of(by, rows), ctx.temperature, room)
            if to_hidden is not None:
                to_hidden[start:stop] = slope @ head
            if to_weight is not None:
                to_weight.addmm_(slope.T, states)
            if to_bias is not None:
                to_bias.add_(slope.sum(0))
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None or bias is None else to_bias.to(bias.dtype),
            None,
            None,
            None,
        )
