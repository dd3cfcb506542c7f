"""The only place that knows adapters: low-rank matrices beside a frozen model, trained instead of it (LoRA).

The model keeps its class and its names; peft puts the matrices beside its linear layers. Nothing is ever merged in
place: merging and unmerging moves the model without its adapter by rounding, and then the reference is another policy.
Import of peft is left to the functions: it is an extra.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError, MissingExtra
from trimtab.rollout.adapter import Adapter
from trimtab.rollout.seed import stream_seed
from trimtab.train.world import local, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trimtab.config.train import LoraSettings

NAME = "default"
"""peft's name of the only adapter."""


def add_adapter(model: "PreTrainedModel", settings: "LoraSettings", seed: int) -> None:
    """Put an adapter beside the chosen linear layers and freeze everything else. It starts as no change at all."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtra('model.lora: needs peft: pip install "trimtab[lora]"') from error
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha if settings.alpha is not None else 2 * settings.rank,
        target_modules=_targets(model, settings),
        lora_dropout=0.0,  # log-probs must not be random
        task_type="CAUSAL_LM",
    )
    _ = model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "adapter"))
        _ = inject_adapter_in_model(config, model, adapter_name=NAME)
    for name, parameter in model.named_parameters():
        if _is_adapter(name):
            parameter.data = parameter.data.float()
            _ = parameter.requires_grad_()
    _ = model.eval() if not model.is_gradient_checkpointing else model.train()
    if model.is_gradient_checkpointing:
        model.enable_input_require_grads()  # the embeddings are frozen, and a checkpoint needs an input with a gradient


def _targets(model: "PreTrainedModel", settings: "LoraSettings") -> list[str]:
    """Names of the linear layers that get an adapter; the output head is not one of them unless it is named."""
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    head = {name for name, module in model.named_modules() if module is model.get_output_embeddings()}
    last = {name.rpartition(".")[2] for name in linear}
    if settings.targets == "all":
        return sorted(linear - head)
    unknown = sorted(set(settings.targets) - last)
    if unknown:
        raise ConfigError(
            f"model.lora.targets: {unknown[0]!r} is not a linear layer of this {type(model).__name__}, so nothing "
            f"would be trained there. It has {', '.join(sorted(last))}."
        )
    chosen = sorted(name for name in linear if name.rpartition(".")[2] in settings.targets)
    if head & set(chosen) and model.config.tie_word_embeddings:
        raise ConfigError(
            f"model.lora.targets: {min(head)!r} is tied to the embeddings of this {type(model).__name__}, so a merged "
            "copy of it would change them too. Leave it out."
        )
    return chosen


def adapter_size(model: "PreTrainedModel", settings: "LoraSettings") -> int:
    """How many parameters an adapter would have."""
    shapes = [model.get_parameter(f"{name}.weight").shape for name in _targets(model, settings)]
    return sum(settings.rank * (rows + columns) for rows, columns in shapes)


def has_adapter(model: nn.Module) -> bool:
    return any(True for _ in _adapted(model))


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer with an adapter, by the name that the layer had before."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            yield name, module


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


@contextmanager
def adapter_off(model: nn.Module) -> Generator[None]:
    """The model without its adapter: the policy that training began with, to the last bit."""
    layers = [module for _, module in _adapted(model)]
    for layer in layers:
        layer._disable_adapters = True  # as peft does; its own method also changes what requires a gradient
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@torch.no_grad()
def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters as if the adapter were part of them, under the names that they had before: a copy.

    weight + scaling * B A, computed in float32. One that is tied under several names appears once. Every rank of a
    sharded model must ask.
    """
    layers = dict(_adapted(model))
    state: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        place = (local(tensor).data_ptr(), tensor.shape)
        if _is_adapter(name) or place in seen:
            continue
        seen.add(place)
        home, _, last = name.rpartition(".")
        layer = layers.get(home.removesuffix(".base_layer")) if home.endswith(".base_layer") else None
        held = whole(tensor)
        if layer is not None and last == "weight":
            delta = whole(layer.lora_B[NAME].weight).float() @ whole(layer.lora_A[NAME].weight).float()
            delta = delta * layer.scaling[NAME]
            held = (held.float() + (delta.T if getattr(layer, "fan_in_fan_out", False) else delta)).to(held.dtype)
        state[name.replace(".base_layer.", ".")] = held
    return state


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """The adapter alone, whole, under the names that a peft folder has."""
    return {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": whole(tensor.detach())
        for name, tensor in model.state_dict().items()
        if _is_adapter(name)
    }


def adapter_of(model: nn.Module) -> Adapter | None:
    """The adapter alone, with what a peft folder says about it; None if the model has none. Every rank must ask."""
    layers = dict(_adapted(model))
    if not layers:
        return None
    first = next(iter(layers.values()))
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": int(first.r[NAME]),
        "lora_alpha": first.lora_alpha[NAME],
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(layers),
        "base_model_name_or_path": None,
        "inference_mode": True,
    }
    return Adapter(adapter_state(model), config)
