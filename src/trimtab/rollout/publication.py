"""One version of the policy on its way to the engines: its number, parameters and checksum, and its adapter if any."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from trimtab.rollout.adapter import Adapter
from trimtab.rollout.weights import digest


@dataclass(frozen=True)
class Publication:
    """One version's parameters, whole. The learner changes them in place with its next step, unless they are a copy."""

    version: int
    state: Mapping[str, Tensor]
    adapter: Adapter | None = None
    """The adapter, where training changes nothing else. `state` has it merged, for engines that take no adapters."""

    @cached_property
    def digest(self) -> str:
        """Its checksum, computed where it is first needed."""
        return digest(self.state)

    @classmethod
    def received(cls, state: Mapping[str, Tensor], version: int, digest: str) -> "Publication":
        """What came over a pipe, with the checksum that its publisher gave: it is not computed from what came."""
        publication = cls(version, state)
        publication.__dict__["digest"] = digest
        return publication

    def copy(self) -> "Publication":
        """The same parameters, which nobody changes."""
        state = {name: tensor.detach().cpu().clone() for name, tensor in self.state.items()}
        return Publication(self.version, state, self.adapter.copy() if self.adapter is not None else None)
