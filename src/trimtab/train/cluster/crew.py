"""What the roles of one run on a cluster share: Ray, the opening parcel, the newest version, reward workers, logs."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import EngineError
from trimtab.rollout.publication import Publication
from trimtab.rollout.reward import open_scorer
from trimtab.rollout.task import open_task
from trimtab.rollout.wire import pack
from trimtab.train.cluster.logs import Logs
from trimtab.train.cluster.parcel import MODEL, folder_bytes, settings_bytes
from trimtab.train.cluster.ranks import placed_ranks
from trimtab.train.cluster.rewards import Distributed, RewardRole
from trimtab.train.cluster.session import import_ray
from trimtab.train.cluster.start import start_actor

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

LOOK_SECONDS = 2.0
"""How often reward workers are looked at: where they are, and what they printed."""


class Crew:
    """One run's roles, as the learner's process sees them."""

    def __init__(self, settings: "TrainSettings", folder: Path) -> None:
        """`folder` holds the model that samplers start from; the run folder is its parent."""
        self.ray: Any = import_ray()
        self.settings: TrainSettings = settings
        self.health_seconds: float = settings.cluster.health_seconds
        self.logs: Logs = Logs(folder.parent)
        self._proofs: Path = folder.parent / "proofs.jsonl"
        self._lock: threading.Lock = threading.Lock()
        self._kept: tuple[Publication, Any] | None = None
        self._ending: threading.Event = threading.Event()
        self._looked: dict[str, str] = {}
        head = {"settings": settings.model_dump(mode="json")}
        files = {**folder_bytes(folder, MODEL), **settings_bytes(settings)}
        self.opening: Any = self.put(pack(head, files))
        self.rewards: list[Any] = []
        _ = open_scorer(settings.task, open_task(settings.task, settings.seed), self._hire)
        if self.rewards:
            threading.Thread(target=self._look, daemon=True, name="reward workers").start()

    def start(self, role: type, resources: Mapping[str, float], **how: Any) -> Any:
        return start_actor(self.ray, role, resources, **how)

    def put(self, message: bytes) -> Any:
        """Put a message into the object store. Ray waits for ever where it is full; here it is given up."""
        found: list[Any] = []

        def put() -> None:
            try:
                found.append(self.ray.put(message))
            except self.ray.exceptions.RayError as error:
                found.append(error)

        thread = threading.Thread(target=put, daemon=True, name="object store")
        thread.start()
        thread.join(self.health_seconds)
        if not found or isinstance(found[0], Exception):
            why = f"{len(message)} bytes found no room within {self.health_seconds:g} s"
            raise EngineError(self.full(self.why(found[0]) if found else why))
        return found[0]

    def put_once(self, publication: Publication, message: Callable[[], bytes]) -> Any:
        """The same for a version, once for all samplers; it stays until the next one comes."""
        with self._lock:
            if self._kept is None or self._kept[0] is not publication:
                self._kept = None
                self._kept = (publication, self.put(message()))
            return self._kept[1]

    def placement(self) -> dict[str, str]:
        """Where ranks and reward workers are."""
        return {**placed_ranks(), **self._looked}

    def keep_proofs(self, lines: str) -> None:
        if lines:
            with self._lock, self._proofs.open("a", encoding="utf-8") as file:
                _ = file.write(lines)

    def why(self, error: Exception) -> str:
        """Ray's reason in a few words."""
        text = str(error)
        for sign, words in REASONS.items():
            if sign in text:
                return words
        return (text.strip() or type(error).__name__).splitlines()[0][:200]

    def full(self, why: str) -> str:
        """What to say when the object store has no room."""
        size = self.ray.cluster_resources().get("object_store_memory", 0)
        return (
            f"cluster: the object store is full ({size / 1e6:.0f} MB over all nodes), so new parameters cannot reach "
            "the samplers. Give it more room (train.cluster.object_store_mb, or ray start --object-store-memory) or "
            f"free what others keep there; the run can be resumed from its last checkpoint. ({why})"
        )

    def close(self) -> None:
        """End the reward workers. Samplers end one by one."""
        self._ending.set()
        for handle in self.rewards:
            with contextlib.suppress(Exception):
                self.ray.get(handle.close.remote(), timeout=LOOK_SECONDS)
            with contextlib.suppress(Exception):
                self.ray.kill(handle)
        self.opening = self._kept = None

    def _hire(self, target: str, names: tuple[str, ...], options: Mapping[str, object]) -> Distributed:
        """Place reward workers, as many as the task asks for. Ray starts a lost one again."""
        task = self.settings.task
        sent = {name: one for name, one in settings_bytes(self.settings).items() if name.startswith("task.reward/")}
        file = next(iter(sent), "")
        head = {"target": target, "file": file, "names": list(names), "options": dict(options)}
        opening = pack({**head, "seconds": task.reward_seconds}, sent)  # itself, not its place: a restart needs it
        self.rewards = [
            self.start(
                RewardRole, self.settings.cluster.reward, given=(opening,), restarts=self.settings.cluster.restarts,
                groups={"look": 1}, methods={"look": "look"},
            )
            for _ in range(task.reward_workers)
        ]  # fmt: skip
        return Distributed(self.rewards)

    def _look(self) -> None:
        """See where reward workers are, and keep what they print, until the run is over."""
        while not self._ending.wait(LOOK_SECONDS):
            for number, handle in enumerate(self.rewards):
                with contextlib.suppress(self.ray.exceptions.RayError):
                    self._see(f"reward {number}", self.ray.get(handle.look.remote(), timeout=self.health_seconds))

    def _see(self, role: str, told: Mapping[str, str]) -> None:
        self.logs.write(role, told["words"])
        if self._looked.get(role) != told["place"]:
            again = "was lost, and is now" if role in self._looked else "is"
            self.logs.event(f"{role} {again} on {told['place']}")
            self._looked[role] = told["place"]


REASONS = {
    "its node has died": "its node is gone",
    "node died": "its node is gone",
    "The actor is dead because its owner has died": "its owner is gone",
    "ActorUnavailable": "its node cannot be reached",
    "worker process has died": "its process was killed or ended",
    "worker died": "its process was killed or ended",
    "killed by `ray.kill": "it was ended",
}
"""Signs in Ray's own, long sentences."""
