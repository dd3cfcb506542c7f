"""The only place that knows what a checkpoint holds: all that the rest of a run depends on, whole, by name.

Parameters and optimiser state are gathered from all ranks, so a run goes on at another number of ranks too.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.rollout.rollouts import Rollouts
from trimtab.signal import SignalState
from trimtab.train.learner import Learner
from trimtab.train.record.checkpoint import Checkpoint, write_checkpoint
from trimtab.train.run import Run, Tally
from trimtab.train.world import World, place, whole


def checkpoint(run: Run) -> None:
    """Write a checkpoint. The run can go on from it, bit for bit."""
    tensors = _learner_tensors(run.learner)
    if run.lead is None:
        return
    buffer, ready = run.lead.runtime.ready()
    tensors |= {"buffer": {} if ready is None else ready.tensors(), "random": {"torch": torch.get_rng_state()}}
    state = {
        "tally": {**asdict(run.tally), "seconds": run.elapsed},
        "buffer": buffer,
        "rollouts": None if ready is None else ready.head(),
        "signal": run.learner.signal.as_data(),
        "guard": run.learner.guard.state(),
    }
    run.lead.record.sync()
    saved = Checkpoint(run.tally.steps, run.run_id, tensors, state)
    _ = write_checkpoint(run.folder / "checkpoints", saved, keep=run.settings.keep_checkpoints)


def _learner_tensors(learner: Learner) -> dict[str, Mapping[str, Tensor]]:
    modules = {"model": learner.policy.model, "critic": learner.policy.critic}
    if learner.reference is not None:
        modules["reference"] = learner.reference.model
    tensors: dict[str, Mapping[str, Tensor]] = {
        name: {key: whole(value) for key, value in module.state_dict().items()} for name, module in modules.items()
    }
    return {**tensors, "optimizer": learner.optimizer.state()}


def share_checkpoint(saved: Checkpoint | None, world: World) -> Checkpoint:
    """What rank 0 read, on every rank. Each holds all of it for a moment."""
    if world.size == 1:
        assert saved is not None
        return saved
    flat: dict[str, Tensor] = {}
    head: dict[str, Any] | None = None
    if saved is not None:
        head = {"step": saved.step, "run_id": saved.run_id, "state": saved.state}
        flat = {f"{kind}/{name}": value for kind, held in saved.tensors.items() for name, value in held.items()}
    head, told = world.broadcast(head, flat)
    tensors: dict[str, dict[str, Tensor]] = {"model": {}, "critic": {}, "optimizer": {}, "buffer": {}}
    for key, value in told.items():
        kind, _, name = key.partition("/")
        tensors.setdefault(kind, {})[name] = value
    return Checkpoint(int(head["step"]), str(head["run_id"]), tensors, head["state"])


def restored_tally(state: Mapping[str, Any], step: int) -> Tally:
    """The tally as it was, without the evaluation of the next step: that will be made again."""
    tally = Tally(**state["tally"])
    tally.warnings = [(str(text), int(count)) for text, count in tally.warnings]
    tally.evaluations = [(int(at), float(accuracy)) for at, accuracy in tally.evaluations if at < step]
    return tally


def restore_learner(learner: Learner, saved: Checkpoint) -> None:
    """Parameters, optimiser and running statistics as they were, on any number of ranks."""
    fill(learner.policy.model, saved.tensors["model"])
    fill(learner.policy.critic, saved.tensors["critic"])
    if learner.reference is not None:
        fill(learner.reference.model, saved.tensors["reference"])
    learner.optimizer.restore(saved.tensors["optimizer"])
    learner.signal = SignalState.from_data(saved.state["signal"])
    learner.guard.restore(saved.state["guard"])
    learner.nonfinite_in_row = int(saved.state["tally"]["nonfinite_in_row"])
    torch.set_rng_state(saved.tensors["random"]["torch"])


@torch.no_grad()
def fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into a module's own, or into this rank's part of them."""
    for name, held in module.state_dict().items():
        _ = held.copy_(place(state[name], held))


def restored_rollouts(saved: Checkpoint) -> Rollouts | None:
    """What waited in the buffer."""
    head = saved.state["rollouts"]
    return None if head is None else Rollouts.read(saved.tensors["buffer"], head)
