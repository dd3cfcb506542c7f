"""A case: one tiny batch of rollouts, and every way to look at it. The only place that makes layouts for subjects.

A case holds canonical leaf tensors over all tokens (prompt, action, observation). Views are differentiable functions of
the leaves, so a gradient arrives at its token in every layout. Inverse views bring results back. Perturbations are new
cases: other content in unreadable cells, other padding, another order, or some of the sequences. A subject does not
need to know about them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import unknown_name
from trimtab.sentinel.batch.shape import MASKS, Grid, Shape, Side, shape_of
from trimtab.signal.group import renumbered
from trimtab.signal.layout import Levels, Segments


class CannotRepresent(Exception):
    """A subject cannot take this case. Too many of these give "could not exercise", never a pass."""


class WrongBinding(Exception):
    """A binding asks for something that is not there, on any case: it is told once, and nothing is a pass."""


class WrongShape(Exception):
    """A result has another shape than its view."""

    def __init__(self, observed: list[int], expected: list[int]) -> None:
        super().__init__(f"a result has shape {observed}, but its view has shape {expected}")
        self.observed, self.expected = observed, expected


@dataclass(frozen=True)
class Case:
    """Two answers to one prompt, the first with an observation inside:

    kinds = (("p", "a", "o", "a"), ("p", "a"))          p prompt, a action, o observation
    tokens["logp_old"] = 6 numbers                       one per token, including prompt and observation
    sequences["reward"] = [1., 0.], ["group"] = [0, 0]
    """

    kinds: tuple[tuple[str, ...], ...]
    tokens: Mapping[str, Tensor]
    sequences: Mapping[str, Tensor]
    fill: float = 0.0
    """Content of cells without a token."""
    extra_columns: int = 0
    side: Side = "right"
    origin: tuple[int, ...] = ()
    """For each sequence, its index in the unperturbed case."""
    within: "Case | None" = field(default=None, repr=False)
    """The whole case, if this case is a part of one."""
    mask_dtype: torch.dtype = torch.float64
    """The dtype of masks, unless a view asks for another one."""
    eos_ids: tuple[int, ...] = (1,)
    pad_id: int = 0
    quiet: frozenset[str] = frozenset()
    """Fields that hold 0 in every unreadable cell, whatever the others hold."""
    rank: int = 0
    """The rank, among `world` processes, that gets this case."""
    world: int = 1
    written: set[str] | None = field(default=None, repr=False, compare=False)
    """If set, bindings add the names of arguments that a call wrote into."""
    touched: set[str] | None = field(default=None, repr=False, compare=False)
    """If set, views add the names of the fields that they read."""

    @property
    def num_sequences(self) -> int:
        return len(self.kinds)

    @property
    def whole(self) -> "Case":
        """The whole batch, for counts: the case that this one is a part of, or the case itself."""
        self.note("whole")
        return self if self.within is None else self.within

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.kinds)

    @property
    def trainable(self) -> Tensor:
        """One bool per token: chosen by the policy."""
        return self.shape.flags("trainable")

    @property
    def owner(self) -> Tensor:
        """The sequence of each token."""
        return self.shape.owner

    @property
    def segments(self) -> Segments:
        """Segments over trainable tokens."""
        return self.shape.segments

    @cached_property
    def levels(self) -> Levels:
        return Levels(self.segments, torch.arange(self.num_sequences), *renumbered(self.sequences["group"]))

    @property
    def lengths(self) -> list[int]:
        """Tokens per sequence, including the prompt."""
        return list(self.shape.lengths)

    @property
    def response_lengths(self) -> list[int]:
        """Tokens per sequence after the prompt."""
        return list(self.shape.response_lengths)

    @property
    def cu_seqlens(self) -> Tensor:
        """Where each sequence starts in a packed row, and where the last one ends."""
        return self.shape.cu_seqlens.clone()

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """(chosen, rejected) rows: the best and the worst reward of every group that has two of them."""
        reward, group = self.sequences["reward"], self.sequences["group"]
        origin = self.origin or range(self.num_sequences)  # ties are broken by identity, not by position
        found: list[tuple[int, int]] = []
        for name in sorted({int(g) for g in group}):
            rows = sorted((float(reward[i]), origin[i], i) for i in range(self.num_sequences) if int(group[i]) == name)
            if len(rows) > 1 and rows[0][0] < rows[-1][0]:
                found.append((rows[-1][2], rows[0][2]))
        return found

    @property
    def content(self) -> tuple[object, ...]:
        """Everything that a call can see of it, to tell whether two cases are the same."""
        own = (self.kinds, repr(self.fill), self.extra_columns, self.side, self.origin, self.mask_dtype, self.eos_ids)
        within = None if self.within is None else self.within.content
        fields = tuple((name, _bits(values)) for one in (self.tokens, self.sequences) for name, values in one.items())
        return (*own, self.pad_id, self.quiet, self.rank, self.world, within, fields)

    def cannot(self, why: str) -> CannotRepresent:
        """`raise case.cannot("groups of unequal size")`."""
        return CannotRepresent(why)

    # --- views -----------------------------------------------------------------------------------------------

    def flat(self, name: str) -> Tensor:
        """Only trainable tokens, sequence after sequence; the leaf itself if every token is trainable."""
        source = self._field(name)
        return source if bool(self.trainable.all()) else source[self.trainable]

    def sequence(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """One entry per sequence: reward, group, ended, votes, …"""
        self.note(name)
        if name == "in_use":
            return (self.segments.token_counts > 0).to(dtype or self.mask_dtype)
        if name not in self.sequences:
            raise WrongBinding(unknown_name("field of a sequence", name, sorted(self.sequences)))
        return self.sequences[name] if dtype is None else self.sequences[name].to(dtype)

    def padded(
        self,
        name: str,
        *,
        with_prompt: bool = True,
        dtype: torch.dtype | None = None,
        side: Side | None = None,
        shift: bool = False,
        drop_first: bool = False,
    ) -> Tensor:
        """[rows, width]; cells without a token hold the case's fill.

        with_prompt=False  only the tokens after the prompt, padded on the right unless `side` says otherwise
        shift              cell t holds token t + 1, which position t of a model predicts; the last cell is empty
        drop_first         the same without the last cell: [rows, width - 1]
        """
        grid = self._grid(with_prompt, side, shift, drop_first)
        source = self._field(name, dtype)
        cells = grid.index.shape
        if grid.is_full:
            return source.view(*cells, *source.shape[1:])
        held = source[grid.source] if source.shape[0] else source.new_zeros(*cells, *source.shape[1:])
        # Only the mask is guaranteed at cells without a token: it is 0 there, never garbage.
        blank = self.fill if held.dtype.is_floating_point and name not in (*MASKS, *self.quiet) else 0
        blank = self.pad_id if name == "token_id" else blank
        there = grid.held if held.ndim == 2 else grid.held.reshape(*cells, *[1] * (held.ndim - 2))
        return torch.where(there, held, torch.full_like(held, blank))

    def logits(self, name: str = "logits", *, side: Side | None = None) -> Tensor:
        """[rows, width, vocabulary] as a model gives them: position t predicts token t + 1."""
        return self.padded(name, side=side, shift=True)

    def from_padded(
        self,
        values: Tensor,
        *,
        with_prompt: bool = True,
        side: Side | None = None,
        shift: bool = False,
        drop_first: bool = False,
    ) -> Tensor:
        """A subject's [rows, width] result at the trainable tokens."""
        grid = self._grid(with_prompt, side, shift, drop_first)
        if values.shape[:2] != grid.index.shape:
            raise WrongShape(list(values.shape), list(grid.index.shape))
        if not grid.is_complete:
            raise self.cannot("the first token of a sequence is trainable, so a shifted view has no cell for it")
        return values.reshape(-1, *values.shape[2:])[grid.wanted]

    def outside_padded(self, values: Tensor, **view: Any) -> Tensor:
        """A subject's [rows, width] result in every cell without a trainable token."""
        asked = (
            view.get("with_prompt", True),
            view.get("side"),
            view.get("shift", False),
            view.get("drop_first", False),
        )
        return values[~self._grid(*asked).inside]

    def list(self, name: str, *, with_prompt: bool = True, dtype: torch.dtype | None = None) -> list[Tensor]:
        """One 1-D tensor per sequence with all its tokens (or those after its prompt): views of the leaf."""
        source = self._field(name, dtype)
        pieces = cast("tuple[Tensor, ...]", source.split(self.lengths))
        prompts = self.shape.prompts
        return list(pieces) if with_prompt else [piece[prompts[i] :] for i, piece in enumerate(pieces)]

    def from_list(self, values: Sequence[Tensor], *, with_prompt: bool = True) -> Tensor:
        """A subject's per-sequence results at the trainable tokens."""
        if not values:
            return torch.zeros(0)
        sizes = self.lengths if with_prompt else self.response_lengths
        if [v.shape[0] for v in values] != sizes:
            raise WrongShape([v.shape[0] for v in values], sizes)
        return torch.cat(list(values))[self.flags(with_prompt=with_prompt)]

    def cut(self, joined: Tensor, *, with_prompt: bool = True) -> tuple[Tensor, ...]:
        """A subject's result over all sequences, one after the other, cut into one tensor per sequence."""
        sizes = self.lengths if with_prompt else self.response_lengths
        if joined.shape[:1] != (sum(sizes),):
            raise WrongShape(list(joined.shape), [sum(sizes)])
        return cast("tuple[Tensor, ...]", joined.split(sizes))

    def packed(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """One row with all tokens, sequence after sequence; boundaries are in `cu_seqlens`."""
        return self._field(name, dtype)

    def from_packed(self, values: Tensor) -> Tensor:
        """A subject's result over one packed row, at the trainable tokens."""
        if values.shape[:1] != self.trainable.shape:
            raise WrongShape(list(values.shape), list(self.trainable.shape))
        return values[self.trainable]

    def flags(self, *, with_prompt: bool) -> Tensor:
        """Trainable flags over the tokens a list view shows."""
        flags = self.trainable.split(self.lengths)
        shown = [flag[0 if with_prompt else self.shape.prompts[i] :] for i, flag in enumerate(flags)]
        return torch.cat(shown) if shown else self.trainable

    def note(self, name: str) -> None:
        """Remember that a field was asked for, if somebody wants to know."""
        if self.touched is not None:
            self.touched.add(name)

    def _field(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        self.note(name)
        if name in MASKS:
            return self.shape.flags(name).to(dtype or self.mask_dtype, copy=True)
        if name in self.sequences and name not in self.tokens:
            return self.sequences[name][self.owner]
        if name not in self.tokens:
            known = sorted({*MASKS, *self.tokens, *self.sequences})
            raise WrongBinding(unknown_name("field of a case", name, known))
        return self.tokens[name] if dtype is None else self.tokens[name].to(dtype)

    def _grid(self, with_prompt: bool, side: Side | None = None, shift: bool = False, drop: bool = False) -> Grid:
        side = side or (self.side if with_prompt else "right")
        return self.shape.grid(with_prompt, side, shift, drop, self.extra_columns)

    # --- perturbations ---------------------------------------------------------------------------------------

    def with_tokens(self, **fields: Tensor) -> "Case":
        return replace(self, tokens={**self.tokens, **fields})

    def with_sequences(self, **fields: Tensor) -> "Case":
        return replace(self, sequences={**self.sequences, **fields})

    def refilled(self, content: float, *, extra_columns: int = 0, side: Side | None = None) -> "Case":
        """Put `content` into every unreadable cell: padding, and untrainable tokens of every float field."""
        tokens = {
            name: torch.where(self._like(values), values, torch.full_like(values, 0 if name in self.quiet else content))
            if values.dtype.is_floating_point
            else values
            for name, values in self.tokens.items()
        }
        return replace(self, tokens=tokens, fill=content, extra_columns=extra_columns, side=side or self.side)

    def _like(self, values: Tensor) -> Tensor:
        """The trainable flags, in a shape that selects entries of a field."""
        return self.trainable.reshape(-1, *[1] * (values.ndim - 1))

    def taken(self, chosen: Sequence[int], *, as_part: bool) -> "Case":
        """Some sequences in some order: as a part of this case, or as an independent case."""
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
            within=(self.within or self) if as_part else None,
        )

    def token_places(self, chosen: Sequence[int]) -> Tensor:
        """Indices of the trainable tokens of some sequences among all trainable tokens of this case."""
        first, after = self.segments.first_token, self.segments.first_token + self.segments.token_counts
        places = [torch.arange(int(first[i]), int(after[i])) for i in chosen]
        return torch.cat(places) if places else torch.zeros(0, dtype=torch.long)

    def as_data(self) -> dict[str, Any]:
        """Plain data, for reports and reproduction files; `from_data` reads it back."""
        return {
            "kinds": ["".join(kinds) for kinds in self.kinds],
            "tokens": {name: values.tolist() for name, values in self.tokens.items()},
            "sequences": {name: values.tolist() for name, values in self.sequences.items()},
            "fill": self.fill,
            "side": self.side,
            "extra_columns": self.extra_columns,
            "eos_ids": list(self.eos_ids),
            "pad_id": self.pad_id,
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "Case":
        """The case that `as_data` wrote."""
        kinds = tuple(tuple(row) for row in cast("list[str]", data["kinds"]))
        return Case(
            kinds,
            {name: _read(name, values) for name, values in data["tokens"].items()},
            {name: _read(name, values) for name, values in data["sequences"].items()},
            fill=float(data["fill"]),
            side=data["side"],
            extra_columns=data["extra_columns"],
            origin=tuple(range(len(kinds))),
            eos_ids=tuple(data.get("eos_ids", (1,))),
            pad_id=data.get("pad_id", 0),
        )


def _bits(values: Tensor) -> tuple[object, ...]:
    plain = values.detach()
    exact = plain.float() if plain.dtype == torch.bfloat16 else plain  # numpy has no bfloat16
    return values.dtype, values.shape, exact.numpy().tobytes()


COUNTED = ("group", "episode", "token_id", "token_key", "position", "turn", "version")
FLAGS = ("keep", "selected", "ended", "votes")


def _read(name: str, values: list[Any]) -> Tensor:
    dtype = torch.long if name in COUNTED else torch.bool if name in FLAGS else torch.float64

    def numbers(one: Any) -> Any:
        if isinstance(one, list):
            return [numbers(entry) for entry in cast("list[Any]", one)]
        return float(one) if dtype == torch.float64 else one

    return torch.tensor(numbers(values), dtype=dtype)
