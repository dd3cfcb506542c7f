"""One optimiser step: which sequences it holds, what each token weighs in it, and how it is cut into micro-batches.

Every denominator belongs to the update, so weights are computed here, once, on all of it. `decide` adds what needs the
current policy and looks across sequences. Slices carry their numbers with them; nothing is recomputed per micro-batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Int
from torch import Tensor

from trimtab.errors import SignalError, unknown_word
from trimtab.signal.composition import Recipe
from trimtab.signal.fields import Field, Fields
from trimtab.signal.layout import Segments, SequenceIndex, TokenIndex
from trimtab.signal.tensors import Number, as_count, as_integers, as_number, as_torch, in_precision, read_if_plain

if TYPE_CHECKING:
    from trimtab.signal.preparation import Prepared

Sequences = Int[Tensor, " chosen"]

OBSERVED, OBSERVED_SHARE = "observed:number", "observed:share"
"""Fields with one number per sequence: its tokens of the environment, and what they weigh together. No formula can name
these."""


@dataclass(frozen=True)
class Slice:
    """Some sequences of a batch, with every token field cut to them.

    `sequences` are indices into the batch; log-probs of the current policy are given for these, in this order.
    """

    recipe: Recipe
    sequences: Sequences
    segments: Segments
    fields: Fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", Fields.of(self.segments, self.fields))

    @property
    def num_tokens(self) -> int:
        return self.segments.num_tokens

    def take(self, chosen: Sequences) -> "Slice":
        """The chosen sequences of this slice (indices into it)."""
        segments, tokens = select(self.segments, chosen)
        return Slice(self.recipe, self.sequences[chosen], segments, self.fields.cut(segments, chosen, tokens))

    def span(self, start: int, stop: int) -> "Slice":
        """The sequences from `start` to `stop`, as views: nothing is copied."""
        if (start, stop) == (0, self.segments.num_sequences):
            return self
        first, last = cast("list[int]", self.segments.offsets[[start, stop]].tolist())
        segments = Segments(self.segments.token_counts[start:stop], last - first)
        cut = self.fields.cut(segments, slice(start, stop), slice(first, last))
        return Slice(self.recipe, self.sequences[start:stop], segments, cut)


@dataclass(frozen=True)
class Update:
    """The sequences behind one optimiser step, before anything was decided about the current policy."""

    whole: Slice
    is_first: bool
    """The first step on its batch: the current policy is still the old one."""

    @property
    def sequences(self) -> Sequences:
        return self.whole.sequences

    @property
    def num_tokens(self) -> int:
        return self.whole.num_tokens


@dataclass
class Ledger:
    """Which weights of an optimiser step have been used; the one thing here that changes."""

    entries: list[tuple[Tensor, Number]] = field(default_factory=list)

    def record(self, gradient: Tensor, weight: Number) -> None:
        self.entries.append((gradient.detach(), weight.detach() if isinstance(weight, Tensor) else weight))


@dataclass(frozen=True)
class MicroBatch:
    """A part of an update that goes through the model at once; may look across a sequence, never across sequences."""

    part: Slice
    data_parallel: int
    ledger: Ledger

    @property
    def sequences(self) -> Sequences:
        return self.part.sequences

    @property
    def num_tokens(self) -> int:
        return self.part.num_tokens


@dataclass(frozen=True)
class Decided:
    """An update with its weights. `split` yields micro-batches; `check_spent` holds the caller to all of them."""

    whole: Slice
    data_parallel: int = 1
    ledger: Ledger = field(default_factory=Ledger)

    def split(
        self, *, max_tokens: int | None = None, num: int | None = None, parts: Iterable[Sequences] | None = None
    ) -> Iterator[MicroBatch]:
        """Cut into micro-batches of whole sequences: at most `max_tokens` each, or exactly `num` of them, or `parts`.

        A sequence longer than max_tokens gets a micro-batch of its own. Ranks that must take the same number of
        micro-batches name `num`; some may then be empty, and give a loss and a gradient of 0. `parts` are cut by
        yourself: places in the batch, each sequence of this update in exactly one of them.
        """
        if sum(asked is not None for asked in (max_tokens, num, parts)) != 1:
            raise SignalError("split: name one of max_tokens, num and parts, so that it is clear which one gives way.")
        if parts is not None:
            return self._micro_batches(self.whole.take(chosen) for chosen in self._chosen(parts))
        what = "num" if max_tokens is None else "max_tokens"
        _ = as_count(num if max_tokens is None else max_tokens, "split", what)
        cuts = _cuts(self.whole.segments.token_counts, max_tokens, num)
        return self._micro_batches(self.whole.span(start, stop) for start, stop in cuts)

    def _micro_batches(self, parts: Iterable[Slice]) -> Iterator[MicroBatch]:
        for part in parts:
            yield MicroBatch(part, self.data_parallel, self.ledger)

    def _chosen(self, parts: Iterable[Sequences]) -> list[Sequences]:
        """Places in this update of the sequences that `parts` names by their place in the batch."""
        mine = self.whole.sequences
        asked = [as_integers(part, "split: parts", mine.device) for part in parts]
        named = torch.cat([*asked, mine[:0]])
        if not torch.equal(named.sort().values, mine.sort().values):
            raise SignalError(
                f"split: parts names {len(named)} sequences and this update has {len(mine)}, not each of them once, so "
                "some would train twice or not at all. Name every one of `sequences` in one part."
            )
        order = mine.argsort()
        return [order[torch.searchsorted(mine[order], part)] for part in asked]

    def shard(self, rank: int, ranks: int) -> "Decided":
        """This rank's sequences. The loss is multiplied by `ranks`, because DDP and FSDP2 average gradients."""
        _ = as_count(ranks, "shard", "ranks"), as_count(rank, "shard", "rank", least=0)
        if rank >= ranks:
            raise SignalError(f"shard: rank {rank} of {ranks} does not exist. Ranks count from 0.")
        start, stop = _cuts(self.whole.segments.token_counts, None, ranks)[rank]
        return Decided(self.whole.span(start, stop), ranks, Ledger())

    def own(self, sequences: Sequences, ranks: int) -> "Decided":
        """As `shard`, for the sequences (of the batch) whose log-probs this rank computes."""
        _ = as_count(ranks, "own", "ranks")
        mine = as_integers(sequences, "own: sequences", self.whole.sequences.device)
        if bool((mine < 0).any()):
            raise SignalError(f"own: sequences names {int(mine.min())}. They are places in the batch, counted from 0.")
        chosen = torch.where(torch.isin(self.whole.sequences, mine))[0]
        return Decided(self.whole.take(chosen), ranks, Ledger())

    def check_spent(self, *, grad_scale: float = 1.0, tolerance: float = 1e-4) -> None:
        """Raise unless backward used every weight of the step once: nothing was divided again, nothing left out."""
        says = "It is what one micro-batch's loss is multiplied by before backward: a number other than 0."
        _ = as_number(grad_scale, "check_spent", "grad_scale", lambda scale: 0 < abs(scale) < float("inf"), says)
        _ = as_number(tolerance, "check_spent", "tolerance", lambda bound: bound >= 0, "It is a share, 0 or more.")
        expected = float(sum(weight_sums(self.whole).values()))
        spent = sum((float(g * w) for g, w in self.ledger.entries), 0.0) / grad_scale
        if not abs(spent - expected) <= tolerance * abs(expected):
            raise SignalError(
                f"check_spent: the weights of this optimiser step add up to {expected:.6g} but {spent:.6g} flowed "
                f"back, so its gradient is off by {spent / expected if expected else float('nan'):.4g}. "
                "Call backward once on each micro-batch's loss as it is: the denominator is already in it, "
                "also across micro-batches and ranks."
            )


def updates_of(prepared: "Prepared", num: int, together: str) -> Iterator[Update]:
    """Cut a prepared batch into optimiser steps; only the very first of its first pass still has the old policy."""
    _ = as_count(num, "updates", "num")
    if together not in ("group", "sequence"):
        raise SignalError(unknown_word("updates", "together", together, ("group", "sequence")))
    _refuse_second_step(prepared, num)
    levels = prepared.batch.levels
    if num == 1 and prepared.all_train:
        return _updates(prepared, [None])
    training = torch.where(prepared.trains)[0]
    unit = levels.group_of_episode[levels.episode_of_sequence[training]] if together == "group" else training
    names = cast("Tensor", torch.unique(unit))
    if num > max(len(names), 1):
        raise SignalError(
            f"updates: {num} optimiser steps from {len(names)} {together}s that train, so a step would have no data. "
            "Use fewer steps, or together='sequence'."
        )
    return _updates(prepared, [training[torch.isin(unit, chunk)] for chunk in names.tensor_split(num)])


def _updates(prepared: "Prepared", parts: Sequence[Tensor | None]) -> Iterator[Update]:
    """One update per part; None is the whole batch."""
    _refuse_second_step(prepared, len(parts))
    fresh = not prepared.passes
    prepared.passes.append(len(parts))
    whole = _whole(prepared)
    for place, chosen in enumerate(parts):
        everything = chosen is None or len(chosen) == whole.segments.num_sequences  # ascending: the batch itself
        yield Update(whole if everything else whole.take(cast("Tensor", chosen)), is_first=fresh and place == 0)


def _refuse_second_step(prepared: "Prepared", num: int) -> None:
    recipe = prepared.recipe
    if recipe.old == "current" and recipe.reads_old and (num > 1 or prepared.passes):
        raise SignalError(
            f"updates: recipe {recipe.name!r} has old = 'current', which follows the policy from step to step, so "
            "current/old is always 1 and a second step on the batch has no anchor. Use old = 'recompute'."
        )


def _whole(prepared: "Prepared") -> Slice:
    batch, fields = prepared.batch, prepared.fields
    if prepared.recipe.reads_token_key:
        key = token_key(batch.segments, batch.sequence_id, prepared.seed)
        fields = fields.adding({"token_key": Field(key, batch.segments)})
    return Slice(prepared.recipe, batch.segments.everyone, batch.segments, fields)


def token_key(segments: Segments, sequence_id: Tensor, seed: int) -> TokenIndex:
    """A hash of (seed, sequence id, token index) in 53 bits: random selection that does not depend on order or split.

    splitmix64's finaliser (Steele et al. 2014); the multipliers are its own, as signed 64-bit numbers.
    """
    place = (
        torch.arange(segments.num_tokens, device=sequence_id.device) - segments.first_token[segments.sequence_of_token]
    )
    offset = ((seed + 1) * 0x61C8864680B583EB + 2**63) % 2**64 - 2**63
    key = sequence_id[segments.sequence_of_token] * 0x5851F42D4C957F2D + place * 0x14057B7EF767814F + offset
    for shift, multiplier in ((30, -4658895280553007687), (27, -7723592293110705685)):
        key = (key ^ ((key >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
    return (key >> 11) & ((1 << 53) - 1)


def select(segments: Segments, chosen: Sequences) -> tuple[Segments, TokenIndex]:
    """The segments of some sequences, and where their tokens lie."""
    counts = segments.token_counts[chosen]
    total = int(counts.sum())
    cut = Segments.from_counts(counts, total)
    offset = segments.first_token[chosen] - cut.first_token
    return cut, torch.arange(total, device=chosen.device) + offset[cut.sequence_of_token]


def _cuts(counts: SequenceIndex, max_tokens: int | None, num: int | None) -> list[tuple[int, int]]:
    if num is not None:
        edges = [len(counts) * i // num for i in range(num + 1)]
        return list(pairwise(edges))
    assert max_tokens is not None
    cuts: list[tuple[int, int]] = []
    start = held = 0
    for i, count in enumerate(cast("list[int]", counts.tolist())):
        if i > start and held + count > max_tokens:
            cuts.append((start, i))
            start, held = i, 0
        held += count
    return [*cuts, (start, len(counts))]


def weight_sums(part: Slice) -> dict[str, Number]:
    """The sum of the weights of every term, by name: together, what an optimiser step has to spend."""
    sums = {name: _total(part.fields.held(name)) for name in part.fields if name.startswith("weight_")}
    if OBSERVED_SHARE in part.fields:
        share = as_torch(part.fields.held(OBSERVED_SHARE).values)
        sums["weight_observed"] = read_if_plain(share.sum(dtype=torch.float64))
    return sums


def _total(field: Field) -> Number:
    """The sum over tokens, in float64."""
    if not field.is_shared:
        return read_if_plain(field.values.sum(dtype=torch.float64))
    found = in_precision(field.values, torch.float64) @ field.segments.measures[:, 0]
    return found if isinstance(found, Tensor) else float(found)


def with_fields(part: Slice, **fields: Field) -> Slice:
    """A slice with more, or other, token fields."""
    return Slice(part.recipe, part.sequences, part.segments, part.fields.adding(fields))
