"""What a call asks of torch: the only place that counts operations, kernels and host waits.

A host wait is where a program on a GPU stops until the device has finished: somebody reads a number back, or an
operation whose result has a size that only the device knows. Everything is counted on CPU tensors, alike for
everyone; nothing is said about time. Of Trimtab, what would run on a device is counted: on the CPU itself, numpy reads
numbers where they lie.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.signal.tensors import as_on_a_device

WAITS = (
    "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "_unique", "_unique2",
    "unique_consecutive", "bincount", "allclose",
)  # fmt: skip
"""Operations that always make the host wait. `item`, `int(…)`, `bool(…)` and `if tensor:` are _local_scalar_dense."""
READS = (Tensor.tolist, Tensor.numpy, Tensor.cpu)
"""What reads a whole tensor back; on CPU tensors these never reach an operation, so they are seen one level higher."""
NO_KERNEL = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_local_scalar_dense",
    "lift_fresh",
)


class Counted(TorchDispatchMode):
    """Counts what reaches torch while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operations[name] += 1
        self.kernels += name not in NO_KERNEL and not _is_view(func)
        if _waits(name, args, kwargs or {}):
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.operations.total()

    @property
    def asks(self) -> int:
        return self.waits.total()


class _Reads(TorchFunctionMode):
    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self.waits[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def counted(call: Callable[[], Any]) -> Counted:
    """What one call asks for; a compiled function is counted as it is written."""
    # Importing the compiler takes seconds; where nobody has, nothing is compiled.
    uncompiled = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with uncompiled, as_on_a_device(), Counted() as seen, _Reads(seen.waits):
        _ = call()
    return seen


def _waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name in WAITS:
        return True
    if name == "index":
        return any(_is_mask(one) for one in args[1])
    if name in ("index_put", "index_put_", "_unsafe_index_put"):
        # One value for all marked places is a masked_fill, which needs no count of them.
        return any(_is_mask(one) for one in args[1]) and args[2].numel() > 1
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None and isinstance(args[0], Tensor)
    if name == "segment_reduce":
        return not kwargs.get("unsafe", False)
    if name == "_to_copy":
        return kwargs.get("device") == torch.device("cpu") and args[0].device.type != "cpu"
    return False


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _is_view(func: Any) -> bool:
    """Whether the result is another look at the argument's memory."""
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)
