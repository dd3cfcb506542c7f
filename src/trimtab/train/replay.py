"""The only place that computes a recorded step again: the batch as the signal saw it, through its recipe or another.

Nothing is sampled and no model runs: the dump holds the current policy's numbers for each token at that time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import ConfigError
from trimtab.rollout.assemble import in_cells
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
from trimtab.train.identity import read_json

PER_TOKEN = ("logp_old", "logp_rollout", "logp_ref", "value_old", "version", "turn")


@dataclass(frozen=True)
class Dump:
    """One recorded batch: its fields, the running statistics before it, and the metrics that were logged."""

    step: int
    fields: Mapping[str, Tensor]
    state: SignalState
    metrics: Mapping[str, float]
    seed: int = 0
    """Of the signal's random selection at that step."""


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
        effects = {name: tuple(seen) for name, seen in meta["state"]["effects"].items()}
        state = SignalState(effects, int(meta["state"]["window"]))
        metrics = {name: value for name, value in meta["metrics"].items() if value is not None}
        return Dump(number, load_file(path), state, metrics, int(meta.get("seed", 0)))
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"replay: {path} or the JSON beside it is damaged ({error!r}), so step {number} cannot be computed again. "
            "Copy both files again, or replay another step."
        ) from error


def replay(dump: Dump, recipe: Recipe, *, updates_per_batch: int) -> Replayed:
    """Compute one step again. With the run's own recipe, every metric must equal the recorded one."""
    recorded = {*dump.fields, *(("value",) if "value_current" in dump.fields else ())}
    missing = sorted(recipe.needs - recorded)
    if missing:
        raise ConfigError(
            f"replay: recipe {recipe.name!r} needs {', '.join(missing)}, which the run's own recipe did not, so step "
            f"{dump.step} has no such numbers. Replay a recipe that needs only what the run recorded."
        )
    prepared, _ = prepare(batch_of(dump.fields), recipe, dump.state, version=dump.step, seed=dump.seed)
    metrics, losses = Metrics.empty(), list[float]()
    num_updates = min(updates_per_batch, prepared.num_training_groups)
    for update in prepared.updates(num_updates) if num_updates else ():
        result = _replay_update(update, dump.fields, recipe)
        metrics = metrics.merge(result[0])
        losses.append(result[1])
    values = prepared.metrics.merge(metrics).numbers()
    if losses:
        values["train/loss"] = sum(losses) / len(losses)
    return Replayed(values, _differences(dump.metrics, values))


def batch_of(fields: Mapping[str, Tensor]) -> SignalBatch:
    """A dump as the signal's batch."""
    trainable = fields["trainable"].split(cast("list[int]", fields["id_counts"].tolist()))
    tokens = {name: in_cells(fields[name], trainable) for name in PER_TOKEN if name in fields}
    return SignalBatch.from_list(
        trainable=list(trainable),
        reward=fields["reward"],
        group=fields["group"],
        scored=fields["scored"],
        ended=fields["ended"],
        sequence_id=fields["sequence_id"],
        value_after=fields.get("value_after"),
        **tokens,
    )


def _replay_update(update: Update, fields: Mapping[str, Tensor], recipe: Recipe) -> tuple[Metrics, float]:
    """One optimiser step's loss, from the log-probs that were recorded."""
    now = _of(fields["logp_current"], fields, update.sequences)
    known = update.is_first and "logp_old" in fields and not recipe.needs_entropy_now
    needs_now = recipe.needs_logp_now and not known
    entropy = _of(fields["entropy"], fields, update.sequences) if recipe.needs_entropy_now else None
    decided = decide(update, logp_now=now if needs_now else None, entropy_now=entropy)
    outs: list[Any] = []
    for micro in decided.split(max_tokens=update.num_tokens):
        given = {
            name: _of(fields[key], fields, micro.sequences) if key in fields else None
            for name, key in (("entropy", "entropy"), ("value", "value_current"))
        }
        outs.append(token_loss(micro, _of(fields["logp_current"], fields, micro.sequences), **given))
    result = step(outs)
    return result.metrics, float(result.loss)


def _of(flat: Tensor, fields: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
    """A flat field's values for these sequences, in their order."""
    parts = flat.split(cast("list[int]", fields["token_counts"].tolist()))
    return torch.cat([parts[index] for index in cast("list[int]", sequences.tolist())])


def _differences(recorded: Mapping[str, float], now: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    return {
        name: (recorded[name], value)
        for name, value in now.items()
        if name in recorded and recorded[name] != value and value == value
    }
