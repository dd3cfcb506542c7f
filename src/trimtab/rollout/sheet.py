"""The only place that writes down what was drawn: a row of tokens and log-probs for every answer in flight."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from trimtab.rollout.draw import uniforms


@dataclass(frozen=True)
class Sheet:
    """What was drawn so far, `[places, tokens]`, and the numbers to draw with. Values past a length mean nothing."""

    ids: Tensor
    logp: Tensor
    random: Tensor
    """float64 in [0, 1); the number at (place, i) depends on the request's seed and i alone."""
    limit: Tensor
    """How many tokens each place may take."""

    @classmethod
    def of(cls, seeds: Sequence[int], limits: Sequence[int], device: torch.device) -> "Sheet":
        """Empty places for these requests."""
        rows, width = len(seeds), max(limits)
        return cls(
            ids=torch.zeros(rows, width, dtype=torch.int64, device=device),
            logp=torch.zeros(rows, width, device=device),
            random=uniforms(seeds, width).to(device),
            limit=torch.tensor(limits, device=device),
        )

    def put(self, places: Tensor, new: "Sheet") -> "Sheet":
        """Write `new` at these places; the sheet grows where it is too small."""
        grown = self._grown(int(places.max()) + 1 - len(self.limit), new.ids.shape[1] - self.ids.shape[1])
        for own, given in ((grown.ids, new.ids), (grown.logp, new.logp), (grown.random, new.random)):
            own[places, : given.shape[1]] = given
        grown.limit[places] = new.limit
        return grown

    def _grown(self, rows: int, columns: int) -> "Sheet":
        if rows <= 0 and columns <= 0:
            return self
        more = (0, max(columns, 0), 0, max(rows, 0))
        ids, logp, random = (pad(held, more) for held in (self.ids, self.logp, self.random))
        return Sheet(ids, logp, random, pad(self.limit, more[2:]))
