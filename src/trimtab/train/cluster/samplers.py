"""The only place that puts samplers on nodes: a `Worker` on the other side of Ray, and the crew that they belong to.

One thread listens and is the health check, another sends: parameters first, where a newer version replaces one that is
not sent yet, then orders. A version is put into the object store once for all samplers.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import EngineError
from trimtab.rollout.publication import Publication
from trimtab.rollout.wire import pack, unpack
from trimtab.train.cluster.crew import Crew
from trimtab.train.cluster.role import own_versions
from trimtab.train.cluster.sampler_role import SamplerRole
from trimtab.train.cluster.start import end_process
from trimtab.train.runtimes.message import load_message, read_said
from trimtab.train.runtimes.worker import Failed, Gone, Hear, Loaded, Noted

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

HEAR_SECONDS = 1.0
"""A sampler with nothing to say gives a sign of life this often."""
PLACE_SECONDS = 20.0
"""A sampler that waits for a node for this long is told about, and again each time it has passed."""


def place_samplers(settings: "TrainSettings", folder: Path) -> "Placing":
    """Workers on the nodes of the cluster, which start from the model in `folder`."""
    return Placing(Crew(settings, folder))


class Placing:
    """Makes the sampler of a seat, and its successors."""

    def __init__(self, crew: Crew) -> None:
        self._crew: Crew = crew

    def __call__(self, seat: int, hear: Hear) -> "Placed":
        return Placed(self._crew, seat, hear)

    def placement(self) -> dict[str, str]:
        return self._crew.placement()

    def close(self) -> None:
        self._crew.close()


class Placed:
    """One life of a sampler on a node."""

    def __init__(self, crew: Crew, seat: int, hear: Hear) -> None:
        self._crew: Crew = crew
        self._role: str = f"sampler {seat}"
        self._hear: Hear = hear
        self._outbox: Publication | None = None
        self._orders: deque[bytes] = deque()
        self._is_open: bool = False
        self._is_closing: bool = False
        self._changed: threading.Condition = threading.Condition()
        self.place: str = ""
        self._where: tuple[str, int] = ("", 0)
        self._has_loaded: bool = False
        self._actor: Any = crew.start(
            SamplerRole, crew.settings.cluster.sampler, groups={"hear": 1}, methods={"hear": "hear"}
        )
        for target in (self._listen, self._send):
            threading.Thread(target=target, daemon=True, name=f"{self._role} {target.__name__}").start()

    def order(self, tickets: Sequence[int]) -> None:
        with self._changed:
            self._orders.append(pack({"do": "collect", "tickets": list(tickets)}))
            self._changed.notify_all()

    def publish(self, publication: Publication) -> None:
        with self._changed:
            self._outbox = publication
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Ask it to end what it started, then end it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        ray = self._crew.ray
        with contextlib.suppress(Exception):
            if self._is_open:
                ray.get(self._actor.close.remote(), timeout=seconds)
        with contextlib.suppress(Exception):
            ray.kill(self._actor)

    def _listen(self) -> None:
        """Hand on what it says, until it is closed or lost."""
        ray = self._crew.ray
        try:
            self._wait_for_node()
            while not self._is_closing:
                message: bytes = ray.get(self._actor.hear.remote(HEAR_SECONDS), timeout=self._crew.health_seconds)
                self._take(message)
        except ray.exceptions.GetTimeoutError:
            end_process(ray, *self._where)
            self._lose(f"has not answered for {self._crew.health_seconds:g} s")
        except ray.exceptions.RayError as error:
            self._lose(f"is lost ({self._crew.why(error)})")

    def _wait_for_node(self) -> None:
        """Wait until it is placed; people are told when that takes long. A node may be added later."""
        ray = self._crew.ray
        asked, waited = self._actor.place.remote(), 0.0
        while not self._is_closing and not ray.wait([asked], timeout=HEAR_SECONDS)[0]:
            waited += HEAR_SECONDS
            if waited % PLACE_SECONDS < HEAR_SECONDS:
                wanted = self._crew.settings.cluster.sampler
                self._hear(Noted(f"{self._role} has waited for {waited:.0f} s for a node that has {wanted} free"))
        if self._is_closing:
            return
        told: dict[str, str] = ray.get(asked)
        self.place, self._where = told["place"], (told["node"], int(told["pid"]))
        self._crew.logs.event(f"{self._role} is on {self.place}")
        if told["versions"] != own_versions():
            self._hear(
                Failed(
                    f"cluster: {self._role} on {self.place} has {told['versions']}, and this process has "
                    f"{own_versions()}, so their numbers may differ. Install the same versions on every node."
                )
            )
            return
        self._actor.open.remote(self._crew.opening, self._crew.rewards)
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def _take(self, message: bytes) -> None:
        head, tensors = unpack(message)
        self._crew.logs.write(self._role, str(head["words"]))
        if not head["say"]:
            return
        self._crew.keep_proofs(str(head.get("proofs", "")))
        said = read_said(head, tensors)
        if isinstance(said, Loaded) and not self._has_loaded:
            self._has_loaded = True
            self._crew.logs.event(f"{self._role} samples, first with version {said.version}")
        self._hear(said)

    def _send(self) -> None:
        """Send until it is closed. The listener reports a lost one."""
        ray = self._crew.ray
        try:
            while (message := self._next()) is not None:
                ray.get(self._actor.tell.remote(message))  # one after the other: the newest version goes first
        except EngineError as error:
            self._hear(Failed(str(error)))
        except ray.exceptions.RayError:
            return

    def _next(self) -> Any:
        with self._changed:
            while not (self._is_open and (self._outbox is not None or self._orders)) and not self._is_closing:
                _ = self._changed.wait()
            if self._is_closing:
                return None
            publication, self._outbox = self._outbox, None
            if publication is None:
                return self._orders.popleft()
        return self._crew.put_once(publication, lambda: pack(*load_message(publication)))

    def _lose(self, why: str) -> None:
        if self._is_closing:
            return
        self._crew.logs.event(f"{self._role} {why}")
        where = f" on {self.place}" if self.place else ""
        self._hear(Gone(f"{self._role}{where} {why}", self._crew.logs.last_words(self._role)))
