"""The only place that rounds a sampler's weights: fp32, bf16, int8, int4 or int3, a pure function of the weights.

Only the matrices of linear layers are rounded. Embeddings, norms, biases and the output head stay as they are: the
head is often tied to the embeddings, and its errors go straight into the log-probs. The rounded values are stored as
float32 and multiplied as such (docs/decisions/013-sampler-formats.md says why), so a format changes what the sampler
computes, not the memory it takes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Format = Literal["fp32", "bf16", "int8", "int4", "int3"]
GROUP_SIZE = 32
"""Inputs that share a scale in int4 and int3: as in the blocks of GGML, and the smallest group of torchao."""


def check_format(name: str) -> Format:
    """The name as a format; any other name is refused."""
    if name not in get_args(Format):
        raise ConfigError(unknown_name("format", name, list(get_args(Format))))
    return cast(Format, name)


def rounded(weight: Tensor, format: Format) -> Tensor:
    """The values that are left of a matrix `[outputs, inputs]` in this format, as float32.

    int8: one scale for each output, symmetric. int4 and int3: a scale and a zero point for each 32 inputs.
    """
    weight = weight.float()
    if format == "bf16":
        return weight.bfloat16().float()
    if format == "int8":
        return _symmetric(weight)
    if format in ("int4", "int3"):
        return _affine(weight, levels=16 if format == "int4" else 8)
    return weight


def _symmetric(weight: Tensor) -> Tensor:
    """w' = s * round(w / s),  s = max |w| / 127 over a row."""
    scale = _nonzero(weight.abs().amax(-1, keepdim=True) / 127)
    return (weight / scale).round() * scale


def _affine(weight: Tensor, *, levels: int) -> Tensor:
    """w' = s * (q - z),  q = round(w / s) + z in 0..levels-1,  s = (high - low) / (levels - 1),  z = round(-low / s).

    low and high are the extremes of a group and zero, so that a zero stays exactly zero.
    """
    rows, inputs = weight.shape
    padded = nn.functional.pad(weight, (0, -inputs % GROUP_SIZE)).reshape(rows, -1, GROUP_SIZE)
    low, high = padded.amin(-1, keepdim=True).clamp_max(0), padded.amax(-1, keepdim=True).clamp_min(0)
    scale = _nonzero((high - low) / (levels - 1))
    zero = (-low / scale).round()
    codes = ((padded / scale).round() + zero).clamp(0, levels - 1)
    return ((codes - zero) * scale).reshape(rows, -1)[:, :inputs]


def _nonzero(scale: Tensor) -> Tensor:
    """A group of zeros has no scale; with 1 its zeros stay zeros."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def linear_weights(model: "PreTrainedModel") -> dict[str, bool]:
    """The names of the matrices that a format rounds, and whether they are stored `[inputs, outputs]`, as in GPT-2."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    kinds = (nn.Linear, Conv1D)
    return {
        f"{name}.weight": isinstance(module, Conv1D)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and module is not head
    }


def rounded_state(state: Mapping[str, Tensor], matrices: Mapping[str, bool], format: Format) -> dict[str, Tensor]:
    """A whole state with its matrices rounded; the other tensors stay as they are."""
    if format == "fp32":
        return dict(state)
    return {
        name: tensor
        if name not in matrices
        else (rounded(tensor.t(), format).t() if matrices[name] else rounded(tensor, format))
        for name, tensor in state.items()
    }
