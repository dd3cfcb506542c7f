"""The only place that turns one batch into optimiser steps: score, prepare, decide, backward, step.

It knows no engine, no folder and no progress bar. On several ranks every one of them runs this code on its share of
the sequences; rank 0 prepares and decides, the others are told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.seed import stream_seed
from trimtab.sentinel.live import Guard, Step
from trimtab.signal import (
    Decided,
    Metrics,
    Prepared,
    Recipe,
    SignalState,
    StepResult,
    TokenLoss,
    Update,
    decide,
    prepare,
    step,
    token_loss,
)
from trimtab.signal.fields import Fields
from trimtab.signal.layout import Segments
from trimtab.signal.ratio import EXACT_RATIO, EXACT_TOTAL
from trimtab.signal.update import Slice
from trimtab.signal.weighting import OWNERS
from trimtab.train.actor import Actor
from trimtab.train.adapter import adapter_off, has_adapter
from trimtab.train.optimize import Optimizer, scheduled
from trimtab.train.passes import Passes, Said
from trimtab.train.policy import Policy, frozen_copy, layers_of, new_critic
from trimtab.train.watch import loss_of_rows, stage_effects, watched_fields
from trimtab.train.world import World, alone, shard

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings


SPLIT_EVERY = 10
"""Steps between two split checks. One check computes the loss of an update three more times, without the model."""


@dataclass(frozen=True)
class Learned:
    """What one batch did. On ranks other than the first, only the counts are known."""

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

    current: dict[str, Tensor]
    """What the current policy said when a token was trained on; nan where it was not."""
    placed: dict[str, Tensor]
    """Which `update` trained each sequence, and in which `part` of it; -1 where none did."""
    metrics: Metrics = field(default_factory=Metrics.empty)
    losses: list[float] = field(default_factory=list[float])
    norms: list[float] = field(default_factory=list[float])
    nonfinite: list[Tensor] = field(default_factory=list[Tensor])
    moved: int = 0
    in_row: int = 0
    """Refused steps in a row, now."""


class Learner:
    """The state that changes from batch to batch: parameters, optimiser, the recipe's running statistics."""

    def __init__(self, policy: Policy, recipe: Recipe, settings: "TrainSettings", world: World = alone) -> None:
        self.policy: Policy = policy
        self.recipe: Recipe = recipe
        self.world: World = world
        self._settings: TrainSettings = settings
        self._has_old: bool = "logp_old" in recipe.needs
        self._has_value: bool = "value_old" in recipe.needs
        self._has_reference: bool = "logp_ref" in recipe.needs
        self.reference: Actor | None = None
        """A frozen copy; None where the policy without its adapter is the reference."""
        if self._has_reference and not has_adapter(policy.model):  # before sharding: then it cannot be copied
            frozen = replace(policy, model=frozen_copy(policy.model), critic=new_critic(policy.critic.in_features))
            self.reference = self._actor(frozen)
        self.actor: Actor = self._actor(policy)
        self.passes: Passes = Passes(policy.pad_id, settings.max_tokens_per_micro_batch, world)
        self.signal: SignalState = SignalState()
        self.nonfinite_in_row: int = 0
        self.guard: Guard = Guard(every=SPLIT_EVERY)
        self.optimizer: Optimizer = Optimizer(policy, settings, with_critic=self._has_value)

    def _actor(self, policy: Policy) -> Actor:
        float32_head = self._settings.model.head == "float32"
        critic = policy.critic.to(policy.device)
        actor = Actor(policy.model, critic, temperature=self._settings.temperature, float32_head=float32_head)
        shard(actor, layers_of(policy.model), self.world)
        return actor

    def learn(self, rollouts: Rollouts, *, version: int) -> Learned:
        """Take every optimiser step on this batch, watched by the guard; `version` is that of the first parameters."""
        given = self._score_batch(rollouts)
        dtype = self.policy.critic.weight.dtype
        batch = rollouts.batch(dtype=dtype, **given) if self.world.is_first else None
        known = len(self.guard.alarms)
        # The same tensors that formulas read: a write into a copy would not be noticed.
        with self.guard.step(batch={} if batch is None else watched_fields(batch)) as watch:
            prepared, before = None, self.signal
            if batch is not None:
                seed = signal_seed(self._settings.seed, version)
                prepared, self.signal = prepare(batch, self.recipe, before, version=version, seed=seed)
            seen = self._take_updates(rollouts, prepared, version, watch)
            learned = self._learned(given, prepared, seen, before, version)
            watch.metrics(learned.metrics)
            watch.effects(stage_effects(learned.metrics))
        alarms = tuple(alarm.text for alarm in self.guard.alarms[known:])
        return replace(learned, warnings=(*learned.warnings, *alarms))

    def score(self, rollouts: Rollouts) -> Tensor:
        """Log-probs of the batch's tokens by the policy as it is; no gradient."""
        return self.passes.say(self.actor, rollouts, torch.arange(rollouts.num_sequences))["logp"]

    def _score_batch(self, rollouts: Rollouts) -> dict[str, Tensor]:
        """The numbers that the recipe needs and no others, from the parameters that the batch starts with."""
        given: dict[str, Tensor] = {}
        everything = torch.arange(rollouts.num_sequences)
        if self._has_old or self._has_value:
            own = self.passes.say(self.actor, rollouts, everything, with_value=self._has_value)
            given["logp_old"] = own["logp"]
            if self._has_value:
                given |= {"value_old": own["value"], "value_after": own["value_after"]}
        if self._has_reference:
            # Asked in the same way: what differs comes from the parameters and from nothing else.
            with adapter_off(self.policy.model):
                asked = self.reference or self.actor
                said = self.passes.say(asked, rollouts, everything, with_value=self._has_value)
            given["logp_ref"] = said["logp"]
        return given

    def _take_updates(self, rollouts: Rollouts, prepared: Prepared | None, version: int, watch: Step) -> Seen:
        """Every optimiser step of one batch. Only rank 0 has it prepared."""
        seen = _nothing_seen(rollouts, self.nonfinite_in_row, self.policy.critic.weight.dtype)
        num = 0 if prepared is None else min(self._settings.updates_per_batch, prepared.num_training_groups)
        num = int(self.world.broadcast({"num": num})[0]["num"])
        updates = iter(prepared.updates(num)) if prepared is not None and num else iter(())
        for number in range(num):
            update = next(updates, None)
            decided = self._decide(rollouts, update, watch, is_first=number == 0)
            result = self._backward(rollouts, decided, seen, number, watch)
            if number == 0 and self.world.is_first:
                loss = loss_of_rows(
                    decided, lambda some: {n: v[rollouts.places(some)] for n, v in seen.current.items()}
                )
                watch.split(loss, len(decided.whole.sequences))
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
                seen.nonfinite.append(decided.whole.sequences)
                seen.in_row += 1
        self.nonfinite_in_row = seen.in_row
        return seen

    def _decide(self, rollouts: Rollouts, update: Update | None, watch: Step, *, is_first: bool) -> Decided:
        """Rank 0 decides, with what every rank's model says about its sequences; all ranks get the same."""
        logp = entropy = None
        # On a batch's first step the policy is still the old one.
        known = is_first and self._has_old and not self.recipe.needs_entropy_now
        if self.recipe.needs_logp_now and not known:
            told = self.world.broadcast({}, None if update is None else {"sequences": update.sequences})[1]
            said = self.passes.say(self.actor, rollouts, told["sequences"])
            places = rollouts.places(told["sequences"])
            logp, entropy = said["logp"][places], said["entropy"][places]
        decided = None
        if update is not None:
            with watch.unwritten(update.whole.fields):
                decided = decide(update, logp, entropy_now=entropy)
        return self._told(decided)

    def _told(self, decided: Decided | None) -> Decided:
        """What rank 0 decided, on every rank."""
        if self.world.size == 1:
            return cast(Decided, decided)
        held: dict[str, Tensor] = {}
        if decided is not None:
            part = decided.whole
            held = {"sequences": part.sequences, "counts": part.segments.token_counts}
            spent = (EXACT_RATIO, EXACT_TOTAL, *OWNERS)  # others do without, and weights are known by now
            carried = (name for name in part.fields if name not in spent)
            held |= {f"field {name}": part.fields[name] for name in carried}
        _, told = self.world.broadcast({}, held)
        fields = {name.removeprefix("field "): v for name, v in told.items() if name.startswith("field ")}
        segments = Segments.from_counts(told["counts"], int(told["counts"].sum()))
        return Decided(Slice(self.recipe, told["sequences"], segments, Fields.of(segments, fields)))

    def _backward(self, rollouts: Rollouts, decided: Decided, seen: Seen, number: int, watch: Step) -> StepResult:
        """Gradients of one whole update, micro-batch after micro-batch; nothing is divided here."""
        self.optimizer.zero_grad()
        mine = self.passes.share(rollouts, decided.whole.sequences)
        own = decided if self.world.size == 1 else decided.own(mine, self.world.size)
        outs: list[TokenLoss] = []
        asked = {"entropy_graph": self.recipe.entropy is not None, "with_value": self._has_value}
        parts = self.passes.parts(rollouts, own.whole.sequences)
        for part, micro in enumerate(own.split(parts=parts)):
            passed = self.passes.run(self.actor, rollouts, micro.sequences, **asked)
            with watch.unwritten(micro.part.fields):
                out = token_loss(micro, passed.logp, entropy=passed.entropy, value=passed.value)
            (out.loss + passed.nothing).backward()
            self.optimizer.take_gradients()
            outs.append(out)
            _keep(seen, rollouts, micro.sequences, (number, part), passed)
        own.check_spent()
        result = step(outs)
        self._join_current(rollouts, decided.whole.sequences, mine, seen)
        return StepResult(
            torch.tensor(self.world.sum(float(result.loss)) / self.world.size, dtype=torch.float64),
            self.world.reduce(result.metrics),
        )

    def _join_current(self, rollouts: Rollouts, sequences: Tensor, mine: Tensor, seen: Seen) -> None:
        """Make what each rank kept about its own sequences of an update known to all."""
        if self.world.size == 1:
            return
        everywhere, own = rollouts.places(sequences), rollouts.places(mine)
        for held, ours, all_of_it in ((seen.current, own, everywhere), (seen.placed, mine, sequences)):
            size = len(next(iter(held.values())))
            told = self.world.gather({name: values[ours] for name, values in held.items()}, ours, size)
            for name, values in held.items():
                values[all_of_it] = told[name][all_of_it]

    def _learned(
        self, given: dict[str, Tensor], prepared: Prepared | None, seen: Seen, before: SignalState, version: int
    ) -> Learned:
        metrics: dict[str, float] = {}
        warnings: tuple[str, ...] = ()
        if prepared is not None:
            self.signal, warnings = self.signal.observe(seen.metrics.numbers(), self.recipe)
            metrics = {**prepared.metrics.merge(seen.metrics).numbers(), **self._own_metrics(seen, prepared, version)}
        return Learned(
            metrics=metrics,
            warnings=(*(() if prepared is None else prepared.warnings), *warnings),
            skipped_updates=self._settings.updates_per_batch - len(seen.norms) - len(seen.nonfinite),
            moved_updates=seen.moved,
            nonfinite_in_row=seen.in_row,
            nonfinite=tuple(seen.nonfinite),
            fields={**given, **seen.current, **seen.placed},
            advantage=torch.zeros(0) if prepared is None else prepared.advantage,
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


def signal_seed(seed: int, version: int) -> int:
    """The seed of the signal's random selection at one step of a run."""
    return stream_seed(seed, "signal", version)


def _nothing_seen(rollouts: Rollouts, in_row: int, dtype: torch.dtype) -> Seen:
    blank = torch.full((rollouts.num_tokens,), float("nan"), dtype=dtype)
    return Seen(
        current={"logp_current": blank, "entropy": blank.clone()},
        placed={name: torch.full((rollouts.num_sequences,), -1) for name in ("update", "part")},
        in_row=in_row,
    )


def _keep(seen: Seen, rollouts: Rollouts, sequences: Tensor, where: tuple[int, int], said: Said) -> None:
    """Keep the current policy's numbers for these sequences, for a replay."""
    places = rollouts.places(sequences)
    seen.placed["update"][sequences], seen.placed["part"][sequences] = where
    named = {"logp_current": said.logp, "entropy": said.entropy, "value_current": said.value}
    for name, values in named.items():
        if values is not None:
            held = seen.current.setdefault(name, values.new_full((rollouts.num_tokens,), float("nan")))
            held[places] = values.detach()
