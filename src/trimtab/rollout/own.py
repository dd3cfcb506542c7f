"""The only place that builds a part of the user's own from `module:factory`: a task, an engine, a logger."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from trimtab.errors import ConfigError


def build(where: str, name: str, members: Sequence[str], *given: object, takes: str, like: str) -> Any:
    """What `name`, a factory given as `module:factory` or `file.py:factory`, makes; it must have these members.

    `takes` says what the factory is called with, `like` names the protocol, both for messages.
    """
    from trimtab.rollout.reward_worker import CannotLoad, error_text, locate

    try:
        made = cast("Callable[..., object]", locate(name))(*given)
    except CannotLoad as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # the factory is the user's own, and may raise anything
        raise ConfigError(
            f"{where}: {name} raised {error_text(error)}, so there is no {where}. Repair the factory; it is called "
            f"with {takes}."
        ) from error
    missing = [member for member in members if not hasattr(made, member)]
    if missing:
        raise ConfigError(
            f"{where}: {name} returned an object of type {type(made).__name__} without {', '.join(missing)}, so it "
            f"is not {'an' if where[0] in 'aeiou' else 'a'} {where}. Give it the members of {like}."
        )
    return made
