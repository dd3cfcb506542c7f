"""The only place that measures drift along a run: by cause, by position, by age. Data for people; nothing trains on it.

A probe separates engine and staleness: the trainer's own log-probs of fresh tokens, computed with the same parameters
that sampled them. logp_trainer - logp_rollout is then the engine's error, and now - logp_trainer is staleness.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.rollout.assemble import Assembled, assemble
from trimtab.rollout.episode import Group, with_trainer
from trimtab.train.learn import Learned, Learner
from trimtab.train.policy import frozen_copy

EDGES = (-20.0, -10.0, -5.0, -3.0, -2.0, -1.5, -1.0, -0.7, -0.5, -0.3, -0.2, -0.1, -0.05, -0.02, -0.01, -0.005, -0.001)
"""Negative half of the log-ratio histogram's edges: fine near 0, where most ratios are, coarse far away."""
POSITION_BINS = 16
"""Bins of positions at most; answers shorter than that get one bin per token."""


class Probe:
    """Marks one version, and gives the groups sampled with it the trainer's own log-probs."""

    def __init__(self, learner: Learner, *, pad_id: int, keeps_copy: bool) -> None:
        self._learner: Learner = learner
        self._pad_id: int = pad_id
        self._keeps_copy: bool = keeps_copy
        self._version: int = -1
        self._model = None

    def mark(self, version: int) -> None:
        """The policy as it is now is this version. Only a runtime whose groups arrive later needs a copy of it."""
        self._version = version
        self._model = frozen_copy(self._learner.policy.model) if self._keeps_copy else None

    def measure(self, groups: Sequence[Group]) -> list[Group]:
        """Score the groups of the marked version with the trainer; the others come back as they are."""
        marked = [group for group in groups if _sampled_by(group, self._version)]
        if not marked:
            return list(groups)
        assembled = assemble(marked, pad_id=self._pad_id)
        logps = iter(self._learner.score(assembled, self._model).split(list(assembled.token_counts)))
        probed = {group.ticket: with_trainer(group, [next(logps) for _ in group.episodes]) for group in marked}
        return [probed.get(group.ticket, group) for group in groups]


def _sampled_by(group: Group, version: int) -> bool:
    return all(bool((episode.version == version).all()) for episode in group.episodes)


def split_drift(assembled: Assembled, now: Tensor) -> dict[str, float]:
    """Mean |difference| per token by cause, over the episodes that were probed; empty if none was."""
    counts = list(assembled.token_counts)
    rollout, current = assembled.logp_rollout.split(counts), now.split(counts)
    engine: list[Tensor] = []
    stale: list[Tensor] = []
    for index, episode in enumerate(assembled.episodes):
        if episode.logp_trainer is not None:
            engine.append(episode.logp_trainer - rollout[index])
            stale.append(current[index] - episode.logp_trainer)
    if not engine:
        return {}
    return {
        "drift/engine_abs_mean": _abs_mean(torch.cat(engine)),
        "drift/staleness_abs_mean": _abs_mean(torch.cat(stale)),
    }


def measured_now(learned: Learned) -> Tensor:
    """The trainer's log-probs at the start of the batch where it has them, else when each sequence was trained on."""
    return learned.fields.get("logp_old", learned.fields["logp_current"])


def staleness(assembled: Assembled, version: int) -> dict[str, float]:
    """Updates between sampling and learning, over tokens."""
    age = (version - assembled.version).double()
    return {"staleness/mean": float(age.mean()), "staleness/max": float(age.max())}


def diagnostics(assembled: Assembled, learned: Learned, version: int) -> dict[str, object]:
    """Where the drift is: its histogram, its course over positions, its growth with age."""
    now = measured_now(learned)
    known = ~now.isnan()
    gap = (now - assembled.logp_rollout)[known]
    age = (version - assembled.version)[known]
    position = torch.cat([torch.arange(count) for count in assembled.token_counts])[known]
    edges = torch.tensor([*EDGES, *(-edge for edge in reversed(EDGES))], dtype=torch.float64)
    inner = edges[1:-1].contiguous()
    counts = torch.bincount(torch.bucketize(gap.double(), inner), minlength=len(edges) - 1)
    width = max(1, -(-int(position.max() + 1) // POSITION_BINS)) if len(position) else 1
    return {
        "ratio_histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "drift_by_position": [
            {"from": place * width, "to": (place + 1) * width, **drift}
            for place, drift in _grouped(position // width, gap)
        ],
        "drift_by_age": [{"age": value, **drift} for value, drift in _grouped(age, gap)],
        "staleness_histogram": [
            {"age": value, "tokens": drift["tokens"]}
            for value, drift in _grouped(version - assembled.version, torch.zeros(assembled.num_tokens))
        ],
    }


def _grouped(keys: Tensor, gap: Tensor) -> list[tuple[int, dict[str, float]]]:
    """For each key: mean |gap| and how many tokens."""
    return [
        (int(key), {"abs_mean": _abs_mean(gap[keys == key]), "tokens": int((keys == key).sum())})
        for key in torch.unique(keys)
    ]


def _abs_mean(gap: Tensor) -> float:
    known = gap[~gap.isnan()]
    return float(known.double().abs().mean()) if len(known) else float("nan")
