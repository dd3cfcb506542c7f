"""Reference definitions of the trust regions, and of importances that are about turns or about everything."""

import math
from collections.abc import Callable

from trimtab.sentinel.binding.plain import Answer, Plain, clamp, each, log_ratio, row_mean, turn_of


def _moved(p: Plain, t: int) -> float:
    """How far the probability of the sampled token moved, from rollout to old."""
    return math.exp(min(p.logp_old[t], 0.0)) - math.exp(min(p.logp_rollout[t], 0.0))


def probability_band(p: Plain, low: float, high: float, by_sign: bool) -> Answer:
    over, under = (
        [_moved(p, t) > high for t in range(len(p.row_of))],
        [_moved(p, t) < -low for t in range(len(p.row_of))],
    )

    def keeps(t: int) -> float:
        if by_sign:
            return float(not (p.advantage[t] > 0 and over[t]) and not (p.advantage[t] < 0 and under[t]))
        return float(-low <= _moved(p, t) <= high)

    return each(p, keeps), {"over_high_tokens": over, "under_low_tokens": under}


def token_band_by_sign(p: Plain, band: tuple[float, float]) -> Answer:
    ratios = each(p, lambda t: p.exp(log_ratio(p, t)))
    over, under = [r > band[1] for r in ratios], [r < band[0] for r in ratios]
    drop = [(o and a > 0) or (u and a < 0) for o, u, a in zip(over, under, p.advantage, strict=True)]
    return [float(not one) for one in drop], {"over_high_tokens": over, "under_low_tokens": under}


def _coin(logp: float, logq: float, eps: float) -> float:
    logp, logq = min(logp, 0.0), min(logq, 0.0)
    tails = (-math.expm1(logp), -math.expm1(logq))
    return math.exp(logp) * (logp - logq) + tails[0] * (math.log(tails[0] + eps) - math.log(tails[1] + eps))


def binary_kl(p: Plain, limit: float, level: str, direction: str, by_sign: bool, eps: float) -> Answer:
    def distance(t: int) -> float:
        there, back = _coin(p.logp_rollout[t], p.logp_old[t], eps), _coin(p.logp_old[t], p.logp_rollout[t], eps)
        return {"earlier_to_later": there, "later_to_earlier": back, "larger": max(there, back)}[direction]

    if level == "sequence":
        return _by_sequence(p, distance, limit)
    over = [distance(t) > limit for t in range(len(p.row_of))]

    def rejected(t: int) -> bool:
        rises = p.logp_old[t] > p.logp_rollout[t]
        falls = p.logp_old[t] < p.logp_rollout[t]
        follows = (p.advantage[t] > 0 and rises) or (p.advantage[t] < 0 and falls)
        return over[t] and (follows or not by_sign)

    return each(p, lambda t: float(not rejected(t))), {"over_high_tokens": over}


def _by_sequence(p: Plain, value: Callable[[int], float], limit: float, total: str = "mean") -> Answer:
    over: list[bool] = []
    for i, row in enumerate(p.rows):
        reduced = row_mean(p, i, value) if total == "mean" else sum(value(t) for t in row)
        over.append(bool(row) and reduced > limit)
    return each(p, lambda t: float(not over[p.row_of[t]])), {"over_high_sequences": over}


def total_variation(p: Plain, limit: float) -> Answer:
    return _by_sequence(p, lambda t: abs(_moved(p, t)), limit)


def divergence(p: Plain, limit: float, measure: str, total: str) -> Answer:
    def value(t: int) -> float:
        d = log_ratio(p, t)
        return {
            "k2": d * d / 2, "k3": p.exp(d) - d - 1, "ratio_distance": abs(p.exp(d) - 1), "exp_distance": p.exp(abs(d)),
        }[measure]  # fmt: skip

    return _by_sequence(p, value, limit, total)


def outward_drift(p: Plain, limit: float) -> Answer:
    _, seen = _by_sequence(p, lambda t: abs(p.exp(log_ratio(p, t)) - 1), limit)
    drifted = [bool(flag) for flag in seen["over_high_sequences"]]
    out = each(p, lambda t: float(not (drifted[p.row_of[t]] and log_ratio(p, t) * p.advantage[t] > 0)))
    return out, {"drifted_sequences": drifted}


def prefix_budget(
    p: Plain, limit: float, last_weight: float, budget_low: float, budget_high: float, quantile: float
) -> Answer:
    over, spent = [False] * len(p.row_of), [False] * len(p.row_of)
    for row in p.rows:
        moves = [abs(_moved(p, t)) for t in row]
        ranked, saved = sorted(moves), 0.0
        for place, t in enumerate(row):
            low = int(quantile * (len(row) - 1))
            share = quantile * (len(row) - 1) - low
            middle = ranked[low] + share * (ranked[min(low + 1, len(row) - 1)] - ranked[low])
            weight = 1 - (1 - last_weight) * (place / (len(row) - 1) if place else 0.0)
            over[t] = weight * moves[place] > limit
            spent[t] = weight * moves[place] > limit + min(saved, 0.0)
            saved += weight * (min(max(middle, budget_low), budget_high) - moves[place])
    out = each(p, lambda t: float(not (spent[t] and p.advantage[t] * _moved(p, t) > 0)))
    return out, {"over_high_tokens": over, "over_budget_tokens": spent}


def second_moment(p: Plain, limit: float) -> Answer:
    return _without_farthest(p, list(range(len(p.row_of))), limit, least=1)


def second_moment_by_sign(p: Plain, limit: float) -> Answer:
    outward = [
        t for t, a in enumerate(p.advantage) if (a > 0 and log_ratio(p, t) > 0) or (a < 0 and log_ratio(p, t) < 0)
    ]
    return _without_farthest(p, outward, limit, least=0)


def _without_farthest(p: Plain, among: list[int], limit: float, least: int) -> Answer:
    nearest = sorted(among, key=lambda t: (log_ratio(p, t) ** 2, p.token_key[t]))
    rejected: set[int] = set()
    while len(nearest) > least and sum(log_ratio(p, t) ** 2 for t in nearest) / len(nearest) > limit:
        rejected.add(nearest.pop())
    return each(p, lambda t: float(t not in rejected)), {
        "over_high_tokens": [t in rejected for t in range(len(p.row_of))]
    }


def high_entropy(p: Plain, fraction: float) -> Answer:
    count = max(int(len(p.row_of) * fraction), 1)
    lowest = sorted(p.entropy, reverse=True)[:count][-1] if p.row_of else 0.0
    under = [h < lowest for h in p.entropy]
    return [float(not one) for one in under], {"under_low_tokens": under}


def _weights(p: Plain, exponent: Callable[[int], float], band: tuple[float, float]) -> Answer:
    exponents = each(p, exponent)
    ratios = [p.exp(x) for x in exponents]
    seen = {
        "over_high_tokens": [r > band[1] for r in ratios],
        "under_low_tokens": [r < band[0] for r in ratios],
        "exponent_bounded_tokens": [abs(x) > p.bound for x in exponents],
    }
    return [clamp(r, band) for r in ratios], seen


def self_normalised(p: Plain, level: str, band: tuple[float, float]) -> Answer:
    def exponent(t: int) -> float:
        row = p.rows[p.row_of[t]]
        total = sum(log_ratio(p, s) for s in row)
        return {"token": log_ratio(p, t), "sequence": total, "geometric": total / len(row)}[level]

    held, seen = _weights(p, exponent, band)
    units = held if level == "token" else [held[row[0]] for row in p.rows if row]
    if level != "token":
        ratios = [p.exp(exponent(row[0])) if row else 1.0 for row in p.rows]
        seen = {
            **seen,
            "over_high_sequences": [bool(row) and r > band[1] for r, row in zip(ratios, p.rows, strict=True)],
            "under_low_sequences": [bool(row) and r < band[0] for r, row in zip(ratios, p.rows, strict=True)],
        }
    return [w / (sum(units) / len(units)) for w in held], seen


def truncated_by_turn(p: Plain, band: tuple[float, float]) -> Answer:
    def exponent(t: int) -> float:
        own = turn_of(p, t)
        return sum(log_ratio(p, s) for s in own) / len(own)

    return _weights(p, exponent, band)


def recent_version(p: Plain, lag: int, newest: str) -> Answer:
    def latest(t: int) -> float:
        return max(p.version if newest == "batch" else [p.version[s] for s in p.rows[p.row_of[t]]])

    stale = [p.version[t] < latest(t) - lag for t in range(len(p.row_of))]
    return [float(not one) for one in stale], {"under_low_tokens": stale}


KEPT: dict[str, Callable[..., Answer]] = {
    "keep.probability_band": probability_band, "keep.binary_kl": binary_kl, "keep.total_variation": total_variation,
    "keep.divergence": divergence, "keep.outward_drift": outward_drift, "keep.prefix_budget": prefix_budget,
    "keep.second_moment": second_moment, "keep.second_moment_by_sign": second_moment_by_sign,
    "keep.high_entropy": high_entropy,
    "importance.self_normalised": self_normalised, "importance.truncated_by_turn": truncated_by_turn,
    "keep.recent_version": recent_version, "keep.token_band_by_sign": token_band_by_sign,
}  # fmt: skip
"""Formula name to definition."""
