"""The only place that turns one batch into optimiser steps: log-probs, prepare, decide, token_loss, step.

It does not know where the batch came from, nor what happens to the new parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.rollout.assemble import Assembled
from trimtab.sentinel.live import Guard
from trimtab.signal import (
    Decided,
    Metrics,
    Prepared,
    Recipe,
    SignalBatch,
    SignalState,
    StepResult,
    TokenLoss,
    Update,
    decide,
    prepare,
    step,
    token_loss,
)
from trimtab.train.logp import TokenPass, token_pass
from trimtab.train.policy import Policy, frozen_copy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trimtab.config.train import TrainSettings


@dataclass(frozen=True)
class Learned:
    """What one batch did."""

    metrics: dict[str, float]
    warnings: tuple[str, ...]
    skipped_updates: int
    fields: Mapping[str, Tensor]
    """The flat batch as the signal saw it, for the record."""


class Learner:
    """The state that changes from batch to batch: parameters, optimiser, the recipe's running statistics."""

    def __init__(self, policy: Policy, recipe: Recipe, settings: "TrainSettings") -> None:
        self.policy: Policy = policy
        self.recipe: Recipe = recipe
        self._settings: TrainSettings = settings
        self._has_old: bool = "logp_old" in recipe.needs
        self._has_value: bool = "value" in recipe.needs
        self._reference: PreTrainedModel | None = frozen_copy(policy.model) if "logp_ref" in recipe.needs else None
        self._state: SignalState | None = None
        self._guard: Guard = Guard(every=0)
        groups: list[dict[str, Any]] = [{"params": list(policy.model.parameters()), "lr": settings.lr}]
        if self._has_value:
            groups.append({"params": list(policy.critic.parameters()), "lr": settings.critic_lr})
        self._optimizer: torch.optim.AdamW = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)

    def learn(self, assembled: Assembled, *, version: int) -> Learned:
        """Every optimiser step on this batch, watched; `version` is that of the parameters it starts with."""
        batch, fields = self._scored(assembled)
        known = len(self._guard.alarms)
        with self._guard.step(batch=fields) as seen:
            learned = self._learned(assembled, batch, fields, version)
            seen.metrics(learned.metrics)
        alarms = tuple(alarm.text for alarm in self._guard.alarms[known:])
        return replace(learned, warnings=(*learned.warnings, *alarms))

    def _learned(self, assembled: Assembled, batch: SignalBatch, fields: dict[str, Tensor], version: int) -> Learned:
        prepared, self._state = prepare(batch, self.recipe, self._state, version=version)
        metrics = prepared.metrics
        stepped = Metrics.empty()
        norms: list[float] = []
        losses: list[float] = []
        num_updates = min(self._settings.updates_per_batch, _groups_that_train(prepared))
        for update in prepared.updates(num_updates) if num_updates else ():
            result = self._backward(assembled, decide(update, logp_now=self._now(assembled, update)))
            stepped = stepped.merge(result.metrics)
            losses.append(float(result.loss))
            if not result.is_empty:
                norms.append(self._optimizer_step())
        self._state, said = self._state.observe(stepped.values(), self.recipe)
        metrics = metrics.merge(stepped)
        own = {"train/updates": float(len(norms))}
        if losses:
            own["train/loss"] = sum(losses) / len(losses)
        if norms:
            own["train/grad_norm"] = sum(norms) / len(norms)
        if prepared.kl is not None:
            own["rollout/kl"] = float(prepared.kl.double().mean())
        skipped = self._settings.updates_per_batch - len(norms)
        return Learned({**metrics.values(), **own}, (*prepared.warnings, *said), skipped, fields)

    def _now(self, assembled: Assembled, update: Update) -> Tensor | None:
        """Log-probs before a later step on the same batch, where the recipe decides on them."""
        if not self.recipe.needs_logp_now or (update.is_first and self._has_old):
            return None
        with torch.no_grad():
            return torch.cat([self._pass(assembled, part).logp for part in self._slices(assembled, update.sequences)])

    def _backward(self, assembled: Assembled, decided: Decided) -> StepResult:
        """Gradients of one whole update, micro-batch after micro-batch; nothing is divided here."""
        self._optimizer.zero_grad()
        outs: list[TokenLoss] = []
        for micro in decided.split(max_tokens=self._settings.max_tokens_per_micro_batch):
            passed = self._pass(assembled, micro.sequences)
            out = token_loss(micro, passed.logp, entropy=passed.entropy, value=self._value(passed.state))
            out.loss.backward()
            outs.append(out)
        decided.check_spent()
        return step(outs)

    def _optimizer_step(self) -> float:
        """Clip and step; returns the norm before clipping. Policy and critic are clipped apart: they share no units."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self._settings.grad_clip)
        if self._has_value:
            _ = torch.nn.utils.clip_grad_norm_(self.policy.critic.parameters(), self._settings.grad_clip)
        if not bool(norm.isfinite()):
            raise SignalError(
                f"train: the gradient norm is {float(norm)}, so a step would destroy the parameters; they are still "
                "those of the last good step. Look at the end of metrics.jsonl, and lower lr or the bound on the ratio."
            )
        self._optimizer.step()
        return float(norm)

    def _pass(self, assembled: Assembled, sequences: Tensor, model: "PreTrainedModel | None" = None) -> TokenPass:
        rows = assembled.rows(sequences)
        return token_pass(
            model or self.policy.model,
            rows,
            temperature=self._settings.temperature,
            with_state_after=self._has_value and not torch.is_grad_enabled(),
        )

    def _value(self, state: Tensor) -> Tensor | None:
        """The critic reads the state without moving it: its error must not steer the policy's features."""
        return self.policy.critic(state.detach())[:, 0] if self._has_value else None

    def _scored(self, assembled: Assembled) -> tuple[SignalBatch, dict[str, Tensor]]:
        """The batch with the numbers its recipe needs and no others, from the parameters that it starts with."""
        given: dict[str, Tensor] = {}
        slices = self._slices(assembled, torch.arange(len(assembled.ids)))
        with torch.no_grad():
            if self._has_old or self._has_value:
                own = [self._pass(assembled, part) for part in slices]
                given["logp_old"] = torch.cat([part.logp for part in own])
                if self._has_value:
                    after = torch.cat([part.state_after for part in own if part.state_after is not None])
                    given["value"] = self.policy.critic(torch.cat([part.state for part in own]))[:, 0]
                    given["value_after"] = self.policy.critic(after)[:, 0]
            if self._reference is not None:
                given["logp_ref"] = torch.cat([self._pass(assembled, part, self._reference).logp for part in slices])
        fields = {
            **given,
            "logp_rollout": assembled.logp_rollout,
            "version": assembled.version,
            "reward": assembled.reward,
            "group": assembled.group,
            "ended": assembled.ended,
            "token_counts": torch.tensor(assembled.token_counts),
        }
        return assembled.batch(**given), fields

    def _slices(self, assembled: Assembled, sequences: Tensor) -> list[Tensor]:
        """These sequences in order, cut so that a slice holds no more tokens than a micro-batch may."""
        slices: list[list[int]] = [[]]
        held = 0
        for index in map(int, sequences):
            count = assembled.token_counts[index]
            if slices[-1] and held + count > self._settings.max_tokens_per_micro_batch:
                slices.append([])
                held = 0
            slices[-1].append(index)
            held += count
        return [torch.tensor(part) for part in slices]


def _groups_that_train(prepared: Prepared) -> int:
    """A filter may leave fewer groups than there are updates, or none at all."""
    levels = prepared.batch.levels
    episodes = levels.episode_of_sequence[prepared.trains]
    return len(torch.unique(levels.group_of_episode[episodes]))
