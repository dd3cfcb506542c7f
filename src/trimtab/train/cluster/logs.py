"""The only place that writes what other nodes print into the run folder: logs/sampler_0.log, logs/rank_1.log, …"""

import threading
from datetime import UTC, datetime
from pathlib import Path

LOGS = "logs"
EVENTS = "cluster"
"""The log of what happened to the roles: placed, lost, started again."""


class Logs:
    """One file per role. Nothing here fails a run: a full disk is noticed by those who write what matters."""

    def __init__(self, folder: Path) -> None:
        self._folder: Path = folder / LOGS
        self._lock: threading.Lock = threading.Lock()
        self._last: dict[str, str] = {}

    def write(self, role: str, words: str) -> None:
        """Add what a role printed."""
        if not words:
            return
        with self._lock:
            self._last[role] = (self._last.get(role, "") + words)[-2000:]
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with (self._folder / f"{role.replace(' ', '_')}.log").open("a", encoding="utf-8") as file:
                    _ = file.write(words)
            except OSError:
                return

    def event(self, text: str) -> None:
        """Add a line to the log of events, with the time."""
        self.write(EVENTS, f"{datetime.now(UTC):%H:%M:%S} {text}\n")

    def last_words(self, role: str) -> str:
        """The last lines that a role printed."""
        with self._lock:
            lines = self._last.get(role, "").strip().splitlines()
        said = "\n".join(lines[-12:])
        return f"The last that it printed:\n{said}" if said else "It printed nothing."
