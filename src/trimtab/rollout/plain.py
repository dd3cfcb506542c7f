"""The only place that reads a Hugging Face model as plain matrices: which models are known, and what they consist of.

Sampling and training run known models without their modules, because at the sizes of one decode step most of the time
is theirs. Every other model runs as transformers has it; `read_plain` says why. It computes nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KNOWN = {"Qwen3ForCausalLM": "Qwen3", "Qwen2ForCausalLM": "Qwen2", "LlamaForCausalLM": "Llama"}
"""Models with one kind of layer: attention with rotary positions, then a gated feed-forward, each after an RMS norm."""
FIXED_ROPES = ("default", "linear", "llama3")
"""Rotary positions whose frequencies do not depend on the length of a sequence."""
EXACT = (torch.float32, torch.float64)
"""Number formats in which the order of operations changes only the last bits."""


class Linear(NamedTuple):
    """y = weight @ x + bias."""

    weight: Tensor
    bias: Tensor | None


class Layer(NamedTuple):
    """The parameters of one layer, by their use."""

    attention_norm: Tensor
    query: Linear
    key: Linear
    value: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    feed_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Plain:
    """A causal language model as matrices: the model's own tensors, so a change of its parameters shows here."""

    kind: str
    embedding: Tensor
    padding: int | None
    """The id whose embedding gets no gradient, if there is one."""
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    heads: int
    key_heads: int
    head_size: int
    eps: float
    frequency: Tensor
    """Of the rotary positions, float32, half as many as `head_size`."""
    rope_scale: float

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def read_plain(model: "PreTrainedModel") -> Plain | str:
    """The model as matrices, or why it has to run as it is."""
    kind = KNOWN.get(type(model).__name__)
    if kind is None or not type(model).__module__.startswith("transformers.models."):
        return f"{type(model).__name__} is not one of {', '.join(KNOWN)}"
    config: Any = model.config
    backbone: Any = model.model
    strange = _strange(model, config) or _strange_modules(model, kind)
    if strange:
        return strange
    rotary = backbone.rotary_emb
    return Plain(
        kind=kind,
        embedding=backbone.embed_tokens.weight,
        padding=backbone.embed_tokens.padding_idx,
        layers=tuple(_layer(layer) for layer in backbone.layers),
        norm=backbone.norm.weight,
        head=_linear(model.lm_head),
        heads=int(config.num_attention_heads),
        key_heads=int(config.num_key_value_heads),
        head_size=int(backbone.layers[0].self_attn.head_dim),
        eps=float(config.rms_norm_eps),
        frequency=rotary.inv_freq,
        rope_scale=float(rotary.attention_scaling),
    )


def _strange(model: "PreTrainedModel", config: Any) -> str:
    """What the settings of a model ask for that plain matrices would not do; empty if nothing."""
    rope = model.model.rotary_emb.rope_type
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    formats = {parameter.dtype for parameter in model.parameters()}
    places = {parameter.device for parameter in model.parameters()}
    reasons = {
        f"its rotary positions are {rope!r}": rope not in FIXED_ROPES,
        f"its activation is {config.hidden_act!r}": config.hidden_act != "silu",
        f"it has layers of kind {sorted(kinds)}": bool(kinds),
        "it has a sliding window": bool(getattr(config, "use_sliding_window", False)),
        "it has no layers": not len(model.model.layers),
        "it turns a part of each head only": (getattr(config, "partial_rotary_factor", None) or 1.0) != 1.0,
        "its activations are checkpointed": model.is_gradient_checkpointing,
        "its dropout is on": model.training and bool(config.attention_dropout),
        "its parameters have several number formats or places": len(formats) > 1 or len(places) > 1,
        "its parameters are in half precision": not formats <= set(EXACT),
        "its parameters are not on the CPU, and nobody has tried it elsewhere": {p.type for p in places} != {"cpu"},
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _strange_modules(model: "PreTrainedModel", kind: str) -> str:
    """A module that is not what the architecture says: quantised, wrapped, sharded, watched or replaced."""
    own = type(model).__module__
    for name, module in model.named_modules():
        exact = type(module).__module__ == own or type(module) in (nn.Linear, nn.Embedding, nn.ModuleList)
        if (
            not exact
            and not type(module).__module__.startswith("transformers.activations")
            and type(module) is not nn.SiLU
        ):
            return f"{name or kind} is a {type(module).__name__}"
        watched = cast(Any, module)
        if watched._forward_hooks or watched._forward_pre_hooks or watched._backward_hooks or "forward" in vars(module):
            return f"{name or kind} has a hook or a forward pass of its own"
    return ""


def _linear(module: nn.Linear) -> Linear:
    return Linear(module.weight, module.bias)


def _layer(layer: Any) -> Layer:
    attention, feed = layer.self_attn, layer.mlp
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    query_norm, key_norm = (None if norm is None else norm.weight for norm in norms)
    return Layer(
        attention_norm=layer.input_layernorm.weight,
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        query_norm=query_norm,
        key_norm=key_norm,
        output=_linear(attention.o_proj),
        feed_norm=layer.post_attention_layernorm.weight,
        gate=_linear(feed.gate_proj),
        up=_linear(feed.up_proj),
        down=_linear(feed.down_proj),
    )
