"""The only place that computes a recorded step again: the batch as the signal saw it, through its recipe or another.

Nothing is sampled and no model runs: the dump holds the current policy's numbers for each token at that time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from trimtab.errors import ConfigError, SignalError
from trimtab.rollout.rollouts import WHOLE, Rollouts
from trimtab.signal import (
    Metrics,
    Recipe,
    SignalBatch,
    SignalState,
    Update,
    decide,
    prepare,
    step,
    token_loss,
)
from trimtab.train.record.identity import read_json

SAID = ("logp_old", "logp_ref", "value_old", "value_after")
"""What the models said before the batch, if the recipe asked for it."""


@dataclass(frozen=True)
class Dump:
    """One recorded batch: its fields, the running statistics before it, and the metrics that were logged."""

    step: int
    rollouts: Rollouts
    fields: Mapping[str, Tensor]
    """What the models said about each token, and which update and which part of it trained each sequence."""
    state: SignalState
    metrics: Mapping[str, float]
    seed: int = 0
    """Of the signal's random selection at that step."""

    @property
    def recorded(self) -> frozenset[str]:
        """What a recipe may need of it."""
        value = ("value",) if "value_current" in self.fields else ()
        return frozenset({*self.rollouts.tensors(), "ended", *self.fields, *value})

    @property
    def batch(self) -> SignalBatch:
        """The batch as the signal saw it."""
        said: dict[str, Any] = {name: self.fields[name] for name in SAID if name in self.fields}
        return self.rollouts.batch(dtype=self.fields["logp_current"].dtype, **said)


@dataclass(frozen=True)
class Replayed:
    """The result of computing a step again."""

    metrics: dict[str, float]
    differences: dict[str, tuple[float, float]]
    """Metrics that differ from the record: the recorded value and the new one."""


def read_dump(folder: Path, number: int) -> Dump:
    """The dump of one step, from `batches/` or, for a step that was refused, `nonfinite/`."""
    for kind in ("batches", "nonfinite"):
        path = folder / kind / f"step_{number:04d}.safetensors"
        if path.is_file():
            return _read(path, number)
    dumped = sorted(path.stem.removeprefix("step_") for path in folder.glob("*/step_*.safetensors"))
    there = f"steps {', '.join(dumped[:8])}{', …' if len(dumped) > 8 else ''}" if dumped else "none"
    raise ConfigError(
        f"replay: {folder} holds no batch of step {number} (it holds {there}), so there is nothing to compute again. "
        "Batches are written with train.dump_batches=true."
    )


def _read(path: Path, number: int) -> Dump:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    meta = read_json(path.with_suffix(".json"))
    try:
        state = SignalState.from_data(meta["state"])
        metrics = {name: value for name, value in meta["metrics"].items() if value is not None}
        tensors = load_file(path)
        rollouts = Rollouts.read(tensors, meta["rollouts"])
        said = {name: value for name, value in tensors.items() if name not in WHOLE}
        return Dump(number, rollouts, said, state, metrics, int(meta.get("seed", 0)))
    except (SafetensorError, SignalError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"replay: {path} or the JSON beside it is damaged ({error!r}), so step {number} cannot be computed again. "
            "Copy both files again, or replay another step."
        ) from error


def replay(dump: Dump, recipe: Recipe, *, updates_per_batch: int) -> Replayed:
    """Compute one step again. With the run's own recipe, every metric must equal the recorded one."""
    missing = sorted(recipe.needs - dump.recorded)
    if missing:
        raise ConfigError(
            f"replay: recipe {recipe.name!r} needs {', '.join(missing)}, which the run's own recipe did not, so step "
            f"{dump.step} has no such numbers. Replay a recipe that needs only what the run recorded."
        )
    prepared, _ = prepare(dump.batch, recipe, dump.state, version=dump.step, seed=dump.seed)
    metrics, losses = Metrics.empty(), list[float]()
    num_updates = min(updates_per_batch, prepared.num_training_groups)
    for update in prepared.updates(num_updates) if num_updates else ():
        result = _replay_update(update, dump, recipe)
        metrics = metrics.merge(result[0])
        losses.append(result[1])
    values = prepared.metrics.merge(metrics).numbers()
    if losses:
        values["train/loss"] = sum(losses) / len(losses)
    return Replayed(values, _differences(dump.metrics, values))


def _replay_update(update: Update, dump: Dump, recipe: Recipe) -> tuple[Metrics, float]:
    """One optimiser step's loss, from the log-probs that were recorded."""
    fields = dump.fields

    def said(name: str, sequences: Tensor) -> Tensor | None:
        return fields[name][dump.rollouts.places(sequences)] if name in fields else None

    known = update.is_first and "logp_old" in fields and not recipe.needs_entropy_now
    needs_now = recipe.needs_logp_now and not known
    decided = decide(
        update,
        logp_now=said("logp_current", update.sequences) if needs_now else None,
        entropy_now=said("entropy", update.sequences) if recipe.needs_entropy_now else None,
    )
    outs: list[Any] = []
    for micro in decided.split(parts=_parts(fields["part"], update.sequences)):
        logp, entropy, value = (said(name, micro.sequences) for name in ("logp_current", "entropy", "value_current"))
        outs.append(token_loss(micro, cast(Tensor, logp), entropy=entropy, value=value))
    result = step(outs)
    return result.metrics, float(result.loss)


def _parts(part: Tensor, sequences: Tensor) -> list[Tensor]:
    """The sequences of one update as they were cut; under another recipe, those that did not train come last."""
    mine = part[sequences]
    return [
        sequences[mine == number]
        for number in (*sorted(set(mine[mine >= 0].tolist())), -1)
        if bool((mine == number).any())
    ]


def _differences(recorded: Mapping[str, float], now: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    return {
        name: (recorded[name], value)
        for name, value in now.items()
        if name in recorded and recorded[name] != value and value == value
    }
