"""A class as a function: the only place that makes objects for a binding that a person wrote.

bind(PolicyLoss, role="policy_loss", options={"clip_eps": 0.2})                  the constructor takes clip_eps
bind(built(Trainer, "loss"), role="policy_loss", options={"clip_eps": 0.2})      … and another method is called
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from trimtab.errors import TrimtabError


def built(cls: type, method: str = "__call__") -> Callable[..., Any]:
    """A function that makes an object with the arguments of the constructor and calls its method with the others.

    Every call makes a new object, so that options of the constructor can be varied like any other.
    """
    shown = "forward" if method == "__call__" and issubclass(cls, nn.Module) else method
    body = getattr(cls, shown, None)
    if not inspect.isfunction(body):
        raise TrimtabError(f"built: {cls.__name__} has no method {method!r}, so an object of it cannot be called.")
    making = _by_name(list(inspect.signature(cls).parameters.values()))
    taking = _by_name(list(inspect.signature(body).parameters.values())[1:])
    both = sorted(making.keys() & taking.keys())
    if both:
        raise TrimtabError(
            f"built: {cls.__name__} and its {shown} both take {', '.join(both)}, so one name has two meanings. "
            "Bind a function of your own that makes the object and calls it."
        )

    def call(**given: Any) -> Any:
        made = cls(**{name: value for name, value in given.items() if name in making})
        return getattr(made, method)(**{name: value for name, value in given.items() if name not in making})

    _ = functools.update_wrapper(call, body)
    call.__name__ = cls.__name__ if method == "__call__" else f"{cls.__name__}.{method}"
    call.__signature__ = inspect.Signature([*taking.values(), *making.values()])  # type: ignore[attr-defined]
    return call


def _by_name(parameters: list[inspect.Parameter]) -> dict[str, inspect.Parameter]:
    """Parameters that can be given by name."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.replace(kind=p.KEYWORD_ONLY) for p in parameters if p.kind not in several}
