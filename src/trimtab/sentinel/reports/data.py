"""The only place that knows how a report is stored: its schema, reading it back, and writing it.

A report is plain data. Numbers that JSON cannot hold are written as strings: "nan", "inf", "-inf".
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, cast

from typing_extensions import TypedDict  # pydantic accepts typing.TypedDict only from Python 3.12 on

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KIND = "trimtab_check"
VERSION = 1

Status = Literal[
    "holds", "bug", "suspect", "latent", "convention", "hygiene", "waived", "could not exercise", "could not run"
]  # fmt: skip
Severity = Literal["high", "medium", "low", "none"]
Teaching = Mapping[str, Mapping[str, str]]
"""For each invariant: statement, why, bug (a real one), repair."""


class Target(TypedDict):
    """What was checked: {"name": "areal", "version": "1.0.4", "commit": None, "path": None}."""

    name: str
    version: str | None
    commit: str | None
    path: str | None


class Boundary(TypedDict):
    """One piece of code of the target, how it was loaded, and which of its lines ran."""

    boundary: str
    """file:qualname, the file relative to the target's root."""
    how: Literal["cut", "import", "stubs"]
    stubs: list[str]
    stubs_used: list[str]
    first_line: int
    last_line: int
    executed: list[int]
    missed: list[int]


class SubjectData(TypedDict):
    """One function with one choice of options."""

    label: str
    name: str
    role: str | None
    boundary: str | None
    options: dict[str, Any]
    conventions: dict[str, Any]
    waived: dict[str, str]
    guessed: NotRequired[str]
    """For a binding that nobody wrote: role, argument = field and shape, and the `bind` that says the same."""
    seconds: NotRequired[float]
    """The time that all checks of this subject took."""
    callers: NotRequired[list[str]]
    """Places that call a function with a finding: `file:line in function`."""


class Unbound(TypedDict):
    """A function that was not found, or that does not look as expected."""

    subject: str
    looked_for: str
    reason: str


class Effect(TypedDict):
    """What the violation does to the training signal."""

    on: Literal["gradient", "value", "decision", "metric"]
    leaked_positions: list[int]
    relative_change: float | Literal["nan", "inf", "-inf"] | None


class Change(TypedDict):
    """One thing that was changed: {"field": "reward", "place": "sequence 2", "before": 0.5, "after": 100.0}."""

    field: str
    place: str
    before: Any
    after: Any


class ViolationData(TypedDict):
    """What went wrong on the smallest case."""

    what: str
    observed: Any
    expected: Any
    positions: list[int]
    effect: Effect | None
    condition: NotRequired[str]
    """What a real run must meet, for a latent finding."""
    result: NotRequired[str]
    """The result that is wrong."""
    leaf: NotRequired[str]
    """The input whose gradient is wrong; absent when the value is."""
    trigger: NotRequired[list[Change]]
    """What was changed, after which the results are those observed."""
    drawn: NotRequired[Literal["before", "after"]]
    """Whether the verdict's case is the one before the change (the default) or after it."""
    trigger_left_out: NotRequired[int]
    """Number of further changes that are not listed."""


class CaseData(TypedDict):
    """Two sequences, the first with an observation inside:

    {"kinds": ["paoa", "pa"], "tokens": {"logp_old": [6 numbers]}, "sequences": {"reward": [1.0, 0.0], "group": [0, 0]},
     "fill": 0.0, "side": "right", "extra_columns": 0}
    """

    kinds: list[str]
    tokens: dict[str, list[Any]]
    sequences: dict[str, list[Any]]
    fill: float | Literal["nan", "inf", "-inf"]
    side: Literal["left", "right"]
    extra_columns: int


class VerdictData(TypedDict):
    """One invariant checked on one subject."""

    id: str
    """The same finding has the same id in every run."""
    subject: str
    invariant: str
    status: Status
    exercised: int
    seconds: float
    reason: str
    severity: Severity
    violation: ViolationData | None
    case: CaseData | None
    consequence_of: NotRequired[str]
    """The invariant whose violation causes this one: without the trigger of that one, this one vanishes."""


class FindingData(TypedDict):
    """Verdicts with one cause: one function, one result, one kind of trigger. For readers of the JSON."""

    id: str
    status: Status
    severity: Severity
    headline: str
    function: str
    place: str | None
    """file:line of the function."""
    cause: str
    result: str
    needs: str
    """What a real run must meet."""
    invariants: list[str]
    subjects: list[str]
    verdicts: list[str]
    """Ids of the verdicts, the worst first."""
    replay: str


class Report(TypedDict):
    """Everything a run of `trimtab check` found, schema version 1."""

    kind: Literal["trimtab_check"]
    version: Literal[1]
    target: Target
    trimtab: str
    torch: str
    python: str
    seed: int
    examples: int
    command: str
    seconds: float
    boundaries: list[Boundary]
    subjects: list[SubjectData]
    could_not_bind: list[Unbound]
    verdicts: list[VerdictData]
    comparison: NotRequired[dict[str, Any]]
    not_bound: NotRequired[list[Unbound]]  # come across in a whole package or repository, and not bound by a guess
    findings: NotRequired[list[FindingData]]
    """The bugs, suspects, latent bugs and hygiene among the verdicts, one entry per cause, the worst first."""


def dump(report: Report) -> str:
    """JSON that is identical for identical reports: sorted keys, strings for nan and infinity, a final newline."""
    return json.dumps(finite(report), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def load(path: Path) -> Report:
    """Read a report. Any other file is refused, with the place and the reason."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"report {path}: cannot be read ({error.strerror}). Give a file written with --format json."
        ) from error
    except ValueError as error:
        raise ConfigError(f"report {path}: is not JSON ({error}). Write it again with --format json.") from error
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if fields.get("kind") != KIND:
        raise ConfigError(
            f"report {path}: its kind is {fields.get('kind')!r}, not {KIND!r}, so it is another kind of file. "
            "Give a file that `trimtab check --format json --out FILE` wrote."
        )
    if fields.get("version") != VERSION:
        raise ConfigError(
            f"report {path}: its version is {fields.get('version')!r}; this trimtab reads version {VERSION}. "
            "Write it again with this version of trimtab."
        )
    _check(path, fields)
    return cast("Report", fields)


def _check(path: Path, found: object) -> None:
    """Refuse data that does not fit the schema. Unknown keys are allowed."""
    from pydantic import ValidationError

    try:
        _ = _schema().validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(
            f"report {path}: {place}: {first['msg']}{others}, so the file was damaged or edited. "
            "Write it again with --format json."
        ) from error


@cache
def _schema() -> "TypeAdapter[Report]":
    from pydantic import TypeAdapter

    return TypeAdapter(Report)


def finite(value: object) -> object:
    """Data that JSON can hold, with strings for numbers that it cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): finite(content) for key, content in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(content) for content in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written to a file
    return value
