"""A case: one tiny batch of rollouts, and every way to look at it. The only place that makes layouts for subjects.

A case holds canonical leaf tensors over all tokens (prompt, action, observation). Views are differentiable functions of
the leaves, so a gradient arrives at its token whatever the layout; inverse views bring results back. Perturbations are
new cases: other content in cells nobody may read, other padding, other order, some of the sequences. A subject needs to
know nothing of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor

from trimtab.signal.layout import Levels, Segments, renumbered

Side = Literal["left", "right"]


class CannotRepresent(Exception):
    """A subject cannot take this case; too many of these is "could not exercise", never a pass."""


@dataclass(frozen=True)
class Case:
    """Two answers to one prompt, the first with an observation inside:

    kinds = (("p", "a", "o", "a"), ("p", "a"))          p prompt, a action, o observation
    tokens["logp_old"] = 6 numbers                       one a token, prompt and observation included
    sequences["reward"] = [1., 0.], ["group"] = [0, 0]
    """

    kinds: tuple[tuple[str, ...], ...]
    tokens: Mapping[str, Tensor]
    sequences: Mapping[str, Tensor]
    fill: float = 0.0
    """What cells without a token hold."""
    extra_columns: int = 0
    side: Side = "right"
    origin: tuple[int, ...] = ()
    """Which sequence of the unperturbed case each one is."""
    within: "Case | None" = field(default=None, repr=False)
    """The case this one is a part of, when it is one."""

    @property
    def num_sequences(self) -> int:
        return len(self.kinds)

    @property
    def whole(self) -> "Case":
        """For counts that belong to the whole batch: the case a part was cut from, or the case itself."""
        return self if self.within is None else self.within

    @cached_property
    def trainable(self) -> Tensor:
        """Bool a token: chosen by the policy."""
        return torch.tensor([kind == "a" for kinds in self.kinds for kind in kinds], dtype=torch.bool)

    @cached_property
    def owner(self) -> Tensor:
        """The sequence of each token."""
        return torch.tensor([i for i, kinds in enumerate(self.kinds) for _ in kinds], dtype=torch.long)

    @cached_property
    def segments(self) -> Segments:
        """Over trainable tokens."""
        counts = torch.tensor([sum(kind == "a" for kind in kinds) for kinds in self.kinds], dtype=torch.long)
        return Segments.from_counts(counts, int(counts.sum()))

    @cached_property
    def levels(self) -> Levels:
        return Levels(self.segments, torch.arange(self.num_sequences), *renumbered(self.sequences["group"]))

    def cannot(self, why: str) -> CannotRepresent:
        """`raise case.cannot("groups of unequal size")`."""
        return CannotRepresent(why)

    # --- views -----------------------------------------------------------------------------------------------

    def flat(self, name: str) -> Tensor:
        """Trainable tokens only, sequence after sequence; the leaf itself where every token is trainable."""
        return self.tokens[name] if bool(self.trainable.all()) else self.tokens[name][self.trainable]

    def padded(self, name: str, *, with_prompt: bool = True, dtype: torch.dtype | None = None) -> Tensor:
        """[rows, width]; cells without a token hold the case's fill."""
        index = self._grid(with_prompt)
        source = self.tokens[name] if name != "trainable" else self.trainable.to(dtype or torch.float64)
        if index.numel() == source.numel() and bool((index >= 0).all()):
            return source.view(index.shape)
        content = source[index.clamp(min=0)] if source.numel() else torch.zeros(index.shape, dtype=source.dtype)
        # The mask is the one thing a caller owes: it is 0 where there is no token, never garbage.
        blank = 0 if name == "trainable" or not source.dtype.is_floating_point else self.fill
        return torch.where(index >= 0, content, torch.full_like(content, blank))

    def from_padded(self, values: Tensor, *, with_prompt: bool = True) -> Tensor:
        """A subject's [rows, width] result at the trainable tokens."""
        index = self._grid(with_prompt)
        place = torch.empty(self.trainable.numel(), dtype=torch.long)
        place[index[index >= 0]] = (index >= 0).reshape(-1).nonzero().squeeze(1)
        return values.reshape(-1)[place[self.trainable.nonzero().squeeze(1)]]

    def list(self, name: str) -> list[Tensor]:
        """One 1-D tensor a sequence, every token of it: views of the leaf."""
        source = self.tokens[name] if name != "trainable" else self.trainable.to(torch.float64)
        pieces = cast("tuple[Tensor, ...]", source.split([len(kinds) for kinds in self.kinds]))
        return list(pieces)

    def from_list(self, values: Sequence[Tensor]) -> Tensor:
        """A subject's per-sequence results at the trainable tokens."""
        return torch.cat(list(values))[self.trainable] if values else torch.zeros(0)

    def packed(self, name: str) -> Tensor:
        """One row of every token, sequence after sequence; boundaries in `cu_seqlens`."""
        return self.tokens[name] if name != "trainable" else self.trainable.clone()

    @cached_property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *[len(kinds) for kinds in self.kinds]]).cumsum(0)

    def _grid(self, with_prompt: bool) -> Tensor:
        """[rows, width] of token indices, -1 where there is none."""
        rows: list[list[int]] = []
        start = 0
        for kinds in self.kinds:
            skip = 0 if with_prompt else next((i for i, kind in enumerate(kinds) if kind != "p"), len(kinds))
            rows.append(list(range(start + skip, start + len(kinds))))
            start += len(kinds)
        width = max((len(row) for row in rows), default=0) + self.extra_columns
        pads = [[-1] * (width - len(row)) for row in rows]
        full = [pad + row if self.side == "left" else row + pad for row, pad in zip(rows, pads, strict=True)]
        return torch.tensor(full, dtype=torch.long).reshape(len(rows), width)

    # --- perturbations ---------------------------------------------------------------------------------------

    def with_tokens(self, **fields: Tensor) -> "Case":
        return replace(self, tokens={**self.tokens, **fields})

    def with_sequences(self, **fields: Tensor) -> "Case":
        return replace(self, sequences={**self.sequences, **fields})

    def refilled(self, content: float, *, extra_columns: int = 0, side: Side | None = None) -> "Case":
        """Everything nobody may read holds `content`: padding cells, and untrainable tokens of every float field."""
        tokens = {
            name: torch.where(self.trainable, values, torch.full_like(values, content))
            if values.dtype.is_floating_point
            else values
            for name, values in self.tokens.items()
        }
        return replace(self, tokens=tokens, fill=content, extra_columns=extra_columns, side=side or self.side)

    def compacted(self) -> "Case":
        """Rows of equal length and action tokens only: every view is then the leaf's own memory."""
        rows = [i for i in range(self.num_sequences) if "a" in self.kinds[i]]
        length = min((self.kinds[i].count("a") for i in rows), default=0)
        places = [self.token_places([i])[:length] for i in rows]
        tokens = torch.cat(places) if places else torch.zeros(0, dtype=torch.long)
        return replace(
            self,
            kinds=(("a",) * length,) * len(rows),
            tokens={name: values[self.trainable][tokens] for name, values in self.tokens.items()},
            sequences={name: values[torch.tensor(rows, dtype=torch.long)] for name, values in self.sequences.items()},
            origin=tuple(range(len(rows))),
        )

    def taken(self, chosen: Sequence[int], *, as_part: bool) -> "Case":
        """Some sequences in some order: a part of this case, or a permuted case of its own."""
        index = torch.tensor(list(chosen), dtype=torch.long)
        starts = self.cu_seqlens
        places = [torch.arange(int(starts[i]), int(starts[i + 1])) for i in chosen]
        tokens = torch.cat(places) if places else torch.zeros(0, dtype=torch.long)
        return replace(
            self,
            kinds=tuple(self.kinds[i] for i in chosen),
            tokens={name: values[tokens] for name, values in self.tokens.items()},
            sequences={name: values[index] for name, values in self.sequences.items()},
            origin=tuple(self.origin[i] if self.origin else i for i in chosen),
            within=self.whole if as_part else None,
        )

    def token_places(self, chosen: Sequence[int]) -> Tensor:
        """Where the trainable tokens of some sequences lie among this case's trainable tokens."""
        first, after = self.segments.first_token, self.segments.first_token + self.segments.token_counts
        places = [torch.arange(int(first[i]), int(after[i])) for i in chosen]
        return torch.cat(places) if places else torch.zeros(0, dtype=torch.long)

    def as_data(self) -> dict[str, Any]:
        """Plain data, for reports."""
        return {
            "kinds": ["".join(kinds) for kinds in self.kinds],
            "tokens": {name: [round(float(v), 6) for v in values] for name, values in self.tokens.items()},
            "sequences": {name: values.tolist() for name, values in self.sequences.items()},
            "fill": self.fill,
            "side": self.side,
            "extra_columns": self.extra_columns,
        }
