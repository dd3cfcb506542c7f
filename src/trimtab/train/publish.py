"""The only place that makes a version of the policy known: gathered once at a step boundary, hashed once."""

from typing import TYPE_CHECKING

from trimtab.rollout.publication import Publication
from trimtab.train.adapter import adapter_of
from trimtab.train.policy import published

if TYPE_CHECKING:
    from trimtab.train.run import Run


def publish(run: "Run") -> None:
    """Gather the policy on every rank; rank 0 gives it to the sampler. Its version is the number of steps taken."""
    version = run.tally.steps
    run.published = Publication(version, published(run.policy.model), adapter_of(run.policy.model))
    if run.lead is not None:
        if version % run.settings.eval_every == 0:
            run.lead.probe.mark(version, run.published.state)
        run.lead.runtime.publish(run.published)
