"""Reference definitions: every formula of the catalogue as loops over plain numbers.

They are written from the docstrings and sources of the formulas, never from their code. They are slow on purpose: no
tensors, no shared reductions, one token at a time. `equals_definition` and `metric_truth` compare with them.
"""

import math
from collections.abc import Callable
from typing import Any

from trimtab.sentinel.binding.definitions_kept import KEPT
from trimtab.sentinel.binding.definitions_weighed import WEIGHED
from trimtab.sentinel.binding.plain import Answer, Flags, Plain, plain
from trimtab.sentinel.binding.plain import clamp as _clamp
from trimtab.sentinel.binding.plain import each as _each
from trimtab.sentinel.binding.plain import log_ratio as _log_ratio
from trimtab.sentinel.binding.plain import row_mean as _row_mean

__all__ = ["DEFINITIONS", "Answer", "Plain", "plain"]

# --- kl -----------------------------------------------------------------------------------------------------------


def k1(p: Plain) -> Answer:
    return _each(p, lambda t: p.logp_current[t] - p.logp_ref[t]), {}


def k2(p: Plain) -> Answer:
    return _each(p, lambda t: (p.logp_current[t] - p.logp_ref[t]) ** 2 / 2), {}


def k3(p: Plain) -> Answer:
    return _each(p, lambda t: p.exp(p.logp_ref[t] - p.logp_current[t]) - (p.logp_ref[t] - p.logp_current[t]) - 1), {}


def importance_weighted_k3(p: Plain) -> Answer:
    inner, _ = k3(p)
    return _each(p, lambda t: p.exp(p.logp_current[t] - p.logp_rollout[t]) * inner[t]), {}


# --- reward and normalisation -------------------------------------------------------------------------------------


def affine(p: Plain, bias: float, scale: float) -> Answer:
    return [(r + bias) * scale for r in p.reward], {}


def clip(p: Plain, low: float, high: float) -> Answer:
    return [_clamp(r, (low, high)) for r in p.reward], {}


def soft_overlong(p: Plain, max_length: float, buffer: float, factor: float) -> Answer:
    start = max_length - buffer
    return [r - factor * _clamp((n - start) / buffer, (0, 1)) for r, n in zip(p.reward, p.length, strict=True)], {}


def not_ended_penalty(p: Plain, amount: float) -> Answer:
    return [r if e else r - amount for r, e in zip(p.reward, p.ended, strict=True)], {}


def not_ended_scale(p: Plain, factor: float) -> Answer:
    return [r if e else r * factor for r, e in zip(p.reward, p.ended, strict=True)], {}


def raw(p: Plain) -> Answer:
    return list(p.reward), {"has_signal": [True] * len(p.reward)}


def _voters(p: Plain, i: int, level: str) -> list[float]:
    return [
        r for r, v, g in zip(p.reward, p.votes, p.group, strict=True) if v and (level == "batch" or g == p.group[i])
    ]


def mean_std(p: Plain, mean: str, std: str, ddof: int, eps: float) -> Answer:
    level = "group" if "group" in (mean, std) else "batch"
    enough = [mean == std == "none" or len(_voters(p, i, level)) >= 2 for i in range(len(p.reward))]
    out = [_scaled(p, i, mean, std, ddof, eps) if enough[i] else 0.0 for i in range(len(p.reward))]
    if std != "none":
        for i, votes in enumerate(p.votes):
            if not votes and enough[i]:
                spanned = [out[j] for j, v in enumerate(p.votes) if v and (std == "batch" or p.group[j] == p.group[i])]
                out[i] = _clamp(out[i], (min(spanned), max(spanned)))
    return out, {"has_signal": enough}


def _scaled(p: Plain, i: int, mean: str, std: str, ddof: int, eps: float) -> float:
    value = p.reward[i]
    if mean != "none":
        votes = _voters(p, i, mean)
        value -= sum(votes) / len(votes)
    if std != "none":
        votes = _voters(p, i, std)
        centre = sum(votes) / len(votes)
        spread = math.sqrt(sum((v - centre) ** 2 for v in votes) / max(len(votes) - ddof, 1))
        value = value / (spread + eps) if len(set(votes)) > 1 else value
    return value


def leave_one_out(p: Plain) -> Answer:
    out: list[float] = []
    signal: list[bool] = []
    for i, reward in enumerate(p.reward):
        others = [r for j, r in enumerate(p.reward) if j != i and p.votes[j] and p.group[j] == p.group[i]]
        signal.append(bool(others) and len(_voters(p, i, "group")) >= 2)
        out.append(reward - sum(others) / len(others) if signal[-1] else 0.0)
    return out, {"has_signal": signal}


# --- advantage ----------------------------------------------------------------------------------------------------


def broadcast(p: Plain) -> Answer:
    advantage = _each(p, lambda t: p.outcome[p.row_of[t]])
    return advantage, {"returns": advantage}


def reward_to_go(p: Plain, gamma: float) -> Answer:
    togo = _each(p, lambda t: sum(gamma ** (s - t) * p.token_reward[s] for s in p.rows[p.row_of[t]] if s >= t))
    return togo, {"returns": togo}


def gae(p: Plain, gamma: float, lam: float) -> Answer:
    out = [0.0] * len(p.row_of)
    for i, row in enumerate(p.rows):
        after = 0.0 if p.ended[i] else p.value_after[i]
        running = 0.0
        for t in reversed(row):
            running = p.token_reward[t] + gamma * after - p.value_old[t] + gamma * lam * running
            out[t], after = running, p.value_old[t]
    return out, {"returns": [advantage + value for advantage, value in zip(out, p.value_old, strict=True)]}


# --- correction ---------------------------------------------------------------------------------------------------


def _exponent(p: Plain, t: int, level: str) -> float:
    row = p.rows[p.row_of[t]]
    total = sum(_log_ratio(p, s) for s in row)
    return {"token": _log_ratio(p, t), "sequence": total, "geometric": total / len(row)}[level]


def truncated(p: Plain, level: str, band: tuple[float, float]) -> Answer:
    exponents = _each(p, lambda t: _exponent(p, t, level))
    ratios = [p.exp(x) for x in exponents]
    seen: Flags = {
        "over_high_tokens": [r > band[1] for r in ratios],
        "under_low_tokens": [r < band[0] for r in ratios],
        "exponent_bounded_tokens": [abs(x) > p.bound for x in exponents],
    }
    if level != "token":
        seen["over_high_sequences"] = [any(ratios[t] > band[1] for t in row) for row in p.rows]
        seen["under_low_sequences"] = [any(ratios[t] < band[0] for t in row) for row in p.rows]
    return [_clamp(r, band) for r in ratios], seen


def token_band(p: Plain, band: tuple[float, float]) -> Answer:
    ratios = _each(p, lambda t: p.exp(_log_ratio(p, t)))
    over, under = [r > band[1] for r in ratios], [r < band[0] for r in ratios]
    return [float(band[0] <= r <= band[1]) for r in ratios], {"over_high_tokens": over, "under_low_tokens": under}


def _row_band(p: Plain, level: str, band: tuple[float, float]) -> Answer:
    ratios = [p.exp(_exponent(p, row[0], level)) if row else 1.0 for row in p.rows]
    over = [bool(row) and r > band[1] for r, row in zip(ratios, p.rows, strict=True)]
    under = [bool(row) and r < band[0] for r, row in zip(ratios, p.rows, strict=True)]
    keep = _each(p, lambda t: float(not over[p.row_of[t]] and not under[p.row_of[t]]))
    return keep, {"over_high_sequences": over, "under_low_sequences": under}


def product_band(p: Plain, band: tuple[float, float]) -> Answer:
    return _row_band(p, "sequence", band)


def geometric_band(p: Plain, band: tuple[float, float]) -> Answer:
    return _row_band(p, "geometric", band)


def veto(p: Plain, low: float | None, high: float | None) -> Answer:
    over = [high is not None and any(p.exp(_log_ratio(p, t)) > high for t in row) for row in p.rows]
    under = [low is not None and any(p.exp(_log_ratio(p, t)) < low for t in row) for row in p.rows]
    keep = _each(p, lambda t: float(not over[p.row_of[t]] and not under[p.row_of[t]]))
    return keep, {"over_high_sequences": over, "under_low_sequences": under}


def negative_drift(p: Plain, delta: float) -> Answer:
    drift = [_row_mean(p, i, lambda t: p.logp_rollout[t] - p.logp_current[t]) for i in range(len(p.rows))]
    worse = [_row_mean(p, i, lambda t: p.advantage[t]) < 0 for i in range(len(p.rows))]
    keep = _each(p, lambda t: float(not (worse[p.row_of[t]] and drift[p.row_of[t]] > delta)))
    return keep, {"drifted_sequences": [bool(row) and d > delta for d, row in zip(drift, p.rows, strict=True)]}


# --- losses -------------------------------------------------------------------------------------------------------


def _ratio(p: Plain, t: int) -> float:
    return p.exp(p.logp_current[t] - p.logp_old[t])


def _ppo(ratio: float, advantage: float, band: tuple[float, float]) -> tuple[float, bool]:
    free, bounded = ratio * advantage, _clamp(ratio, band) * advantage
    return -min(free, bounded), bounded < free


def reinforce(p: Plain) -> Answer:
    return _each(p, lambda t: -p.advantage[t] * p.logp_current[t]), {}


def cross_entropy(p: Plain) -> Answer:
    return _each(p, lambda t: -p.logp_current[t]), {}


def clipped(p: Plain, band: tuple[float, float]) -> Answer:
    pairs = [_ppo(_ratio(p, t), p.advantage[t], band) for t in range(len(p.row_of))]
    return [loss for loss, _ in pairs], {"clipped_tokens": [flag for _, flag in pairs]}


def dual_clipped(p: Plain, band: tuple[float, float], cap: float) -> Answer:
    inner, seen = clipped(p, band)
    capped = [a < 0 and loss > -cap * a for a, loss in zip(p.advantage, inner, strict=True)]
    out = [-cap * a if c else loss for a, loss, c in zip(p.advantage, inner, capped, strict=True)]
    return out, {**seen, "capped_tokens": capped}


def geometric_clipped(p: Plain, band: tuple[float, float]) -> Answer:
    losses, flags = [0.0] * len(p.row_of), [False] * len(p.row_of)
    for row in p.rows:
        kept = [t for t in row if p.keep[t]]
        mean = sum(p.logp_current[t] - p.logp_old[t] for t in kept) / len(kept) if kept else 0.0
        for t in row:
            advantage = p.advantage[t] if p.keep[t] else 0.0
            losses[t], flags[t] = _ppo(p.exp(mean), advantage, band)
    return losses, {"clipped_tokens": flags}


def clipped_importance(p: Plain, band: tuple[float, float]) -> Answer:
    ratios = _each(p, lambda t: _ratio(p, t))
    losses = _each(p, lambda t: -_clamp(ratios[t], band) * p.advantage[t] * p.logp_current[t])
    return losses, {"clipped_tokens": [r < band[0] or r > band[1] for r in ratios]}


def soft_gated(p: Plain, temperature_positive: float, temperature_negative: float) -> Answer:
    def loss(t: int) -> float:
        tau = temperature_positive if p.advantage[t] > 0 else temperature_negative
        return -p.advantage[t] * 4 / tau / (1 + math.exp(-tau * (_ratio(p, t) - 1)))

    return _each(p, loss), {"clipped_tokens": [False] * len(p.row_of)}


def _covariances(p: Plain) -> dict[int, float]:
    kept = [t for t in range(len(p.row_of)) if p.keep[t]]
    mean_a = sum(p.advantage[t] for t in kept) / max(len(kept), 1)
    mean_l = sum(p.logp_current[t] for t in kept) / max(len(kept), 1)
    return {t: (p.advantage[t] - mean_a) * (p.logp_current[t] - mean_l) for t in kept}


def covariance_in_band(
    p: Plain, band: tuple[float, float], covariance_low: float, covariance_high: float, fraction: float
) -> Answer:
    free = [
        t for t, c in _covariances(p).items()
        if covariance_low < c < covariance_high and not _ppo(_ratio(p, t), p.advantage[t], band)[1]
    ]  # fmt: skip
    count = max(int(sum(map(bool, p.keep)) * fraction), 1)
    drawn = sorted(free, key=lambda t: p.token_key[t])[:count]
    return _each(p, lambda t: float(t in drawn)), {}


def covariance_largest(p: Plain, fraction: float) -> Answer:
    covariances = _covariances(p)
    count = max(int(len(covariances) * fraction), 1)
    drawn = sorted(covariances, key=lambda t: (-covariances[t], p.token_key[t]))[:count]
    return _each(p, lambda t: float(t in drawn)), {}


def covariance_clipped(p: Plain, band: tuple[float, float], **_: Any) -> Answer:
    inner, seen = clipped(p, band)
    selected = [bool(flag) for flag in p.selected]
    return [0.0 if s else loss for s, loss in zip(selected, inner, strict=True)], {**seen, "selected_tokens": selected}


def covariance_penalised(p: Plain, coef: float, **_: Any) -> Answer:
    def loss(t: int) -> float:
        penalty = coef * abs(p.logp_current[t] - p.logp_old[t]) if p.selected[t] else 0.0
        return -_ratio(p, t) * p.advantage[t] + penalty

    return _each(p, loss), {"clipped_tokens": [False] * len(p.row_of), "selected_tokens": [bool(s) for s in p.selected]}


def squared(p: Plain) -> Answer:
    return _each(p, lambda t: (p.value[t] - p.returns[t]) ** 2 / 2), {}


def squared_clipped(p: Plain, reach: float) -> Answer:
    def errors(t: int) -> tuple[float, float]:
        held = _clamp(p.value[t], (p.value_old[t] - reach, p.value_old[t] + reach))
        return (p.value[t] - p.returns[t]) ** 2, (held - p.returns[t]) ** 2

    both = [errors(t) for t in range(len(p.row_of))]
    return [max(pair) / 2 for pair in both], {"clipped_tokens": [bounded > free for free, bounded in both]}


# --- weighting ----------------------------------------------------------------------------------------------------


def _counted(p: Plain, over: str) -> list[list[int]]:
    return [[t for t in row if over == "all" or p.keep[t]] for row in p.rows]


def token_mean(p: Plain, over: str) -> Answer:
    total = sum(len(row) for row in _counted(p, over))
    return _each(p, lambda t: 1 / total if p.keep[t] else 0.0), {}


def sequence_mean_token_mean(p: Plain, over: str) -> Answer:
    rows = _counted(p, over)
    filled = sum(bool(row) for row in rows)
    return _each(p, lambda t: 1 / filled / len(rows[p.row_of[t]]) if p.keep[t] else 0.0), {}


def sequence_mean_token_sum(p: Plain, over: str) -> Answer:
    filled = sum(bool(row) for row in _counted(p, over))
    return _each(p, lambda t: 1 / filled if p.keep[t] else 0.0), {}


def constant_divisor(p: Plain, divisor: float, over: str) -> Answer:
    return [w / divisor for w in sequence_mean_token_sum(p, over)[0]], {}


def token_sum(p: Plain) -> Answer:
    return _each(p, lambda t: 1.0 if p.keep[t] else 0.0), {}


DEFINITIONS: dict[str, Callable[..., Answer]] = {
    "kl.k1": k1, "kl.k2": k2, "kl.k3": k3, "kl.importance_weighted_k3": importance_weighted_k3,
    "reward.affine": affine, "reward.clip": clip, "reward.soft_overlong": soft_overlong,
    "reward.not_ended_penalty": not_ended_penalty, "reward.not_ended_scale": not_ended_scale,
    "normalize.raw": raw, "normalize.mean_std": mean_std, "normalize.leave_one_out": leave_one_out,
    "advantage.broadcast": broadcast, "advantage.reward_to_go": reward_to_go, "advantage.gae": gae,
    "importance.truncated": truncated, "keep.token_band": token_band, "keep.product_band": product_band,
    "keep.geometric_band": geometric_band, "keep.veto": veto, "keep.negative_drift": negative_drift,
    "select.covariance_in_band": covariance_in_band, "select.covariance_largest": covariance_largest,
    "policy_loss.reinforce": reinforce, "policy_loss.cross_entropy": cross_entropy, "policy_loss.clipped": clipped,
    "policy_loss.dual_clipped": dual_clipped, "policy_loss.geometric_clipped": geometric_clipped,
    "policy_loss.geometric_clipped_token": geometric_clipped, "policy_loss.clipped_importance": clipped_importance,
    "policy_loss.soft_gated": soft_gated, "policy_loss.covariance_clipped": covariance_clipped,
    "policy_loss.covariance_penalised": covariance_penalised,
    "value_loss.squared": squared, "value_loss.squared_clipped": squared_clipped,
    "weighting.token_mean": token_mean, "weighting.sequence_mean_token_mean": sequence_mean_token_mean,
    "weighting.sequence_mean_token_sum": sequence_mean_token_sum, "weighting.constant_divisor": constant_divisor,
    "weighting.token_sum": token_sum,
    **KEPT, **WEIGHED,
}  # fmt: skip
"""Formula name to definition. A formula without one fails the suite."""
