"""Arguments that a call wrote into. The only place that looks at tensors before and after a call.

Views of a case are new tensors, so a write into one of them leaves the case as it was. Torch counts writes itself.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor

from trimtab.sentinel.batch.case import Case


@contextmanager
def noting_writes(case: Case, inputs: Mapping[str, Any]) -> Generator[None]:
    """Add the names of the inputs that are written into meanwhile, if the case wants to know."""
    if case.written is None:
        yield
        return
    before = [(name, held, held._version) for name, held in _tensors(inputs)]  # pyright: ignore[reportPrivateUsage]
    yield
    case.written.update(name for name, held, count in before if held._version != count)  # pyright: ignore[reportPrivateUsage]


def _tensors(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((name, one) for one in cast("list[Any]", value) if isinstance(one, Tensor))
