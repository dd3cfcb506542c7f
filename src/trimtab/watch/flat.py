"""One micro-batch as flat trainable tokens in the processor's memory: the only place that reads the trainer's layout.

Padded [rows, width] fields come in; tokens of the mask come out, sequence after sequence, in float64. Numbers that the
trainer holds per row stay per row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.signal.layout import Segments

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

TOKEN_FIELDS = ("logp_current", "logp_old", "logp_rollout", "logp_ref", "entropy", "gradient", "importance")
"""Fields per token; `importance` may also be one number per row. `gradient` is that of the loss by logp_current."""
ROW_FIELDS = ("row", "reward", "group", "advantage", "version", "length")


@dataclass(frozen=True)
class Flat:
    """Trainable tokens of some sequences, with what stands beside them.

    Two sequences of 2 and 3 tokens: counts = [2, 3], sequence = [0, 0, 1, 1, 1].
    """

    counts: Integers
    sequence: Integers
    tokens: Mapping[str, Floats]
    rows: Mapping[str, Floats]
    ids: Integers | None = None
    first_id: Integers | None = None
    """The first trainable token of each row, -1 where there is none."""
    prompt_repeats: Flags | None = None
    """Rows whose first trainable tokens are the first tokens of the prompt."""
    leaked: int = 0
    """Tokens outside the mask that have a gradient."""
    exact: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    """Log-probs in the trainer's own precision, to compare bits."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def num_tokens(self) -> int:
        return int(self.sequence.size)

    @property
    def num_rows(self) -> int:
        return int(self.counts.size)

    @property
    def segments(self) -> Segments:
        return Segments.from_counts(torch.from_numpy(self.counts), self.num_tokens)

    def of_rows(self, values: Floats) -> Floats:
        """Numbers per row, one per token."""
        return values[self.sequence]

    @property
    def advantage(self) -> Floats | None:
        """Per token, whether the trainer holds it per token or per row."""
        if "advantage" in self.tokens:
            return self.tokens["advantage"]
        return self.of_rows(self.rows["advantage"]) if "advantage" in self.rows else None


def flatten(fields: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Flat:
    """Gather the trainable tokens of padded fields."""
    mask = fields["mask"].numpy() != 0
    counts, sequence = mask.sum(1, dtype=np.int64), mask.nonzero()[0].astype(np.int64)
    tokens: dict[str, Floats] = {}
    rows: dict[str, Floats] = {}
    exact: dict[str, NDArray[Any]] = {}
    for name, values in fields.items():
        if name in ("mask", "ids", "prompt_ids", "prompt_mask"):
            continue
        array = _plain(values)
        if array.ndim == 2 and array.shape[1] == 1 and mask.shape[1] != 1:
            array = array[:, 0]
        if array.ndim == 2:
            chosen = array[mask]
            tokens[name] = chosen.astype(np.float64)
            if name.startswith("logp_"):
                exact[name] = chosen
        elif name == "importance":
            tokens[name] = array.astype(np.float64)[sequence]
        else:
            rows[name] = array.astype(np.float64)
    gradient = fields.get("gradient")
    leaked = 0 if gradient is None else int(np.count_nonzero(_plain(gradient)[~mask]))
    ids, first, repeats = _ids(fields, mask)
    return Flat(counts, sequence, tokens, rows, ids, first, repeats, leaked, exact, facts)


def _plain(values: Tensor) -> NDArray[Any]:
    return values.float().numpy() if values.dtype in (torch.bfloat16, torch.float16) else values.numpy()


def _ids(fields: Mapping[str, Tensor], mask: Flags) -> tuple[Integers | None, Integers | None, Flags | None]:
    if "ids" not in fields:
        return None, None, None
    ids = fields["ids"].numpy().astype(np.int64)
    first = np.where(mask.any(1), ids[np.arange(len(ids)), mask.argmax(1)], -1)
    repeats = _repeats(ids, mask, fields["prompt_ids"], fields["prompt_mask"]) if "prompt_ids" in fields else None
    return ids[mask], first, repeats


REPEATED = 3
"""Tokens of the prompt that are compared with the start of an answer."""


def _repeats(ids: Integers, mask: Flags, prompt_ids: Tensor, prompt_mask: Tensor) -> Flags:
    """Whether the first trainable tokens are the first tokens of the prompt."""
    found = np.zeros(len(ids), dtype=np.bool_)
    for row, (asked, is_asked) in enumerate(zip(prompt_ids.numpy(), prompt_mask.numpy() != 0, strict=True)):
        start, said = asked[is_asked][:REPEATED], ids[row][mask[row]][:REPEATED]
        found[row] = len(start) == len(said) == REPEATED and bool((start == said).all())
    return found
