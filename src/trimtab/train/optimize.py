"""The only place that changes parameters: AdamW, its schedule, clipping, and the refusal of steps that are not finite.

It does not know where gradients come from.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.train.policy import Policy

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings


@dataclass(frozen=True)
class Stepped:
    """One optimiser step: the gradient's norm before clipping, and whether the step was taken."""

    norm: float
    taken: bool
    has_gradient: bool = False
    """Some part had a gradient other than 0. Without one AdamW still moves parameters, by its momentum."""


class Optimizer:
    """AdamW over the policy and, where a recipe trains it, the critic; each with its own learning rate and clipping."""

    def __init__(self, policy: Policy, settings: "TrainSettings", *, with_critic: bool) -> None:
        self._settings: TrainSettings = settings
        self._parts: list[list[Tensor]] = [[p for p in policy.model.parameters() if p.requires_grad]]
        if with_critic:
            self._parts.append(list(policy.critic.parameters()))
        rates = (settings.lr, settings.critic_lr)
        groups: list[dict[str, Any]] = [
            {"params": part, "lr": rate, "top": rate} for part, rate in zip(self._parts, rates, strict=False)
        ]
        self._adamw: torch.optim.AdamW = torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=True)

    def zero_grad(self) -> None:
        self._adamw.zero_grad()

    def step(self, loss: float, batch: int) -> Stepped:
        """Clip and step, unless loss or gradient is not finite: then the parameters stay as they are."""
        # Policy and critic are clipped apart: they share no units.
        norms = [float(torch.nn.utils.clip_grad_norm_(part, self._settings.grad_clip)) for part in self._parts]
        if not all(map(math.isfinite, [loss, *norms])):
            self.zero_grad()
            return Stepped(norms[0], taken=False)
        for group in self._adamw.param_groups:
            group["lr"] = group["top"] * scheduled(self._settings, batch)
        self._adamw.step()
        return Stepped(norms[0], taken=True, has_gradient=any(norm > 0 for norm in norms))

    def state(self) -> dict[str, Tensor]:
        """AdamW's running statistics by parameter number."""
        held: dict[int, dict[str, Tensor]] = self._adamw.state_dict()["state"]
        return {f"{index}.{name}": value for index, values in held.items() for name, value in values.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        held: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            index, _, name = key.partition(".")
            held.setdefault(int(index), {})[name] = value
        self._adamw.load_state_dict({"state": held, "param_groups": self._adamw.state_dict()["param_groups"]})


def scheduled(settings: "TrainSettings", batch: int) -> float:
    """The factor on the learning rate for this batch, between 0 and 1.

    It rises over `lr_warmup_steps`, then stays, falls linearly, or falls along half a cosine until `steps`.
    """
    if batch < settings.lr_warmup_steps:
        return (batch + 1) / (settings.lr_warmup_steps + 1)
    done = (batch - settings.lr_warmup_steps) / max(1, settings.steps - settings.lr_warmup_steps)
    done = min(1.0, done)
    falls = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    return falls[settings.schedule]
