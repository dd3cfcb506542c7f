"""The only place that chooses how a sampler computes its logits: without the modules of a known model, or with them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from trimtab.rollout.decode import Forward, Prompts
from trimtab.rollout.lean import Lean
from trimtab.rollout.plain import read_plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trimtab.rollout.cache import RowCache

PROBE = ((0, 0, 3, 1), (2, 7, 1, 8), (0, 5, 9, 2))
HIDDEN = (2, 0, 1)
"""Prompts on which both ways must agree, and how many columns of each are padding."""
PROBE_STEPS = 2
APART = 1e-4
"""How far logits may be apart, of the largest. Rounding in float32 gives 1e-6; another angle, scale or norm 1e-2."""


class Own:
    """The model's own forward pass."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model: PreTrainedModel = model
        self._positions: int | None = getattr(model.config, "max_position_embeddings", None)

    def __call__(
        self, ids: Tensor, hidden: Tensor, position: Tensor, cache: "RowCache", entering: "Sequence[Prompts]" = ()
    ) -> Tensor:
        """Prompts that enter are passes of their own."""
        from trimtab.rollout.cache import RowCache

        found = [self._logits(ids, hidden, position, cache)] if len(ids) else []
        for prompts in entering:
            own = RowCache()
            found.append(self._logits(prompts.ids, prompts.hidden, prompts.position, own))
            for number in range(len(own.layers)):
                if own.layer(number).is_initialized:
                    cache.layer(number).put(prompts.rows, *own.layer(number).columns)
        return torch.cat(found) if len(found) > 1 else found[0]

    def _logits(self, ids: Tensor, hidden: Tensor, position: Tensor, cache: "RowCache") -> Tensor:
        attends = None
        if bool(hidden.any()):
            width = int(cache.get_seq_length()) + ids.shape[1]
            attends = (torch.arange(width, device=ids.device) >= hidden[:, None]).long()
        out = self._model(
            input_ids=ids,
            attention_mask=attends,
            # A free row goes on as long as it is there, and must not run past the end of a table. Nobody uses it.
            position_ids=position if self._positions is None else position.clamp_max(self._positions - 1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cast(Tensor, out.logits)[:, -1].float()


def fastest_forward(model: "PreTrainedModel") -> tuple[Forward, str]:
    """The forward pass to sample with, and its name; where it is not the lean one, with the reason."""
    own = Own(model)
    plain = read_plain(model)
    if isinstance(plain, str):
        return own, f"transformers ({plain})"
    lean = Lean(plain)
    expected, found = (_probed(forward, len(plain.embedding), plain.device) for forward in (own, lean))
    apart = float((found - expected).abs().max() / expected.abs().max())
    if not apart <= APART:
        return own, f"transformers (the lean pass is {apart:.1e} apart from it)"
    return lean, f"lean {plain.kind}"


@torch.inference_mode()
def _probed(forward: Forward, vocabulary: int, device: torch.device) -> Tensor:
    """Logits of padded prompts, and of some tokens after them."""
    from trimtab.rollout.cache import RowCache

    ids, hidden = torch.tensor(PROBE, device=device) % vocabulary, torch.tensor(HIDDEN, device=device)
    position = (torch.arange(ids.shape[1], device=device) - hidden[:, None]).clamp_min(0)
    cache = RowCache()
    found = [forward(ids, hidden, position, cache)]
    for step in range(PROBE_STEPS):
        position = (cache.get_seq_length() - hidden)[:, None]
        found.append(forward(ids[:, step : step + 1], hidden, position, cache))
    return torch.stack(found)
