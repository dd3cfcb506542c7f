"""The only place that says what a number or a file name in a run file may be."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

MOST = 2**31 - 1
"""The largest count. More would not fit where torch and numpy count."""


def _refuse_bool(value: Any) -> Any:
    """Python counts true as 1. Nobody who writes `lr = true` means 1.0."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    return value


def _refuse_bad_name(path: Path) -> Path:
    """Refuse a name that no file system takes, before a run asks for it."""
    if "\0" in str(path) or len(str(path)) > 4000 or any(len(part.encode()) > 255 for part in path.parts):
        raise ValueError("a name of a file has at most 255 bytes between two slashes, 4000 characters in all, no NUL")
    return path


Int = Annotated[int, BeforeValidator(_refuse_bool)]
Float = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
Count = Annotated[Int, Field(ge=1, le=MOST)]
Natural = Annotated[Int, Field(ge=0, le=MOST)]
Seed = Annotated[Int, Field(ge=0, le=2**63 - 1)]
Rate = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]
Share = Annotated[Float, Field(gt=0, le=1)]
File = Annotated[Path, AfterValidator(_refuse_bad_name)]
