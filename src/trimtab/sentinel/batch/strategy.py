"""Random batches as a hypothesis strategy, for our own search and for your property tests."""

import torch
from hypothesis import strategies as st

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import FLAGS, SEQUENCE_VALUES, TOKEN_VALUES, Number, build


@st.composite
def _sequences(draw: st.DrawFn, reads: frozenset[str] | None) -> tuple[bytes, dict[str, bytes]]:
    """One sequence: its shape, and one byte per value that is read. Shrinking removes a sequence as a whole."""
    shape = draw(st.binary(max_size=5)) or bytes(1)
    sizes = {name: len(shape) + 1 for name in TOKEN_VALUES} | dict.fromkeys(SEQUENCE_VALUES, 1)
    read = {name: size for name, size in sizes.items() if reads is None or name in reads}
    return shape, {name: draw(st.binary(min_size=size, max_size=size)) for name, size in read.items()}


@st.composite
def cases(draw: st.DrawFn, reads: frozenset[str] | None = None) -> Case:
    """Small batches: one to three groups of one to three sequences, up to five tokens each, values on a coarse grid.

    Only fields in `reads` vary. A smaller byte gives a rounder number, so shrinking ends at few and round numbers.
    """
    groups = draw(st.lists(st.lists(_sequences(reads), min_size=2, max_size=3), min_size=1, max_size=3))
    rows = [row for group in groups for row in group]
    kinds = tuple(("p", *("aao"[byte % 3] for byte in shape)) for shape, _ in rows)

    def column(name: str, value: Number, sizes: list[int]) -> torch.Tensor:
        drawn = [byte for (_, found), size in zip(rows, sizes, strict=True) for byte in found.get(name, bytes(size))]
        numbers = torch.tensor([value(byte) for byte in drawn], dtype=torch.float64)
        return numbers.bool() if name in FLAGS else numbers

    return build(
        kinds,
        group=[g for g, group in enumerate(groups) for _ in group],
        tokens={name: column(name, value, [len(k) for k in kinds]) for name, value in TOKEN_VALUES.items()},
        sequences={name: column(name, value, [1] * len(kinds)) for name, value in SEQUENCE_VALUES.items()},
    )
