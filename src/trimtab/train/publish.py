"""The only place that makes a version of the policy known: gathered once at a step boundary, hashed once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from trimtab.rollout.weights import digest
from trimtab.train.policy import published

if TYPE_CHECKING:
    from trimtab.train.run import Run


@dataclass(frozen=True)
class Publication:
    """One version's parameters, whole. The learner changes them in place with its next step, unless they are a copy."""

    version: int
    state: Mapping[str, Tensor]

    @cached_property
    def digest(self) -> str:
        """Its checksum, computed where it is first needed."""
        return digest(self.state)

    def copy(self) -> "Publication":
        """The same parameters, which nobody changes."""
        return Publication(self.version, {name: tensor.detach().cpu().clone() for name, tensor in self.state.items()})


def publish(run: "Run") -> None:
    """Gather the policy on every rank; rank 0 gives it to the sampler. Its version is the number of steps taken."""
    version = run.tally.steps
    run.published = Publication(version, published(run.policy.model))
    if run.lead is not None:
        if version % run.settings.eval_every == 0:
            run.lead.probe.mark(version, run.published.state)
        run.lead.runtime.publish(run.published)
