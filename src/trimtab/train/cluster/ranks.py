"""The only place that makes a learner group on a cluster: this process is rank 0, the others are placed by Ray.

Rank 0 has the run folder, so no other node needs to see it. What the others need comes as a parcel: settings, the
model folder, data files. They run the same code as under torchrun, and meet at an address of rank 0's node.
"""

import contextlib
import json
import os
import socket
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.config import parse_run
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, RankError, TrimtabError
from trimtab.processor import limit_instructions
from trimtab.rollout.wire import pack, unpack
from trimtab.train.cluster.logs import Logs
from trimtab.train.cluster.parcel import model_bytes, settings_bytes, settings_here, write_parcel
from trimtab.train.cluster.role import Scratch, Words, here, own_versions
from trimtab.train.cluster.start import end_process, start_actor
from trimtab.train.record.identity import Identity

if TYPE_CHECKING:
    from trimtab.train.cluster.session import Session

LOOK_SECONDS = 2.0
MEET = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
_PLACED: dict[str, str] = {}
"""Where the ranks of this process's run are, for its summary."""


def placed_ranks() -> dict[str, str]:
    """Where the ranks of the run are that this process leads."""
    return dict(_PLACED)


class RankRole:
    """A rank above 0, on a node."""

    def __init__(self) -> None:
        limit_instructions()
        self._scratch: Scratch = Scratch()
        self._words: Words = Words(self._scratch.folder)

    def look(self) -> dict[str, str]:
        """Where it is, and what was printed since the last call."""
        return {**here(), "words": self._words.fresh()}

    def run(self, opening: bytes, meet: Mapping[str, str]) -> dict[str, str]:
        """Train beside the other ranks to the end; what went wrong is returned, not raised."""
        from trimtab.train.opening import Leave
        from trimtab.train.show.progress import Silent
        from trimtab.train.whole import go_on, train_run

        os.environ.update(meet)
        head, files = unpack(opening)
        try:
            write_parcel(files, self._scratch.folder)
            given = TrainSettings.model_validate_json(json.dumps(head["settings"]))
            settings = settings_here(given, self._scratch.folder)
            recipe = parse_run(head["origin"], "the run file").build_recipe()
            if head["identity"] is None:
                _ = train_run(settings, recipe, Silent())
            else:
                told = head["identity"]
                identity = Identity(Path(told["folder"]), told["config"], told["manifest"])
                _ = go_on(identity, settings, recipe, Silent(), Leave())
        except RankError as error:
            return {"lost": str(error)}
        except TrimtabError as error:
            return {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}
        return {}

    def close(self) -> None:
        self._scratch.close()


class Group:
    """The placed ranks of one attempt."""

    def __init__(self, session: "Session", settings: TrainSettings, logs: Logs | None) -> None:
        self._ray: Any = session.ray
        self._settings: TrainSettings = settings
        self._logs: Logs | None = logs
        self._ending: threading.Event = threading.Event()
        self._kept: dict[int, str] = {}
        self._where: dict[int, tuple[str, int]] = {}
        self._running: dict[int, Any] = {}
        self.actors: dict[int, Any] = {
            rank: start_actor(self._ray, RankRole, settings.cluster.rank, groups={"look": 1}, methods={"look": "look"})
            for rank in range(1, settings.cluster.ranks)
        }

    def wait_for_nodes(self, say: "Any") -> None:
        """Wait until every rank is placed, and compare versions; people are told when that takes long."""
        for rank, actor in self.actors.items():
            asked, waited = actor.look.remote(), 0
            while not self._ray.wait([asked], timeout=LOOK_SECONDS)[0]:
                waited += 1
                if waited % 10 == 0:
                    wanted = self._settings.cluster.rank
                    say(f"rank {rank} has waited for {LOOK_SECONDS * waited:.0f} s for a node that has {wanted} free")
            try:
                told: dict[str, str] = self._ray.get(asked)
            except self._ray.exceptions.RayError as error:
                raise RankError(f"cluster: rank {rank} was lost before it began ({_first_line(error)}).") from error
            if told["versions"] != own_versions():
                raise ConfigError(
                    f"cluster: rank {rank} on {told['place']} has {told['versions']}, and this process has "
                    f"{own_versions()}, so their numbers may differ. Install the same versions on every node."
                )
            _PLACED[f"rank {rank}"] = told["place"]
            self._where[rank] = (told["node"], int(told["pid"]))
            say(f"rank {rank} is on {told['place']}")

    def start(self, opening: bytes, meet: Mapping[str, str]) -> None:
        parcel = self._ray.put(opening)
        self._running = {
            rank: actor.run.remote(parcel, {**meet, "RANK": str(rank)}) for rank, actor in self.actors.items()
        }
        threading.Thread(target=self._look, daemon=True, name="ranks").start()

    def note_folder(self, logs: Logs) -> None:
        """From now on there is a run folder for what they print."""
        self._logs = logs
        for role, place in _PLACED.items():
            logs.event(f"{role} is on {place}")

    def why(self) -> str:
        """What ranks that have ended say about it; those that were lost say nothing."""
        for rank, running in self._running.items():
            done, _ = self._ray.wait([running], timeout=LOOK_SECONDS)
            with contextlib.suppress(self._ray.exceptions.RayError):
                told: dict[str, str] = self._ray.get(done[0]) if done else {}
                if "error" in told:
                    return f"rank {rank}: {told['error']}"
        return ""

    def finished(self) -> None:
        """After a run that came to its end: let the ranks return before they are ended."""
        with contextlib.suppress(Exception):
            self._ray.wait(list(self._running.values()), num_returns=len(self._running), timeout=10.0)

    def close(self) -> None:
        self._ending.set()
        for rank, actor in self.actors.items():
            with contextlib.suppress(Exception):
                self._keep(rank, self._ray.get(actor.look.remote(), timeout=LOOK_SECONDS))
            with contextlib.suppress(Exception):
                self._ray.kill(actor)  # it may be in a collective, so it is not asked

    def _look(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            for rank, actor in self.actors.items():
                try:
                    self._keep(rank, self._ray.get(actor.look.remote(), timeout=self._settings.cluster.health_seconds))
                except self._ray.exceptions.GetTimeoutError:
                    end_process(self._ray, *self._where[rank])  # the others then lose it, and say so
                    return
                except self._ray.exceptions.RayError:
                    continue

    def _keep(self, rank: int, told: Mapping[str, str]) -> None:
        """Keep what it printed, also before there is a run folder."""
        self._kept[rank] = self._kept.get(rank, "") + told["words"]
        if self._logs is not None:
            self._logs.write(f"rank {rank}", self._kept.pop(rank))


@contextmanager
def learner_group(
    session: "Session",
    settings: TrainSettings,
    origin: Mapping[str, object] | None,
    identity: Identity | None,
    say: Any,
) -> Generator[Group]:
    """Ranks 1 and up run while this is open, and this process is rank 0. With one rank there is nothing to start."""
    if settings.cluster.ranks > 1 and not origin:
        raise ConfigError(
            "cluster: the recipe was made in Python, so other nodes cannot build it. Name it in a run file, or set "
            "train.cluster.ranks=1."
        )
    _PLACED.clear()
    context = session.ray.get_runtime_context()
    _PLACED["rank 0"] = f"node {context.get_node_id()[:8]} ({socket.gethostname()}), pid {os.getpid()}"
    group = Group(session, settings, None)
    before = {name: os.environ.get(name) for name in MEET}
    try:
        if group.actors:
            group.wait_for_nodes(say)
            host = session.ray.util.get_node_ip_address()
            size = str(settings.cluster.ranks)
            meet = {"WORLD_SIZE": size, "MASTER_ADDR": host, "MASTER_PORT": str(_free_port(host)), "LOCAL_RANK": "0"}
            group.start(_opening(settings, origin, identity), meet)
            os.environ.update({**meet, "RANK": "0"})
        yield group
        group.finished()
    finally:
        group.close()
        for name, value in before.items():
            _ = os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _opening(settings: TrainSettings, origin: Mapping[str, object] | None, identity: Identity | None) -> bytes:
    told = None
    if identity is not None:
        told = {"folder": str(identity.folder), "config": identity.config, "manifest": identity.manifest}
    head = {"settings": settings.model_dump(mode="json"), "origin": origin, "identity": told}
    return pack(head, {**model_bytes(settings), **settings_bytes(settings)})


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
