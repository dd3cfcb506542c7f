"""The only place that waits for a batch: rank 0 gets it from the runtime, and every rank gets it from rank 0."""

from collections.abc import Callable
from typing import Any

from trimtab.errors import SignalError
from trimtab.rollout.rollouts import Rollouts
from trimtab.train.run import Lead, Run
from trimtab.train.runtimes.inline import Delivered, Wait
from trimtab.train.stops import is_asked


def take_batch(run: Run, stopped: Callable[[], bool]) -> Delivered | None:
    """The next batch, on every rank; None if somebody asked to stop while rank 0 waited for it."""
    found: list[Delivered | None] = [None]

    def wait(lead: Lead) -> dict[str, Any]:
        over = Wait(lambda: any(is_asked(run, stopped)), lead.progress.stage)
        found[0] = lead.runtime.batch(lead.probe.measure, over)
        return {"head": None if found[0] is None else found[0].rollouts.head()}

    told = run.world.lead(lambda: wait(run.front))
    if told["head"] is None:
        return None
    delivered = found[0]
    _, tensors = run.world.broadcast({}, None if delivered is None else delivered.rollouts.tensors())
    if delivered is None:
        delivered = Delivered(Rollouts.read(tensors, told["head"]), 0, 0.0, 0.0, 0.0, 0, 0, 0)
    _check_fresh(delivered.rollouts, run.tally.steps, run.settings.staleness)
    return delivered


def _check_fresh(rollouts: Rollouts, version: int, limit: int) -> None:
    """Check the buffer's promise: with staler tokens, the correction would be wrong."""
    oldest = rollouts.oldest_version
    if rollouts.num_tokens and version - oldest > limit:
        raise SignalError(
            f"train: step {version} got tokens of version {oldest}, {version - oldest} updates old, and the limit is "
            f"{limit}. This is a bug in trimtab; please report it with the run folder."
        )
