"""The only place that puts messages on a pipe: a JSON head and named tensors, as safetensors. Nothing is pickled."""

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

from torch import Tensor

LENGTHS = struct.Struct(">QQ")
"""Bytes of the head, bytes of the tensors."""


def send(pipe: BinaryIO, head: Mapping[str, object], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write one whole message."""
    from safetensors.torch import save

    text = json.dumps(head).encode()
    body = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}) if tensors else b""
    _ = pipe.write(LENGTHS.pack(len(text), len(body)))
    _ = pipe.write(text)
    _ = pipe.write(body)
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Read the next message; None when the other side has closed the pipe, between messages or inside one."""
    from safetensors.torch import load

    lengths = pipe.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_bytes, body_bytes = LENGTHS.unpack(lengths)
    text, body = pipe.read(head_bytes), pipe.read(body_bytes)
    if len(text) < head_bytes or len(body) < body_bytes:
        return None
    return cast("dict[str, Any]", json.loads(text)), load(body) if body else {}
