"""The only place that measures drift along a run: by cause, by position, by age. Data for people; nothing trains on it.

A probe separates engine and staleness: the trainer's own log-probs of fresh tokens, computed with the same parameters
that sampled them. logp_trainer - logp_rollout is then the engine's error, and now - logp_trainer is staleness.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.rollout.rollouts import Rollouts
from trimtab.train.actor import Actor
from trimtab.train.learner import Learned, Learner
from trimtab.train.world import alone

EDGES = (-20.0, -10.0, -5.0, -3.0, -2.0, -1.5, -1.0, -0.7, -0.5, -0.3, -0.2, -0.1, -0.05, -0.02, -0.01, -0.005, -0.001)
"""Negative half of the log-ratio histogram's edges: fine near 0, where most ratios are, coarse far away."""
POSITION_BINS = 16
"""Bins of positions at most; answers shorter than that get one bin per token."""


class Probe:
    """Marks one version, and gives the groups sampled with it the trainer's own log-probs."""

    def __init__(self, learner: Learner, copy: Actor | None = None) -> None:
        """`copy`: a whole model of the probe's own, for a runtime whose groups arrive when the policy has moved on."""
        self._learner: Learner = learner
        self._copy: Actor | None = copy
        self._version: int = -1

    def mark(self, version: int, state: Mapping[str, Tensor]) -> None:
        """The policy as it is now is this version; `state` holds its parameters."""
        self._version = version
        if self._copy is not None:
            _ = self._copy.model.load_state_dict(dict(state), strict=False)  # a tied parameter has one name in it

    def measure(self, rollouts: Rollouts) -> Rollouts:
        """Score the groups of the marked version with the trainer; nothing is known about the others."""
        owner = rollouts.ticket[rollouts.episode.long()]
        other = owner.repeat_interleave(rollouts.token_counts)[rollouts.version != self._version]
        marked = (~torch.isin(owner, other)).nonzero()[:, 0]
        if not len(marked):
            return rollouts
        logp = torch.full((rollouts.num_tokens,), float("nan"))
        logp[rollouts.places(marked)] = self._score(rollouts.take(marked))
        return replace(rollouts, logp_trainer=logp)

    def _score(self, rollouts: Rollouts) -> Tensor:
        if self._copy is None:
            return self._learner.score(rollouts)
        passes = replace(self._learner.passes, world=alone)  # the copy is whole, and only rank 0 has one
        return passes.say(self._copy, rollouts, torch.arange(rollouts.num_sequences))["logp"]


def split_drift(rollouts: Rollouts, now: Tensor) -> dict[str, float]:
    """Mean |difference| per token by cause, over the tokens that were probed; empty if none was."""
    probed = rollouts.logp_trainer
    if probed is None or bool(probed.isnan().all()):
        return {}
    return {
        "drift/engine_abs_mean": _abs_mean(probed - rollouts.logp_rollout),
        "drift/staleness_abs_mean": _abs_mean(now - probed),
    }


def measured_now(learned: Learned) -> Tensor:
    """The trainer's log-probs at the start of the batch where it has them, else when each sequence was trained on."""
    return learned.fields.get("logp_old", learned.fields["logp_current"])


def staleness(rollouts: Rollouts, version: int) -> dict[str, float]:
    """Updates between sampling and learning, over tokens; nothing where no episode wrote one."""
    if not rollouts.num_tokens:
        return {}
    age = (version - rollouts.version).double()
    return {"staleness/mean": float(age.mean()), "staleness/max": float(age.max())}


def diagnostics(rollouts: Rollouts, learned: Learned, version: int) -> dict[str, object]:
    """Where the drift is: its histogram, its course over positions, its growth with age."""
    now = measured_now(learned)
    known = ~now.isnan()
    gap = (now - rollouts.logp_rollout)[known]
    age = (version - rollouts.version)[known]
    first = rollouts.first_token[:-1].repeat_interleave(rollouts.token_counts)
    position = (torch.arange(rollouts.num_tokens) - first)[known]
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
            for value, drift in _grouped(version - rollouts.version, torch.zeros(rollouts.num_tokens))
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
