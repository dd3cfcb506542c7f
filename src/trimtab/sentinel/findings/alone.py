"""Stand-ins for the parts of a cluster: one process, options that are off. Needs only torch, as runners do."""

import types
from typing import Any

import torch


class Lenient(types.SimpleNamespace):
    """Options as attributes. An option that is not set is off, like a parser's default."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def get(self, name: str, default: Any = None) -> Any:
        """The option as a mapping would return it."""
        return vars(self).get(name, default)

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __contains__(self, name: str) -> bool:
        return name in vars(self)


class Settings(types.SimpleNamespace):
    """A config object that can be read by attribute, by `get` or by key."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def keys(self) -> list[str]:
        return list(vars(self))


class Record(dict[str, Any]):
    """A batch object: tensors by key, rows by slice, and the few attributes that readers need."""

    def __init__(self, *given: Any, **tensors: Any) -> None:
        super().__init__(*given, **tensors)
        self.metadata: dict[str, Any] = {}

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, slice):
            return type(self)({name: value[chosen] for name, value in self.items()})
        return super().__getitem__(chosen)

    @property
    def batch_size(self) -> tuple[int, ...]:
        return (len(next(iter(self.values()))),)


class Another:
    """A class of the target that a function tests for, and that none of its arguments is."""


class OneProcess:
    """A parallel state of one process: every size is 1, every rank 0, every group none, every stage the last."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = 1 if "size" in name else 0 if "rank" in name else True if name.startswith("is_") else None
        return lambda *_, **__: answer


class Alone:
    """torch.distributed for one process: a reduction returns its input unchanged."""

    ReduceOp = torch.distributed.ReduceOp
    ProcessGroup = object

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = {"get_world_size": 1, "get_rank": 0, "is_initialized": False, "is_available": False}.get(name)
        return lambda *_, **__: answer


STAND_INS: dict[str, type] = {one.__name__: one for one in (OneProcess, Alone, Settings, Record, Another)}
"""Stand-ins that a reproduction file may name."""
