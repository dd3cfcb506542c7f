"""The only place that cuts sequences into forward passes: this rank's share, in as many passes as the others take."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import cut, lay_out
from trimtab.train.actor import Actor, Passed
from trimtab.train.world import World


@dataclass(frozen=True)
class Said:
    """What a forward pass said about some sequences, on the CPU."""

    logp: Tensor
    entropy: Tensor
    value: Tensor | None
    value_after: Tensor | None
    nothing: Tensor = field(default_factory=lambda: torch.zeros(()))
    """0, from every output of a pass whose numbers are not kept, so that the backward pass runs through all of them."""

    def named(self) -> dict[str, Tensor]:
        """All that there is, by name."""
        held = {"logp": self.logp, "entropy": self.entropy, "value": self.value, "value_after": self.value_after}
        return {name: values for name, values in held.items() if values is not None}


@dataclass(frozen=True)
class Passes:
    """How rollouts go through a model."""

    pad_id: int
    most: int
    """Positions in one pass at most, padding included; a single sequence may be longer."""
    world: World

    def share(self, rollouts: Rollouts, sequences: Tensor) -> Tensor:
        """This rank's part of these sequences; every rank gets about as many tokens."""
        return sequences[self.world.share(rollouts.length[sequences])]

    def parts(self, rollouts: Rollouts, sequences: Tensor) -> list[Tensor]:
        """Micro-batches of these sequences: as many as the rank with most has, so the last ones may be empty."""
        parts = cut(rollouts.length, sequences, most=self.most)
        return parts + [sequences[:0]] * (self.world.agree(max(1, len(parts))) - len(parts))

    def run(self, actor: Actor, rollouts: Rollouts, sequences: Tensor, **asked: bool) -> Said:
        """Run one forward pass. The few numbers per token that the signal works on are moved to the CPU.

        With no sequence, one stands in, and nothing of it is kept: the ranks of a sharded model must all take part.
        """
        stand_in = len(sequences) == 0
        chosen = rollouts.token_counts.argmax()[None] if stand_in else sequences
        passed: Passed = actor(lay_out(rollouts, chosen, pad_id=self.pad_id), **asked)
        logp, entropy = passed.logp.cpu(), passed.entropy.cpu()
        value, after = (None if one is None else one.cpu() for one in (passed.value, passed.value_after))
        if not stand_in:
            return Said(logp, entropy, value, after)
        nothing = torch.zeros(())
        for one in (logp, entropy, value):
            if one is not None and one.requires_grad:
                nothing = nothing + 0.0 * one.sum()
        value, after = (None if one is None else one[:0] for one in (value, after))
        return Said(logp[:0], entropy[:0], value, after, nothing)

    @torch.no_grad()
    def say(
        self, actor: Actor, rollouts: Rollouts, sequences: Tensor, *, with_value: bool = False
    ) -> dict[str, Tensor]:
        """What a model says about these sequences, in fields over the whole batch; nan about the others."""
        kept: dict[str, list[Tensor]] = {}
        parts = self.parts(rollouts, self.share(rollouts, sequences))
        for part in parts:
            said = self.run(actor, rollouts, part, with_value=with_value, with_value_after=with_value)
            for name, values in said.named().items():
                kept.setdefault(name, []).append(values)
        held = {name: torch.cat(values) for name, values in kept.items()}
        order = torch.cat(parts)
        after = {name: held.pop(name) for name in ("value_after",) if name in held}
        told = self.world.gather(held, rollouts.places(order), rollouts.num_tokens)
        return told | (self.world.gather(after, order, rollouts.num_sequences) if after else {})
