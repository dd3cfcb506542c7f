"""The live guard: cheap invariants on any running trainer. One `with` block per step; alarms are data.

    guard = Guard(every=50)
    with guard.step(batch={"advantages": adv, "old_log_probs": old}, loss=loss_of_rows, rows=len(adv)) as seen:
        metrics = train_on(batch)
        seen.metrics(metrics, ranges={"clipfrac": (0.0, 1.0)})
        seen.effects({"tis": changed_fraction})          # exactly 0 or 1 over a window: it is on and does nothing
        seen.spent(decided.check_spent)
    for alarm in guard.alarms: log(alarm.text)

The guard never raises by itself and never touches gradients; `strict=True` raises at the first alarm.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import SignalError

TOLERANCE = 1e-4
"""Above this relative difference, the loss value of a batch and that of its halves differ by more than rounding."""


@dataclass(frozen=True)
class Alarm:
    """One broken invariant at one step."""

    step: int
    invariant: str
    text: str


@dataclass
class Guard:
    """Watches steps and keeps alarms, each kind once per subject.

    every    how often the split check runs, in steps; 0 for never
    window   number of steps at exactly 0 or 1 after which a decision counts as inert
    combine  how the loss values of parts combine into that of the whole: "sum", or "mean" weighted by rows
    """

    every: int = 50
    window: int = 50
    combine: str = "sum"
    strict: bool = False
    alarms: list[Alarm] = field(default_factory=list[Alarm])
    steps: int = 0
    _effects: dict[str, deque[float]] = field(default_factory=dict[str, "deque[float]"])
    _said: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    @contextmanager
    def step(
        self,
        *,
        batch: Mapping[str, Tensor] | None = None,
        loss: Callable[[Tensor], Tensor] | None = None,
        rows: int = 0,
    ) -> Generator["Step"]:
        """One optimiser step: nothing may write to `batch`; `loss(rows)` returns the loss value of some rows."""
        self.steps += 1
        held = _states(batch or {})
        seen = Step(self)
        if loss is not None:
            seen.split(loss, rows)
        yield seen
        self._compare(batch or {}, held)

    def raise_alarm(self, invariant: str, about: str, text: str) -> None:
        """Keep an alarm. The same alarm about the same subject is kept once."""
        if (invariant, about) in self._said:
            return
        self._said.add((invariant, about))
        alarm = Alarm(self.steps, invariant, f"step {self.steps}: {text}. trimtab explain {invariant}")
        self.alarms.append(alarm)
        if self.strict:
            raise SignalError(f"guard: {alarm.text}")

    def state(self) -> dict[str, object]:
        """The state for a checkpoint, as JSON."""
        effects = {name: list(seen) for name, seen in self._effects.items()}
        return {"steps": self.steps, "said": sorted(self._said), "effects": effects}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Earlier alarms are not raised again."""
        self.steps = int(state["steps"])
        self._said = {(invariant, about) for invariant, about in state["said"]}
        self._effects = {name: deque(seen, maxlen=self.window) for name, seen in state["effects"].items()}

    @property
    def is_split_due(self) -> bool:
        """Whether the split check runs at this step."""
        return self.every > 0 and (self.steps - 1) % self.every == 0

    def _compare(self, fields: Mapping[str, Tensor], held: Mapping[str, tuple[object, ...]]) -> None:
        for name, values in fields.items():
            if _state(values) != held[name]:
                self.raise_alarm("no_aliasing", name, f"the step wrote to its input {name} in place")

    def _split(self, loss: Callable[[Tensor], Tensor], rows: int) -> None:
        if rows < 2:
            return
        everything = torch.arange(rows)
        cut = max(1, rows // 3)
        parts = [everything[:cut], everything[cut:]]
        with torch.no_grad():
            whole = float(loss(everything))
            pieces = [float(loss(part)) for part in parts]
        weights = [1.0, 1.0] if self.combine == "sum" else [len(part) / rows for part in parts]
        total = sum(w * p for w, p in zip(weights, pieces, strict=True))
        if not abs(total - whole) <= TOLERANCE * max(1.0, abs(whole)):
            text = f"{rows} rows give a loss of {whole:.6g}, cut into {cut} and {rows - cut} they give {total:.6g}"
            self.raise_alarm("split", "loss", text)

    def watch_effect(self, name: str, effect: float) -> None:
        """The effect of a decision at this step: the fraction of tokens that it changed."""
        seen = self._effects.setdefault(name, deque(maxlen=self.window))
        seen.append(effect)
        if len(seen) == self.window and (set(seen) == {0.0} or set(seen) == {1.0}):
            did = "nothing" if seen[-1] == 0.0 else "the same to every token"
            self.raise_alarm("options_live", name, f"{name} is switched on and did {did} for {self.window} steps")


@dataclass(frozen=True)
class Step:
    """The interface of the guard for a trainer during one step."""

    guard: Guard

    @contextmanager
    def unwritten(self, fields: Mapping[str, Tensor]) -> Generator[None]:
        """Watch tensors that exist only inside the step, such as a micro-batch's: nobody may write to them here."""
        held = _states(fields)
        yield
        self.guard._compare(fields, held)  # pyright: ignore[reportPrivateUsage]

    def split(self, loss: Callable[[Tensor], Tensor], rows: int) -> None:
        """As the step's own `loss`, for a trainer that knows it only inside the step; runs when it is due."""
        if self.guard.is_split_due:
            self.guard._split(loss, rows)  # pyright: ignore[reportPrivateUsage]

    def metrics(self, values: Mapping[str, float], *, ranges: Mapping[str, tuple[float, float]] | None = None) -> None:
        """Check metrics as they will be logged: finite, and inside their ranges. Our own metrics need no range."""
        for name, value in values.items():
            low, high = (ranges or {}).get(name) or _known_range(name)
            if not math.isfinite(value):
                self.guard.raise_alarm("metric_truth", name, f"{name} is {value}")
            elif not low - 1e-6 <= value <= high + 1e-6:
                text = f"{name} is {value:.6g}, outside of its range [{low:g}, {high:g}]"
                self.guard.raise_alarm("metric_truth", name, text)

    def effects(self, fractions: Mapping[str, float]) -> None:
        """Note the fraction of tokens that each correction or option changed at this step."""
        for name, effect in fractions.items():
            self.guard.watch_effect(name, float(effect))

    def spent(self, check: Callable[[], object]) -> None:
        """`decided.check_spent`: check that the used weights add up."""
        try:
            check()
        except SignalError as error:
            self.guard.raise_alarm("denominator", "spent", str(error))


def _known_range(name: str) -> tuple[float, float]:
    from trimtab.signal.metric_names import declared

    spec = declared(name)
    return (-math.inf, math.inf) if spec is None else (spec.low, spec.high)


def _states(fields: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    return {name: _state(values) for name, values in fields.items()}


def _state(values: Tensor) -> tuple[object, ...]:
    """A value that changes when a tensor is written to: its version counter, or its content if it has none."""
    if values.is_inference():
        return (float(values.double().sum()), float(values.double().square().sum()))
    return (values._version,)  # pyright: ignore[reportPrivateUsage]
