"""Where a result or its gradient is read at the boundary: the only place that writes places of reproduction files."""

from collections.abc import Sequence

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.trace import Element, Recorded, elements, holders, narrowed
from trimtab.sentinel.loading import Boundary


def places(
    subject: Subject,
    boundary: Boundary,
    name: str,
    leaf: str | None,
    case: Case,
    index: Sequence[int] | None,
    run: Recorded,
    offset: int,
) -> list[Data]:
    """Where the compared numbers are read at the boundary: one place per call, in order."""
    found = elements(subject, boundary, case, name)
    if found is None:
        return []
    if leaf is not None:
        return gradient_place(subject, boundary, case, leaf, found, index, run, offset)
    chosen = found if index is None else [found[i] for i in index]
    return [place(part, run, offset) for part in runs(chosen)]


def runs(chosen: Sequence[Element]) -> list[list[Element]]:
    """Group neighbours with the same call and source."""
    parts: list[list[Element]] = []
    for one in chosen:
        if parts and parts[-1][0][:2] == one[:2]:
            parts[-1].append(one)
        else:
            parts.append([one])
    return parts


def place(part: Sequence[Element], run: Recorded, offset: int) -> Data:
    call, of, _ = part[0]
    source = run.returned[call] if of == "returned" else run.arguments[call]
    path, index = narrowed(source, [position for _, _, position in part])
    return {"call": call + offset, "of": of, "path": path, "index": index}


def gradient_place(
    subject: Subject,
    boundary: Boundary,
    case: Case,
    leaf: str,
    found: list[Element],
    index: Sequence[int] | None,
    run: Recorded,
    offset: int,
) -> list[Data]:
    """The gradient of the result at some tokens of a leaf, where one call has both."""
    parts = runs(found)
    held = holders(subject, boundary, case, leaf, run)
    wanted = list(range(case.tokens[leaf].numel())) if index is None else list(index)
    if held is None or len(parts) != 1 or any(len(held.get(token, [])) != 1 for token in wanted):
        return []
    at = [held[token][0] for token in wanted]
    call = parts[0][0][0]
    if any(one[0] != call for one in at):
        return []
    summed = place(parts[0], run, offset)
    path, places = narrowed(run.before[call], [position for _, _, position in at])
    return [
        {
            "call": call + offset,
            "of": "gradient",
            "from": summed["of"],
            "path": summed["path"],
            "elements": summed["index"],
            "with_respect_to": path,
            "index": places,
        }
    ]
