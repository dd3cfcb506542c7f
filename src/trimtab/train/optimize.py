"""The only place that changes parameters: AdamW, its schedule, clipping, and the refusal of steps that are not finite.

It does not know where gradients come from. A parameter in half precision has a float32 master: gradients add up in it
and steps are taken on it, so that steps smaller than the half format's spacing are not lost.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.train.policy import Policy
from trimtab.train.world import place, whole

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

MASTER = "master"


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
        parts = {"model": policy.model, **({"critic": policy.critic} if with_critic else {})}
        self._params: list[dict[str, Tensor]] = [
            {f"{part}.{name}": p for name, p in module.named_parameters() if p.requires_grad}
            for part, module in parts.items()
        ]
        self._masters: list[dict[str, Tensor]] = [
            {name: _master(param) for name, param in part.items()} for part in self._params
        ]
        rates = (settings.lr, settings.critic_lr)
        groups: list[dict[str, Any]] = [
            {"params": list(part.values()), "lr": rate, "top": rate}
            for part, rate in zip(self._masters, rates, strict=False)
        ]
        self._adamw: torch.optim.AdamW = torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=True)

    def zero_grad(self) -> None:
        self._adamw.zero_grad()
        for param, _ in self._halves():
            param.grad = None

    def take_gradients(self) -> None:
        """Add what a backward pass left in half precision to the masters' gradients. Call it after each one."""
        for param, master in self._halves():
            if param.grad is not None:
                master.grad = param.grad.float() if master.grad is None else master.grad.add_(param.grad)
                param.grad = None

    def step(self, loss: float, batch: int) -> Stepped:
        """Clip and step, unless loss or gradient is not finite: then the parameters stay as they are."""
        # Policy and critic are clipped apart: they share no units.
        norms = [float(whole(_clip(part.values(), self._settings.grad_clip))) for part in self._masters]
        if not all(map(math.isfinite, [loss, *norms])):
            self.zero_grad()
            return Stepped(norms[0], taken=False)
        for group in self._adamw.param_groups:
            group["lr"] = group["top"] * scheduled(self._settings, batch)
        self._adamw.step()
        self._publish_masters()
        return Stepped(norms[0], taken=True, has_gradient=any(norm > 0 for norm in norms))

    def state(self) -> dict[str, Tensor]:
        """AdamW's running statistics and the masters, whole, by the names of their parameters. Every rank must ask."""
        held: dict[str, Tensor] = {}
        for params, masters in zip(self._params, self._masters, strict=True):
            for name, master in masters.items():
                for key, value in self._adamw.state.get(master, {}).items():
                    held[f"{name}|{key}"] = whole(value)
                if master is not params[name]:
                    held[f"{name}|{MASTER}"] = whole(master)
        return held

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`, on any number of ranks."""
        masters = {name: master for part in self._masters for name, master in part.items()}
        for key, value in state.items():
            name, _, what = key.rpartition("|")
            master = masters[name]
            if what == MASTER:
                with torch.no_grad():
                    _ = master.copy_(place(value, master))
            else:
                self._adamw.state[master][what] = value.clone() if value.ndim == 0 else place(value, master).clone()

    def _halves(self) -> list[tuple[Tensor, Tensor]]:
        return [
            (param, masters[name])
            for params, masters in zip(self._params, self._masters, strict=True)
            for name, param in params.items()
            if masters[name] is not param
        ]

    @torch.no_grad()
    def _publish_masters(self) -> None:
        for param, master in self._halves():
            _ = param.copy_(master)


def _master(param: Tensor) -> Tensor:
    return param if param.dtype in (torch.float32, torch.float64) else param.detach().float().requires_grad_()


def _clip(parameters: Any, most: float) -> Tensor:
    return torch.nn.utils.clip_grad_norm_(list(parameters), most)


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
