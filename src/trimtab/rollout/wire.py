"""The only place that says what a message is, on a pipe or as bytes: a JSON head and named tensors, as safetensors.

Nothing is pickled.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

from torch import Tensor

LENGTHS = struct.Struct(">QQ")
"""Bytes of the head, bytes of the tensors."""


def send(pipe: BinaryIO, head: Mapping[str, object], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write one whole message."""
    for part in _parts(head, tensors):
        _ = pipe.write(part)
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Read the next message; None when the other side has closed the pipe, between messages or inside one."""
    lengths = pipe.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_bytes, body_bytes = LENGTHS.unpack(lengths)
    text, body = pipe.read(head_bytes), pipe.read(body_bytes)
    if len(text) < head_bytes or len(body) < body_bytes:
        return None
    return _read(text, body)


def pack(head: Mapping[str, object], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """The same message as bytes, for whoever carries bytes."""
    return b"".join(_parts(head, tensors))


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `pack` made."""
    first = LENGTHS.size
    head_bytes, body_bytes = LENGTHS.unpack(message[:first])
    end = first + head_bytes
    return _read(message[first:end], message[end : end + body_bytes])


def _parts(head: Mapping[str, object], tensors: Mapping[str, Tensor] | None) -> tuple[bytes, bytes, bytes]:
    from safetensors.torch import save

    text = json.dumps(head).encode()
    body = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}) if tensors else b""
    return LENGTHS.pack(len(text), len(body)), text, body


def _read(text: bytes, body: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors.torch import load

    return cast("dict[str, Any]", json.loads(text)), load(body) if body else {}
