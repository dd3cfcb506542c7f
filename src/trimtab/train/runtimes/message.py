"""The only place that says how a worker's words travel: as messages of `rollout/wire.py`, by pipe or through Ray."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts
from trimtab.train.runtimes.worker import Failed, Gone, Loaded, Noted, Said, Sampled

Message = tuple[dict[str, Any], Mapping[str, Tensor] | None]


def said_message(said: Said) -> Message:
    """What a worker says, as a head and tensors."""
    if isinstance(said, Loaded):
        return {"say": "loaded", "version": said.version, "decode": said.decode}, None
    if isinstance(said, Sampled):
        head = {"say": "rollouts", "head": said.rollouts.head(), "seconds": said.seconds}
        return head, said.rollouts.tensors()
    if isinstance(said, Gone):
        return {"say": "gone", "text": said.text, "detail": said.detail}, None
    return {"say": "note" if isinstance(said, Noted) else "error", "error": said.text}, None


def read_said(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Said:
    """What `said_message` made."""
    if head["say"] == "loaded":
        return Loaded(int(head["version"]), str(head.get("decode", "")))
    if head["say"] == "rollouts":
        return Sampled(Rollouts.read(tensors, head["head"]), float(head["seconds"]))
    if head["say"] == "gone":
        return Gone(str(head["text"]), str(head["detail"]))
    return (Noted if head["say"] == "note" else Failed)(str(head["error"]))


def load_message(publication: Publication) -> Message:
    """The order to use these parameters."""
    return {"do": "load", "version": publication.version, "digest": publication.digest}, publication.state


def read_publication(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Publication:
    """What `load_message` made, with the checksum that its publisher gave."""
    return Publication.received(tensors, int(head["version"]), str(head["digest"]))
