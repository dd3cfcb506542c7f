"""Models that run without their modules, in every kind of setting that they have, and models that must not."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def qwen3(**changes: Any) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "num_key_value_heads": 4, "head_dim": 8, **changes}))


def qwen2(**changes: Any) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "num_key_value_heads": 2, **changes}))


def llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_key_value_heads": 4, **changes}))


KNOWN: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": qwen3,
    "qwen3, grouped, tied, heads wider than hidden": lambda: qwen3(
        num_key_value_heads=2, tie_word_embeddings=True, head_dim=12
    ),
    "qwen3, biases, padding id": lambda: qwen3(attention_bias=True, pad_token_id=3),
    "qwen2, biases, one key head": lambda: qwen2(num_key_value_heads=1),
    "llama, all biases, tied": lambda: llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, other angles": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 37.0}),
    "llama, linear angles": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}),
    "llama 3 angles": lambda: llama(rope_parameters=LLAMA3),
}


def hooked() -> PreTrainedModel:
    model = qwen3()
    _ = model.model.layers[1].mlp.register_forward_hook(lambda module, given, out: 2 * out)
    return model


def with_module(module: torch.nn.Module) -> PreTrainedModel:
    """With a projection that is something else: quantised, adapted, wrapped."""
    model = qwen3()
    model.model.layers[0].self_attn.o_proj = module
    return model


class Rounded(torch.nn.Linear):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(given, self.weight.round())


def checkpointed() -> PreTrainedModel:
    model = qwen3()
    model.gradient_checkpointing_enable()
    return model


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
UNKNOWN: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "another architecture": (
        lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2)), "MistralForCausalLM is not one of"
    ),
    "experts": (
        lambda: Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**SIZES, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2)
        ),
        "Qwen3MoeForCausalLM is not one of",
    ),
    "a window": (
        lambda: qwen3(sliding_window=4, use_sliding_window=True, max_window_layers=1), "layers of kind"
    ),
    "yarn": (lambda: llama(rope_parameters=YARN), "rotary positions are 'yarn'"),
    "dynamic angles": (lambda: llama(rope_parameters=DYNAMIC), "rotary positions are 'dynamic'"),
    "another activation": (lambda: qwen3(hidden_act="gelu"), "activation is 'gelu'"),
    "another linear layer": (lambda: with_module(Rounded(32, 32, bias=False)), "o_proj is a Rounded"),
    "a wrapped layer": (lambda: with_module(torch.nn.Sequential(torch.nn.Linear(32, 32))), "o_proj is a Sequential"),
    "a hook": (hooked, "has a hook"),
    "checkpointed activations": (checkpointed, "checkpointed"),
    "half precision": (lambda: qwen3().bfloat16(), "half precision"),
    "a subclass": (
        lambda: type("Qwen3ForCausalLM", (Qwen3ForCausalLM,), {"__module__": "mine"})(Qwen3Config(**SIZES)),
        "is not one of",
    ),
}  # fmt: skip


def built(make: Callable[[], PreTrainedModel], seed: int = 0) -> PreTrainedModel:
    """With parameters that are no accident of the initial ones: norms and biases are not all the same."""
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 2 else 0.5) + (parameter.ndim == 1))
    return model
