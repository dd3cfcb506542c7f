"""The only place that notices two shapes which were not meant to meet: the sign of a wrong layout.

rewards - means.unsqueeze(1)                     the classic slip: [n] with [n, 1] gives [n, n]
torch.arange(width) == last.unsqueeze(1)         meant: every column is compared with one number per row
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from trimtab.sentinel.batch.case import CannotRepresent


def _spelled(*names: str) -> frozenset[str]:
    return frozenset(f"{under}{name}{under}" for name in names for under in ("", "__"))


_COMPARISONS = _spelled("lt", "le", "gt", "ge", "eq", "ne")
_PAIRWISE = _COMPARISONS | _spelled("add", "sub", "mul", "div", "and", "or") | {
    "__radd__", "__rsub__", "__rmul__", "__truediv__", "__rtruediv__", "true_divide", "pow", "__pow__", "minimum",
    "maximum", "min", "max", "where", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
}  # fmt: skip
"""Operations that broadcast."""


class Broadcast(CannotRepresent):
    """Two shapes met that were not meant to."""


class NoOuterProducts(TorchFunctionMode):
    """Notices an operation whose result is larger than each of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [one for one in args if isinstance(one, Tensor)]
        name = getattr(func, "__name__", "")
        pairwise = isinstance(out, Tensor) and len(given) > 1 and name in _PAIRWISE
        # [1, n] against [n, 1] is meant; [n] against [n, 1] is the classic slip.
        of_one_kind = len({one.ndim for one in given if one.ndim}) < 2
        grows = pairwise and not of_one_kind and out.numel() > max(one.numel() for one in given)
        if grows and not (name in _COMPARISONS and _is_about_places(given)):
            self.seen = self.seen or " with ".join(str(list(one.shape)) for one in given)
        return out


def _is_about_places(given: list[Tensor]) -> bool:
    """Whether places or names are compared with one number per row: whole numbers, or sizes that differ."""
    low, high = sorted(given, key=lambda one: one.ndim)[-2:]
    is_column = low.ndim == 1 and high.ndim == 2 and high.shape[-1] == 1
    return is_column and (not low.dtype.is_floating_point or low.shape[0] != high.shape[0])
