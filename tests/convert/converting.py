"""A converted configuration, held against its own run file."""

from dataclasses import replace
from pathlib import Path

from trimtab.config import load_run
from trimtab.convert import Converted, convert


def converted(framework: str, *flags: str, folder: Path | None = None) -> Converted:
    """What becomes of these options; with a folder, the run file is written and read back as the same recipe."""
    found = convert(framework, "", flags)
    if folder is not None:
        path = folder / "run.toml"
        path.write_text(found.toml)
        again = load_run(path).build_recipe()
        words = {"name": again.name, "source": again.source, "summary": again.summary}
        assert again == replace(found.recipe, **words)
    return found


def told(found: Converted, key: str) -> tuple[str, str]:
    """The head and the comment that an option stands under."""
    return next((one.status, one.note) for one in found.told if one.given.key == key)


def stages(found: Converted) -> list[str]:
    """The loss, then its corrections, as text."""
    return [str(found.recipe.loss), *map(str, found.recipe.correction)]
