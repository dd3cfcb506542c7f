"""The only place that turns one batch into optimiser steps: log-probs, prepare, decide, token_loss, step.

It does not know where the batch came from, nor what happens to the new parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import cut, lay_out
from trimtab.rollout.seed import stream_seed
from trimtab.sentinel.live import Guard, Step
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
from trimtab.train.optimize import Optimizer, scheduled
from trimtab.train.policy import Policy, frozen_copy
from trimtab.train.watch import loss_of_rows, stage_effects, watched_fields

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trimtab.config.train import TrainSettings


SPLIT_EVERY = 10
"""Steps between two split checks. One check computes the loss of an update three more times, without the model."""


@dataclass(frozen=True)
class Learned:
    """What one batch did."""

    metrics: dict[str, float]
    warnings: tuple[str, ...]
    skipped_updates: int
    """Optimiser steps left out because nothing was kept."""
    moved_updates: int
    """Optimiser steps that were taken with a gradient other than 0."""
    nonfinite_in_row: int
    """Refused optimiser steps without a good one after them, those of the batches before included."""
    nonfinite: tuple[Tensor, ...]
    """The sequences behind each optimiser step that was refused because its loss or gradient was not finite."""
    fields: Mapping[str, Tensor]
    """What the models said about each trainable token, before the batch and when it was trained on."""
    advantage: Tensor
    state_before: SignalState


@dataclass
class Seen:
    """What the updates of one batch have produced so far."""

    metrics: Metrics = field(default_factory=Metrics.empty)
    losses: list[float] = field(default_factory=list[float])
    norms: list[float] = field(default_factory=list[float])
    nonfinite: list[Tensor] = field(default_factory=list[Tensor])
    moved: int = 0
    in_row: int = 0
    """Refused steps in a row, now."""
    placed: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Which `update` trained each sequence, and in which `part` of it; -1 where none did."""
    current: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


class Learner:
    """The state that changes from batch to batch: parameters, optimiser, the recipe's running statistics."""

    def __init__(self, policy: Policy, recipe: Recipe, settings: "TrainSettings") -> None:
        self.policy: Policy = policy
        self.recipe: Recipe = recipe
        self._settings: TrainSettings = settings
        self._has_old: bool = "logp_old" in recipe.needs
        self._has_value: bool = "value_old" in recipe.needs
        self.reference: PreTrainedModel | None = frozen_copy(policy.model) if "logp_ref" in recipe.needs else None
        self.signal: SignalState = SignalState()
        self.nonfinite_in_row: int = 0
        self.guard: Guard = Guard(every=SPLIT_EVERY)
        self.optimizer: Optimizer = Optimizer(policy, settings, with_critic=self._has_value)

    def learn(self, rollouts: Rollouts, *, version: int) -> Learned:
        """Take every optimiser step on this batch, watched by the guard; `version` is that of the first parameters."""
        batch, fields = self._score_batch(rollouts)
        known = len(self.guard.alarms)
        # The same tensors that formulas read: a write into a copy would not be noticed.
        with self.guard.step(batch=watched_fields(batch)) as watch:
            learned = self._learn_watched(rollouts, batch, fields, version, watch)
            watch.metrics(learned.metrics)
            watch.effects(stage_effects(learned.metrics))
        alarms = tuple(alarm.text for alarm in self.guard.alarms[known:])
        return replace(learned, warnings=(*learned.warnings, *alarms))

    def score(self, rollouts: Rollouts, model: "PreTrainedModel | None" = None) -> Tensor:
        """Log-probs of the batch's tokens by this model, or by the policy as it is; no gradient."""
        slices = self._slices(rollouts, torch.arange(rollouts.num_sequences))
        with torch.no_grad():
            return torch.cat([self._pass(rollouts, part, model).logp for part in slices])

    def _learn_watched(
        self, rollouts: Rollouts, batch: SignalBatch, fields: dict[str, Tensor], version: int, watch: Step
    ) -> Learned:
        before = self.signal
        prepared, state = prepare(
            batch, self.recipe, before, version=version, seed=signal_seed(self._settings.seed, version)
        )
        seen = _nothing_seen(rollouts, self.nonfinite_in_row)
        num_updates = min(self._settings.updates_per_batch, prepared.num_training_groups)
        for number, update in enumerate(prepared.updates(num_updates) if num_updates else ()):
            logp, entropy = self._score_now(rollouts, update)
            with watch.unwritten(update.whole.fields):
                decided = decide(update, logp, entropy_now=entropy)
            result = self._backward(rollouts, decided, seen, number, watch)
            if number == 0:
                watch.split(
                    loss_of_rows(decided, lambda some: {n: v[rollouts.places(some)] for n, v in seen.current.items()}),
                    len(decided.whole.sequences),
                )
            seen.metrics = seen.metrics.merge(result.metrics)
            seen.losses.append(float(result.loss))
            if result.is_empty:
                continue
            stepped = self.optimizer.step(float(result.loss), version)
            if stepped.taken:
                seen.norms.append(stepped.norm)
                seen.moved += stepped.has_gradient
                seen.in_row = 0
            else:
                seen.nonfinite.append(update.sequences)
                seen.in_row += 1
        self.nonfinite_in_row = seen.in_row
        self.signal, said = state.observe(seen.metrics.numbers(), self.recipe)
        skipped = self._settings.updates_per_batch - len(seen.norms) - len(seen.nonfinite)
        return Learned(
            metrics={**prepared.metrics.merge(seen.metrics).numbers(), **self._own_metrics(seen, prepared, version)},
            warnings=(*prepared.warnings, *said),
            skipped_updates=skipped,
            moved_updates=seen.moved,
            nonfinite_in_row=seen.in_row,
            nonfinite=tuple(seen.nonfinite),
            fields={**fields, **seen.current, **seen.placed},
            advantage=prepared.advantage,
            state_before=before,
        )

    def _own_metrics(self, seen: Seen, prepared: Prepared, version: int) -> dict[str, float]:
        own = {
            "train/updates": float(len(seen.norms)),
            "train/nonfinite": float(len(seen.nonfinite)),
            "train/lr": self._settings.lr * scheduled(self._settings, version),
        }
        finite = [loss for loss in seen.losses if loss - loss == 0]
        if finite:
            own["train/loss"] = sum(finite) / len(finite)
        if seen.norms:
            own["train/grad_norm"] = sum(seen.norms) / len(seen.norms)
        if prepared.kl is not None:
            own["rollout/kl"] = float(prepared.kl.double().mean())
        return own

    def _score_now(self, rollouts: Rollouts, update: Update) -> tuple[Tensor | None, Tensor | None]:
        """Log-probs and entropy before a step, if the recipe decides by them; the first step uses logp_old."""
        known = update.is_first and self._has_old and not self.recipe.needs_entropy_now
        if not self.recipe.needs_logp_now or known:
            return None, None
        with torch.no_grad():
            passes = [self._pass(rollouts, part) for part in self._slices(rollouts, update.sequences)]
        return torch.cat([one.logp for one in passes]), torch.cat([one.entropy for one in passes])

    def _backward(self, rollouts: Rollouts, decided: Decided, seen: Seen, number: int, watch: Step) -> StepResult:
        """Gradients of one whole update, micro-batch after micro-batch; nothing is divided here."""
        self.optimizer.zero_grad()
        outs: list[TokenLoss] = []
        for part, micro in enumerate(decided.split(max_tokens=self._settings.max_tokens_per_micro_batch)):
            passed = self._pass(rollouts, micro.sequences)
            value = self._value(passed.state)
            value = None if value is None else value.cpu()
            with watch.unwritten(micro.part.fields):
                out = token_loss(micro, passed.logp, entropy=passed.entropy, value=value)
            out.loss.backward()
            outs.append(out)
            _keep_current(seen, rollouts, micro.sequences, (number, part), passed, value)
        decided.check_spent()
        return step(outs)

    def _pass(self, rollouts: Rollouts, sequences: Tensor, model: "PreTrainedModel | None" = None) -> TokenPass:
        """Run one forward pass. The few numbers per token that the signal works on are moved to the CPU."""
        passed = token_pass(
            model or self.policy.model,
            lay_out(rollouts, sequences, pad_id=self.policy.pad_id),
            temperature=self._settings.temperature,
            with_state=self._has_value,
            entropy_graph=self.recipe.entropy is not None,
            with_state_after=self._has_value and not torch.is_grad_enabled(),
        )
        return replace(passed, logp=passed.logp.cpu(), entropy=passed.entropy.cpu())

    def _value(self, state: Tensor | None) -> Tensor | None:
        """The critic's value. It sends no gradient into the state: its error must not change the policy."""
        return None if state is None else self.policy.critic(state.detach().float())[:, 0]

    def _score_batch(self, rollouts: Rollouts) -> tuple[SignalBatch, dict[str, Tensor]]:
        """The batch with the numbers its recipe needs and no others, from the parameters that it starts with."""
        given: dict[str, Tensor] = {}
        slices = self._slices(rollouts, torch.arange(rollouts.num_sequences))
        with torch.no_grad():
            if self._has_old or self._has_value:
                own = [self._pass(rollouts, part) for part in slices]
                given["logp_old"] = torch.cat([part.logp for part in own])
                if self._has_value:
                    after = torch.cat([part.state_after for part in own if part.state_after is not None])
                    value = self._value(torch.cat([part.state for part in own if part.state is not None]))
                    given["value_old"] = cast(Tensor, value).cpu()
                    given["value_after"] = cast(Tensor, self._value(after)).cpu()
            if self.reference is not None:
                given["logp_ref"] = self.score(rollouts, self.reference)
        return rollouts.batch(**given), given

    def _slices(self, rollouts: Rollouts, sequences: Tensor) -> list[Tensor]:
        """These sequences in order, cut so that a slice holds no more tokens than a micro-batch may."""
        return cut(rollouts.token_counts, sequences, most=self._settings.max_tokens_per_micro_batch)


def signal_seed(seed: int, version: int) -> int:
    """The seed of the signal's random selection at one step of a run."""
    return stream_seed(seed, "signal", version)


def _nothing_seen(rollouts: Rollouts, in_row: int) -> Seen:
    blank = torch.full((rollouts.num_tokens,), float("nan"))
    return Seen(
        in_row=in_row,
        placed={name: torch.full((rollouts.num_sequences,), -1) for name in ("update", "part")},
        current={"logp_current": blank, "entropy": blank.clone()},
    )


def _keep_current(
    seen: Seen, rollouts: Rollouts, sequences: Tensor, where: tuple[int, int], passed: TokenPass, value: Tensor | None
) -> None:
    """Keep the current policy's numbers for these sequences, for a replay."""
    places = rollouts.places(sequences)
    seen.placed["update"][sequences], seen.placed["part"][sequences] = where
    seen.current["logp_current"][places] = passed.logp.detach().float().cpu()
    seen.current["entropy"][places] = passed.entropy.detach().float().cpu()
    if value is not None:
        held = seen.current.setdefault("value_current", torch.full((rollouts.num_tokens,), float("nan")))
        held[places] = value.detach().float().cpu()
