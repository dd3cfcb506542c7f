"""A property that is computed once: `functools.cached_property` without the lock that Python 3.11 takes on every first
read, which costs more than most of what is computed here."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):  # noqa: N801 - it is written as a decorator
    """Kept in the object's own dictionary, so that the next read does not come here."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute: Callable[[Any], Value] = compute
        self.name: str = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> "once[Value]": ...
    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...
    def __get__(self, owner: object | None, kind: type) -> "once[Value] | Value":
        if owner is None:
            return self
        value = self.compute(owner)
        owner.__dict__[self.name] = value
        return value
