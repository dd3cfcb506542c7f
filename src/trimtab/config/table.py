"""The base of every table of settings: made in Python or read from a file, a wrong value is one of our sentences.

This is the only place that turns pydantic's findings into words.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from trimtab.config.plain import cut, shown
from trimtab.errors import ConfigError, suggestion


class Table(BaseModel):
    """Settings never change once they are made. An unknown key is an error; one value stands for a list of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, given: Any) -> Any:
        """`log_to = "wandb"` is `log_to = ["wandb"]`, for every setting that takes several."""
        if not isinstance(given, dict):
            return given
        table = cast("dict[str, Any]", given)
        several = {name for name, field in cls.model_fields.items() if get_origin(field.annotation) in (tuple, list)}
        alone = {n: v for n, v in table.items() if n in several and not isinstance(v, list | tuple | None)}
        return {**table, **{name: [value] for name, value in alone.items()}}

    if not TYPE_CHECKING:  # a type checker reads the fields; this only changes what a refusal looks like

        def __init__(self, /, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise ConfigError(sentences(type(self).__name__, error, type(self))) from error

        # pydantic's own mark: a table inside another is read without this, so that its path stays whole.
        __init__.__pydantic_base_init__ = True


def sentences(where: str, error: ValidationError, root: type[BaseModel], beside: Iterable[str] = ()) -> str:
    """Everything that is wrong with a table, one line each. `beside`: tables whose keys a person may have meant."""
    return "\n".join(_sentence(where, problem, root, beside) for problem in error.errors())


def _sentence(where: str, problem: Any, root: type[BaseModel], beside: Iterable[str]) -> str:
    """One finding of pydantic's as one sentence of ours: the key, the value, the choices."""
    is_unknown = problem["type"] == "extra_forbidden"
    *parents, leaf = [str(part) for part in problem["loc"]] or [""]
    # The last part of an unknown key is the user's word, whatever it is called.
    path = [part for part in parents if not _is_type_name(part)]
    path += [leaf] if is_unknown or not _is_type_name(leaf) else []
    key = cut(".".join(path))
    if is_unknown:
        here = known_keys(root, path[:-1])
        said = suggestion(path[-1], [*here, *(f"{name}.{one}" for name in beside for one in known_keys(root, [name]))])
        hint = f"; {said}{'' if said.endswith('?') else '.'}" if said else "."
        return f"{where}: there is no key {key!r}{hint} Known here: {', '.join(here)}."
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return f"{where}: {message}."
    if problem["type"] in ("model_type", "dict_type"):
        return f"{where}: {key} = {shown(problem['input'])} is not a table of keys. Write {key}.KEY=VALUE."
    if problem["type"] == "missing":
        return f"{where}: {key} is missing. {_meaning(root, path)}"
    return f"{where}: {key} = {shown(problem['input'])} is not possible: {message[:1].lower()}{message[1:]}."


def _is_type_name(part: str) -> bool:
    """pydantic puts the tried member of a union into the path; it is not a key of the file."""
    return part in {"EarlyStop", "bool", "int", "float", "str"} or part.startswith(
        ("literal", "function-", "constrained", "none")
    )


def _meaning(root: type[BaseModel], path: list[str]) -> str:
    """What a missing key is for, in the words of its own description."""
    field = (_table(root, path[:-1]) or root).model_fields.get(path[-1])
    return f"{path[-1]}: {field.description}" if field and field.description else "Add it."


def known_keys(root: type[BaseModel], path: list[str]) -> list[str]:
    """The keys that the table at `path` takes."""
    model = _table(root, path)
    return sorted(model.model_fields) if model else []


def _table(root: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    model = root
    for key in path:
        field = model.model_fields.get(key)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return None
        model = annotation
    return model
