"""Another function in the place of the target's: the only place that replaces one while a binding runs.

A binding of ours calls a boundary, whose function is replaced. A binding of your own code calls your function itself.
Then the code of that function is replaced, and put back afterwards.
"""

import types
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from trimtab.sentinel.loading import Boundary

_PLAIN = 0x20 | 0x80 | 0x200
"""Flags of the code of generators and coroutines, which are not plain functions."""


def real_function(boundary: Boundary) -> Any:
    """The function of the target, also while another one stands in for it."""
    own = boundary.function
    if not _is_replaceable(own):
        return own
    copy = types.FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    return copy


@contextmanager
def standing_in(boundary: Boundary, function: Callable[..., Any]) -> Generator[None]:
    """While entered, this function is called instead of the target's, through the boundary or not."""
    own, code = boundary.function, getattr(boundary.function, "__code__", None)
    real, is_inside = real_function(boundary), False

    def instead(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        if is_inside:  # the target's function calls itself
            return real(*args, **kwargs)
        is_inside = True
        try:
            return function(*args, **kwargs)
        finally:
            is_inside = False

    boundary.function = instead
    if _is_replaceable(own):
        own.__code__ = _calling(instead)
    try:
        yield
    finally:
        boundary.function = own
        if _is_replaceable(own):
            own.__code__ = code


def _is_replaceable(function: Any) -> bool:
    """Whether its code can be replaced: plain Python, without names of an enclosing function."""
    is_function = isinstance(function, types.FunctionType)
    return is_function and not function.__closure__ and not function.__code__.co_flags & _PLAIN


_PLACE = "the function that is called"


def _calling(function: Callable[..., Any]) -> types.CodeType:
    """Code that calls this function with all its arguments. The function is one of its constants."""
    space: dict[str, Any] = {}
    exec(f"def calling(*args, **kwargs):\n    place = {_PLACE!r}\n    return place(*args, **kwargs)", space)
    code: types.CodeType = space["calling"].__code__
    return code.replace(co_consts=tuple(function if one == _PLACE else one for one in code.co_consts))
