"""A watch inside a framework's loss: the only place that opens one there, and that learns when a step is over.

A loss does not learn when the optimiser has stepped. torch tells: every optimiser of this process calls a hook.
"""

import atexit
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from trimtab.watch import Watch
from trimtab.watch.harmless import note

FOLDER = "TRIMTAB_WATCH"
"""The run folder, for losses that a framework finds by itself."""
UNKNOWN = -1
"""Optimiser steps since logp_old was computed, where a loss does not learn it: then the two are not compared."""


class Looking:
    """One framework's micro-batches. The watch is opened at the first one, in the process that trains."""

    def __init__(self, framework: str, folder: str | Path | None = None, **options: Any) -> None:
        self.framework: str = framework
        self.folder: Path = Path(folder or os.environ.get(FOLDER) or f"runs/{framework.lower()}")
        self.options: dict[str, Any] = options
        self.watch: Watch | None = None
        self._is_fed: bool = False

    def __reduce__(self) -> Any:
        """Frameworks send losses to other processes; what is open stays here."""
        return _again, (self.framework, str(self.folder), self.options)

    def open(self) -> Watch:
        """The watch of this process."""
        if self.watch is None:
            is_many = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if is_many else 0
            ranks = torch.distributed.get_world_size() if is_many else 1
            summary = f"{self.framework}'s own loss, watched and not changed."
            given: dict[str, Any] = {"about": {"recipe": {"name": self.framework, "summary": summary}}} | self.options
            self.watch = Watch(self.folder, where=self.framework, rank=rank, ranks=ranks, **given)
            _ = register_optimizer_step_post_hook(self._stepped)
            _ = atexit.register(self.watch.close)
        return self.watch

    def see(self, *, mask: Tensor, **given: Any) -> None:
        """One micro-batch; fields and facts as in `Watch.micro_batch`. It raises only where the watch is strict."""
        watch = self.open()
        facts: dict[str, Any] = {"updates": UNKNOWN} | given
        try:
            watch.micro_batch(mask=mask, **facts)
        except Exception as error:
            if watch.strict:
                raise
            note(watch, "micro_batch", error)
        self._is_fed = True

    def _stepped(self, *_given: Any) -> None:
        if self._is_fed and self.watch is not None:
            self._is_fed = False
            _ = self.watch.step()


def _again(framework: str, folder: str, options: dict[str, Any]) -> Looking:
    return Looking(framework, folder, **options)
