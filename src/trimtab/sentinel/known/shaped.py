"""The numbers of a formula in the shape of a result."""

from torch import Tensor

from trimtab.sentinel.binding.subject import Result
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known


def as_shaped(known: Known, cells: Cells, result: Result) -> Tensor | None:
    """The numbers of a formula in the shape of a result; None where it has none there."""
    try:
        expected = known.of(cells)
    except (KeyError, RuntimeError, IndexError, ValueError):
        return None
    if result.level == "cell":
        return expected if expected.shape == result.value.shape else None
    if result.level == "token" and expected.ndim >= 2:
        expected = cells.case.from_padded(expected, with_prompt=False)
    elif result.level == "token" and expected.ndim == 1:
        expected = expected[cells.case.segments.sequence_of_token]
    if result.level == "sequence" and expected.ndim == 2:
        expected = expected[:, 0]
    return expected if expected.shape == result.value.shape else None
