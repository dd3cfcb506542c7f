"""The only place that scores an engine's tokens under given parameters, so that its words can be held against ours.

It is the publisher's side of a proof of delivery: plain transformers, no cache, float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from trimtab.signal.scores import logp

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 16
"""Rows that are scored at once; the logits of all of a probe's rows would not fit beside a large model."""


@dataclass(frozen=True)
class Row:
    """A prompt, and the tokens that a server generated behind it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


class Scores(Protocol):
    """Log-probs of every answer's tokens under `state`, at `temperature`, flat, one row after the other."""

    def __call__(self, state: Mapping[str, Tensor], rows: Sequence[Row], temperature: float) -> Tensor: ...


class ModelScores:
    """`Scores` by a transformers model. Its own parameters are not used and not changed.

    Rows are padded on the right with any id: attention looks back only, so what stands there reaches nobody.
    """

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model: PreTrainedModel = model

    def __call__(self, state: Mapping[str, Tensor], rows: Sequence[Row], temperature: float) -> Tensor:
        parts = [self._part(state, rows[at : at + ROWS], temperature) for at in range(0, len(rows), ROWS)]
        return torch.cat(parts)

    def _part(self, state: Mapping[str, Tensor], rows: Sequence[Row], temperature: float) -> Tensor:
        device = self._model.device
        held = {name: tensor.to(device) for name, tensor in state.items()}
        width = max(len(row.prompt) + len(row.answer) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row.prompt) + len(row.answer)] = torch.tensor(row.prompt + row.answer)
        with torch.inference_mode():
            out = torch.func.functional_call(
                self._model, held, kwargs={"input_ids": ids.to(device), "use_cache": False}, tie_weights=True
            )
            logits: Tensor = out.logits
            scored = [
                logp(
                    logits[index, len(row.prompt) - 1 : len(row.prompt) + len(row.answer) - 1].float(),
                    torch.tensor(row.answer, device=device),
                    temperature=temperature,
                )
                for index, row in enumerate(rows)
            ]
        return torch.cat(scored).cpu().clone()
