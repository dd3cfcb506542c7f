"""One watched step from its copies: the only place that puts measurement and evidence of a step together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trimtab.signal.metrics import Metrics
from trimtab.watch.company import Rewards, advantage_evidence, first_tokens, reward_metrics
from trimtab.watch.evidence import evidence
from trimtab.watch.flat import Flat, flatten
from trimtab.watch.hold import Held
from trimtab.watch.measure import measure


@dataclass
class Batch:
    """A generation batch: rewards and groups, and how often each of its rows has trained."""

    held: Held
    seen: Counter[int] = field(default_factory=Counter[int])
    is_measured: bool = False

    def rewards(self) -> Rewards | None:
        fields, facts = self.held.fields, self.held.facts
        if "reward" not in fields:
            return None
        size = len(fields["reward"])
        group = fields["group"].numpy().astype(np.int64) if "group" in fields else np.arange(size)
        row = fields["row"].numpy().astype(np.int64) if "row" in fields else np.arange(size)
        given = fields.get("advantage")
        advantage = given.double().numpy() if given is not None and given.ndim == 1 else None
        reward = fields["reward"].double().numpy()
        normalize: dict[str, Any] | None = facts.get("normalize")
        return Rewards(reward, np.unique(group, return_inverse=True)[1], row, advantage, normalize)


@dataclass
class Pending:
    """An optimiser step whose copies are on their way."""

    number: int
    is_whole: bool
    parts: list[tuple[Held, Batch | None]] = field(default_factory=list[tuple[Held, "Batch | None"]])

    @property
    def is_here(self) -> bool:
        return all(held.is_here and (batch is None or batch.held.is_here) for held, batch in self.parts)

    def wait(self) -> None:
        for held, batch in self.parts:
            held.wait()
            if batch is not None:
                batch.held.wait()

    def count_rows(self) -> None:
        """Note which rows of their batch trained."""
        for held, batch in self.parts:
            if batch is not None and "row" in held.fields:
                batch.seen.update(held.fields["row"].tolist())


def settle(pending: Pending) -> Metrics:
    """Everything that a step shows, as metrics that merge over ranks."""
    metrics, flats, last = Metrics.empty(), list[Flat](), None
    for held, batch in pending.parts:
        flat = flatten(held.fields, held.facts)
        rewards = None if batch is None else batch.rewards()
        if batch is not None and rewards is not None:
            flat = _with_spread(flat, rewards)
            if not batch.is_measured:
                metrics = metrics.merge(Metrics({**reward_metrics(rewards), **advantage_evidence(rewards)}, {}))
                batch.is_measured = True
            last = rewards
        metrics = metrics.merge(measure(flat)).merge(Metrics(evidence(flat), {}))
        flats.append(flat)
    return metrics.merge(Metrics(_company(flats, last), {}))


def _company(flats: Sequence[Flat], rewards: Rewards | None) -> dict[str, Any]:
    return first_tokens(flats, rewards)


def _with_spread(flat: Flat, rewards: Rewards) -> Flat:
    if "row" not in flat.rows:
        return flat
    row = flat.rows["row"].astype(np.int64)
    return replace(flat, rows={**flat.rows, "spread": rewards.spread("group")[row]})
