"""`trimtab explain` on words: our settings and fields, and what other frameworks call them."""

from collections.abc import Iterator

from pydantic import BaseModel
from rich.console import Console

from trimtab.cli.console import bold
from trimtab.config import RunFile
from trimtab.lexicon import Alias, aliases, meanings
from trimtab.signal.batch import FIELDS

KINDS = {"field": "a field of a batch", "setting": "a setting", "recipe": "a recipe", "metric": "a metric"}


def is_word(name: str) -> bool:
    """Whether it is a key of a run file or another framework's word, and so no module to import."""
    return bool(meanings(name)) or any(name == key for key, _ in settings())


def show_word(name: str, console: Console) -> bool:
    """Say what a word stands for, here and elsewhere; False if nobody here knows it."""
    own = [(key, text) for key, text in settings() if name in (key, key.rpartition(".")[2])]
    for key, text in own:
        console.print(bold(key, f"  setting of a run file\n  {text}\n{_elsewhere(key)}"))
    if name in FIELDS:
        where = "field of a batch (SignalBatch.from_padded, from_list, from_packed; trimtab.loss)"
        console.print(bold(name, f"  {where}\n{_elsewhere(name)}"))
    foreign = meanings(name)
    if foreign:
        console.print(bold(name, "  a word of other frameworks"))
        for one in foreign:
            console.print(f"  {_line(one)}")
        console.print("")
    return bool(own or foreign or name in FIELDS)


def _elsewhere(ours: str) -> str:
    """What other frameworks call it, one line."""
    found = [f"{one.framework} {one.theirs}" for one in aliases() if one.ours == ours]
    return f"  elsewhere: {', '.join(found)}\n" if found else ""


def settings() -> Iterator[tuple[str, str]]:
    """Every key of a run file, with its sentence and its default."""
    for top, field in RunFile.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _table(field.annotation, top)
        else:
            yield top, _sentence(field.description, field.default)


def _table(model: type[BaseModel], above: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        key = f"{above}.{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _table(field.annotation, key)
        else:
            yield key, _sentence(field.description, None if above == "signal" else field.default)


def _sentence(description: str | None, default: object) -> str:
    text = " ".join((description or "").split())
    return text if default is None else f"{text} Default: {default}."


def _line(one: Alias) -> str:
    """One meaning, and where to read on."""
    note = f" ({one.note})" if one.note else ""
    return f"{one.framework}: {KINDS[one.kind]}, here {one.ours}{note}"
