"""Evidence that only several rows together give: the only place of the watch that compares rows of one prompt.

Rewards and groups against the advantage; first tokens of answers to one prompt against chance; and whether each row of
a batch trained as often as every other.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trimtab.signal.group import renumbered
from trimtab.signal.metric_kind import Mean, Metric, Spread, Sum
from trimtab.signal.normalize import mean_std
from trimtab.watch.flat import Flags, Flat, Floats, Integers

LEAST = 1e-6
"""An advantage smaller than this is that of a group without differences, where only rounding is left."""


@dataclass(frozen=True)
class Rewards:
    """Rewards and groups of a whole batch, all ranks together, and which of the rows are this rank's.

    reward = [1, 0, 0, 1], group = [0, 0, 1, 1], row = [2, 3] on the second of two ranks.
    """

    reward: Floats
    group: Integers
    row: Integers
    advantage: Floats | None
    """One per own row, None where the trainer has one per token."""
    normalize: Mapping[str, Any] | None
    """How the trainer says that it compares rewards: the settings of `normalize.mean_std`."""

    @property
    def scored(self) -> Flags:
        return np.isfinite(self.reward)

    def spread(self, level: str) -> Floats:
        """The standard deviation of the rewards around each row's mean, per group or of the batch, one per row."""
        index = self.group if level == "group" else np.zeros_like(self.group)
        reward, weight = np.where(self.scored, self.reward, 0.0), self.scored.astype(np.float64)
        size = np.bincount(index, weight)
        mean = np.bincount(index, reward) / np.maximum(size, 1)
        square = np.bincount(index, weight * (reward - mean[index]) ** 2)
        return np.sqrt(square / np.maximum(size - 1, 1))[index]

    def expected(self) -> Floats | None:
        """The advantage that rewards, groups and the trainer's own settings give, of every row."""
        if self.normalize is None or np.bincount(self.group).min() < 2:
            return None
        group, num = renumbered(torch.from_numpy(self.group))
        scored = torch.from_numpy(self.scored)
        reward = torch.from_numpy(np.where(self.scored, self.reward, 0.0))
        found, _ = mean_std(reward, scored, group, num, **self.normalize)
        return np.where(self.scored, found.numpy(), 0.0)


def reward_metrics(rewards: Rewards) -> dict[str, Metric]:
    """Of the own rows; a group is counted where its first row is, so that ranks add up to the whole."""
    own, scored = rewards.reward[rewards.row], rewards.scored[rewards.row]
    values = np.where(scored, own, 0.0)
    _, first = np.unique(rewards.group, return_index=True)
    mine = np.isin(first, rewards.row)
    high, low = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    place = renumbered(torch.from_numpy(rewards.group))[0].numpy()
    np.maximum.at(high, place, np.where(rewards.scored, rewards.reward, -np.inf))
    np.minimum.at(low, place, np.where(rewards.scored, rewards.reward, np.inf))
    return {
        "reward/episode_mean": Mean.of(values, scored),
        "reward/episode_std": Spread.of(values, scored),
        "constant_groups/group_fraction": Mean.fraction(high == low, mine & (high > -np.inf)),
    }


def advantage_evidence(rewards: Rewards) -> dict[str, Metric]:
    """The advantage as a share of the one that is expected: its log, alone and times each spread of the rewards."""
    due = rewards.expected()
    if due is None or rewards.advantage is None:
        return {}
    own = due[rewards.row]
    compared = np.abs(own) > LEAST
    share = rewards.advantage[compared] / own[compared]
    same_sign = share > 0
    logs = np.log(share[same_sign])
    found: dict[str, Metric] = {
        "evidence/advantage/rows": Sum(float(compared.sum())),
        "evidence/advantage/other_sign": Sum(float((~same_sign).sum())),
    }
    candidates = {"share": logs}
    for level in ("group", "batch"):
        spread = rewards.spread(level)[rewards.row][compared][same_sign]
        candidates[f"again_{level}"] = logs + np.log(np.maximum(spread, 1e-12))
    for name, values in candidates.items():
        found[f"evidence/advantage/{name}/n"] = Sum(float(values.size))
        found[f"evidence/advantage/{name}/sum"] = Sum(float(values.sum()))
        found[f"evidence/advantage/{name}/square"] = Sum(float(values @ values))
    return found


def first_tokens(flats: Sequence[Flat], rewards: Rewards | None) -> dict[str, Metric]:
    """Groups of a step whose answers all begin with one token, and the log of the chance that they do.

    Answers to one prompt are drawn independently. Given the first of them, each other begins with the same token with
    the probability that the policy gives this token. The chance that all do is the product.
    """
    if rewards is None:
        return {}
    starts: dict[int, list[tuple[int, float]]] = {}
    for group, token, logp in _starts(flats, rewards):
        starts.setdefault(group, []).append((token, logp))
    several = [members for members in starts.values() if len(members) > 1]
    alike = [members for members in several if len({token for token, _ in members}) == 1]
    chance = sum(min(logp, 0.0) for members in alike for _, logp in members[1:])
    return {
        "evidence/first/groups": Sum(float(len(several))),
        "evidence/first/alike": Sum(float(len(alike))),
        "evidence/first/logp": Sum(chance),
    }


def _starts(flats: Sequence[Flat], rewards: Rewards) -> Iterator[tuple[int, int, float]]:
    for flat in flats:
        if flat.first_id is None or "row" not in flat.rows or "logp_current" not in flat.tokens:
            continue
        begin = flat.counts.cumsum() - flat.counts
        for place, row in enumerate(flat.rows["row"].astype(np.int64)):
            if flat.counts[place] and row < len(rewards.group):
                logp = float(flat.tokens["logp_current"][begin[place]])
                yield int(rewards.group[row]), int(flat.first_id[place]), logp


def unequal(seen: Counter[int], rows: Integers) -> tuple[int, int]:
    """How many rows of a batch trained less often, and more often, than most of them."""
    times = Counter(seen[int(row)] for row in rows)
    usual = times.most_common(1)[0][0] if times else 0
    less = sum(count for time, count in times.items() if time < usual)
    return less, sum(count for time, count in times.items() if time > usual)
