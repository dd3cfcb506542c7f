"""What the watch says: the only place that knows the form of a finding. A finding is data, never an exception."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run, in one sentence: where, what with its value, so what, what to do.

    Finding("loss_divided_twice", 3, "TRL: every token's gradient is 0.25 of …, so …. Return the loss …")
    """

    name: str
    step: int
    """The optimiser step at which it was seen first, from 0."""
    text: str

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def sentence(where: str, what: str, so: str, do: str) -> str:
    """`<where>: <what with value>, so <consequence>. <What to do>.`"""
    return f"{where}: {what}, so {so}. {do}."


def new(found: Iterable[Finding], known: Iterable[Finding]) -> list[Finding]:
    """Those whose name was not said before: each kind is said once."""
    said, fresh = {one.name for one in known}, list[Finding]()
    for one in found:
        if one.name not in said:
            said.add(one.name)
            fresh.append(one)
    return fresh
