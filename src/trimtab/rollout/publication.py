"""One version of the policy on its way to the engines: its number, its parameters, its checksum."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from trimtab.rollout.weights import digest


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
