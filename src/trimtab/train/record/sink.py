"""The only place that sends metrics to other people's dashboards: TensorBoard, wandb, trackio. All are optional.

`metrics.jsonl` is the record; a sink is a convenience. A missing package is refused at once.
Anything that fails later is reported once, and the run goes on without that sink. A resumed run trains some steps
again: TensorBoard is told to hide its old points, and the others get only steps that they have not seen, so that no
curve has a point twice.
"""

import contextlib
import importlib
import inspect
import io
import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trimtab.errors import ConfigError, MissingExtra, unknown_name
from trimtab.rollout.own import build

PROJECT = "trimtab"
SENT = "sinks.json"
"""File in the run folder: the run's name at the dashboards, and the last step that each was sent."""


class Sink(Protocol):
    """Where numbers of a step go."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


@dataclass
class Sinks:
    """All sinks of a run. `said` holds what went wrong with any of them, for the summary."""

    open: dict[str, Sink] = field(default_factory=dict[str, Sink])
    said: list[str] = field(default_factory=list[str])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite numbers of one step."""
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value) and name != "step"}
        for name in list(self.open):
            self._guard(name, "log", lambda sink: sink.log(step, numbers))

    def close(self) -> None:
        """Close all sinks. A second call does nothing."""
        for name in list(self.open):
            with _silence():
                self._guard(name, "close", lambda sink: sink.close())
        self.open.clear()

    def drop(self, name: str, doing: str, error: Exception) -> None:
        """Report the failure once, and go on without this sink: a dashboard must not end a run."""
        _ = self.open.pop(name, None)
        text = (
            f"log_to: {name} failed to {doing} ({type(error).__name__}: {error}), so it gets no more metrics of this "
            "run. Training goes on; metrics.jsonl has them all."
        )
        self.said.append(text)
        warnings.warn(text, stacklevel=3)

    def _guard(self, name: str, doing: str, call: Callable[[Sink], None]) -> None:
        try:
            call(self.open[name])
        except Exception as error:  # a dashboard can raise anything; an interrupt still ends the run
            self.drop(name, doing, error)


def open_sinks(
    names: Iterable[str], folder: Path, *, resumed_step: int | None = None, config: Mapping[str, object]
) -> Sinks:
    """Open the named sinks. `resumed_step` is the first step that a resumed run will log, None for a new run."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name in OPENERS:
            _require(name)
        elif ":" not in name:
            raise ConfigError(unknown_name("log_to", name, [*sorted(OPENERS), "module:factory"]))
    sinks = Sinks()
    sent = Sent.read(folder, fresh=resumed_step is None)
    for name in wanted:
        try:
            with _silence():
                opener = OPENERS.get(name) or partial(Own.open, name)
                sinks.open[name] = opener(folder, resumed_step, dict(config), sent)
        except ConfigError:  # a logger that was never one is a mistake in the settings
            raise
        except Exception as error:  # no account, no disk, an unknown version: no reason to end a run
            sinks.drop(name, "open", error)
    return sinks


@dataclass
class Sent:
    """What was sent to dashboards, on disk: {"name": "run-1f2e3d4c", "steps": {"wandb": 41}}."""

    path: Path
    name: str
    steps: dict[str, int]

    @classmethod
    def read(cls, folder: Path, *, fresh: bool) -> "Sent":
        """A new run gets a name of its own, so that folders of equal names stay apart at a dashboard."""
        path = folder / SENT
        if not fresh and path.is_file():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                held = json.loads(path.read_text(encoding="utf-8"))
                return cls(path, str(held["name"]), {str(k): int(v) for k, v in held["steps"].items()})
        return cls(path, f"{folder.resolve().name}-{secrets.token_hex(4)}", {})

    def claim_step(self, sink: str, step: int) -> bool:
        """Note a step as sent; False if it was sent before. It is noted first: a step may be lost, never sent twice."""
        if step <= self.steps.get(sink, -1):
            return False
        self.steps[sink] = step
        draft = self.path.with_name(f".{self.path.name}.draft")
        _ = draft.write_text(json.dumps({"name": self.name, "steps": self.steps}), encoding="utf-8")
        _ = draft.replace(self.path)
        return True


@dataclass
class TensorBoard:
    """Event files in `tensorboard/` of the run folder; `tensorboard --logdir RUN` shows them."""

    writer: Any

    @classmethod
    def open(cls, folder: Path, resumed_step: int | None, config: dict[str, object], sent: Sent) -> "TensorBoard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=resumed_step, flush_secs=10)
        if resumed_step is None:
            writer.add_text("config", f"```json\n{json.dumps(config, indent=2, default=str)}\n```", global_step=0)
        return cls(writer)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        self.writer.close()


@dataclass
class Wandb:
    """Weights & Biases; offline in the run folder unless the user is logged in (`wandb sync` sends it later)."""

    run: Any
    sent: Sent

    @classmethod
    def open(cls, folder: Path, resumed_step: int | None, config: dict[str, object], sent: Sent) -> "Wandb":
        wandb: Any = importlib.import_module("wandb")
        mode = os.environ.get("WANDB_MODE") or ("online" if _logged_in(wandb) else "offline")
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.resolve().name,
            id=sent.name,
            resume="allow",
            dir=str(folder),
            config=config,
            mode=mode,
            settings=wandb.Settings(silent=True, console="off"),
        )
        return cls(run, sent)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.sent.claim_step("wandb", step):
            self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


@dataclass
class Trackio:
    """Hugging Face's local dashboard, in its own storage (TRACKIO_DIR); `trackio show` opens it."""

    trackio: Any
    sent: Sent

    @classmethod
    def open(cls, folder: Path, resumed_step: int | None, config: dict[str, object], sent: Sent) -> "Trackio":
        trackio: Any = importlib.import_module("trackio")
        takes = inspect.signature(trackio.init).parameters
        quiet = {name: False for name in ("embed", "auto_log_gpu", "auto_log_cpu") if name in takes}
        resume = "never" if resumed_step is None else "allow"
        _ = trackio.init(project=PROJECT, name=sent.name, config=config, resume=resume, **quiet)
        return cls(trackio, sent)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.sent.claim_step("trackio", step):
            self.trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        self.trackio.finish()


@dataclass
class Own:
    """A logger of the user's own, from `module:factory`: called with the run folder and the settings."""

    name: str
    made: Sink
    sent: Sent

    @classmethod
    def open(cls, name: str, folder: Path, resumed_step: int | None, config: dict[str, object], sent: Sent) -> "Own":
        takes = "the run folder and the settings"
        made = build("logger", name, ("log", "close"), folder, config, takes=takes, like="trimtab.train.Sink")
        return cls(name, made, sent)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.sent.claim_step(self.name, step):
            self.made.log(step, metrics)

    def close(self) -> None:
        self.made.close()


OPENERS: dict[str, Callable[[Path, int | None, dict[str, object], Sent], Sink]] = {
    "tensorboard": TensorBoard.open,
    "wandb": Wandb.open,
    "trackio": Trackio.open,
}


def _require(name: str) -> None:
    try:
        _ = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f'log_to: {name} is not installed, so its metrics would go nowhere: pip install "trimtab[{name}]"'
        ) from error


def _logged_in(wandb: Any) -> bool:
    """Whether there are credentials. It never asks for any."""
    try:
        return bool(wandb.login(prompt=False))
    except TypeError:  # versions before `prompt` would ask
        return bool(os.environ.get("WANDB_API_KEY"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@contextlib.contextmanager
def _silence() -> Any:
    """Discard what a dashboard prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
