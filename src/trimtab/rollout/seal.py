"""The only place that seals what an engine drew: one number per sequence, which any later change of a token breaks.

It is computed from the engine's answers before they are put together with prompts and observations. Whoever reads the
tokens later, from a pipe, a checkpoint or a dump, can see that exactly these tokens train, each with its own numbers.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trimtab.rollout.engine import Sample

FIELD = "seal"
"""Its name among the extra fields of a sequence."""


def seal_samples(samples: Sequence[Sample]) -> int:
    """The seal of an episode's turns, in their order."""
    return _sealed((one.ids, one.logp, one.version) for one in samples)


def seal_tokens(ids: Tensor, logp: Tensor, version: Tensor, turn: Tensor) -> int:
    """The seal of trainable tokens as a batch holds them."""
    _, counts = torch.unique_consecutive(turn, return_counts=True)
    parts = counts.tolist()
    return _sealed(zip(ids.split(parts), logp.split(parts), version.split(parts), strict=True))


def _sealed(turns: Iterable[tuple[Sequence[int] | Tensor, Tensor, Sequence[int] | Tensor]]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for ids, logp, version in turns:
        if len(ids):
            digest.update(len(ids).to_bytes(4, "big") + _whole(ids) + _bytes(logp, torch.float32) + _whole(version))
    return int.from_bytes(digest.digest(), "big") >> 1  # a signed 64-bit number


def _whole(values: Sequence[int] | Tensor) -> bytes:
    """Whole numbers as 64 bits each."""
    return _bytes(values, torch.int64) if isinstance(values, Tensor) else array("q", values).tobytes()


def _bytes(values: Tensor, dtype: torch.dtype) -> bytes:
    return values.detach().to("cpu", dtype).numpy().tobytes()
