"""Reference definitions: every formula of the catalogue as loops over plain numbers.

They are written from the docstrings and sources of the formulas, never from their code. They are slow on purpose: no
tensors, no shared reductions, one token at a time. `equals_definition` and `metric_truth` compare with them.
"""

import math
from collections.abc import Callable
from typing import Any, cast

from trimtab.sentinel.binding.definitions_kept import KEPT
from trimtab.sentinel.binding.definitions_turns import TURNS
from trimtab.sentinel.binding.definitions_weighed import WEIGHED
from trimtab.sentinel.binding.plain import Answer, Flags, Plain, plain
from trimtab.sentinel.binding.plain import clamp as _clamp
from trimtab.sentinel.binding.plain import each as _each
from trimtab.sentinel.binding.plain import log_ratio as _log_ratio
from trimtab.sentinel.binding.plain import row_mean as _row_mean
from trimtab.sentinel.binding.plain import stdev as _stdev

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


def mean_std(p: Plain, mean: str, std: str, ddof: int, eps: float, shift: float = 0.0) -> Answer:
    level = "group" if "group" in (mean, std) else "batch"
    enough = [mean == std == "none" or len(_voters(p, i, level)) >= 2 for i in range(len(p.reward))]
    out = [_scaled(p, i, mean, std, ddof, eps, shift) if enough[i] else 0.0 for i in range(len(p.reward))]
    if std != "none":
        for i, votes in enumerate(p.votes):
            if not votes and enough[i]:
                spanned = [out[j] for j, v in enumerate(p.votes) if v and (std == "batch" or p.group[j] == p.group[i])]
                out[i] = _clamp(out[i], (min(spanned), max(spanned)))
    return out, {"has_signal": enough}


def _scaled(p: Plain, i: int, mean: str, std: str, ddof: int, eps: float, shift: float) -> float:
    value = p.reward[i] - shift
    if mean != "none":
        votes = _voters(p, i, mean)
        value -= sum(votes) / len(votes)
    if std != "none":
        votes = _voters(p, i, std)
        centre = sum(votes) / len(votes)
        spread = math.sqrt(sum((v - centre) ** 2 for v in votes) / max(len(votes) - ddof, 1))
        value = value / (spread + eps) if len(set(votes)) > 1 else value
    return value


def leave_one_out(p: Plain, std: str = "none", eps: float = 1e-6) -> Answer:
    out: list[float] = []
    signal: list[bool] = []
    for i, reward in enumerate(p.reward):
        others = [r for j, r in enumerate(p.reward) if j != i and p.votes[j] and p.group[j] == p.group[i]]
        signal.append(bool(others) and len(_voters(p, i, "group")) >= 2)
        spread = _stdev(others) + eps if std == "others" and len(set(others)) > 1 else 1.0
        out.append((reward - sum(others) / len(others)) / spread if signal[-1] else 0.0)
    return _within_voters(p, out) if std == "others" else out, {"has_signal": signal}


def _within_voters(p: Plain, out: list[float]) -> list[float]:
    held = list(out)
    for i, votes in enumerate(p.votes):
        spanned = [out[j] for j, v in enumerate(p.votes) if v and p.group[j] == p.group[i]]
        held[i] = out[i] if votes or not spanned else _clamp(out[i], (min(spanned), max(spanned)))
    return held


# --- advantage ----------------------------------------------------------------------------------------------------


def broadcast(p: Plain) -> Answer:
    advantage = _each(p, lambda t: p.outcome[p.row_of[t]])
    return advantage, {"returns": advantage}


def reward_to_go(p: Plain, gamma: float) -> Answer:
    togo = _each(p, lambda t: sum(gamma ** (s - t) * p.token_reward[s] for s in p.rows[p.row_of[t]] if s >= t))
    return togo, {"returns": togo}


def gae(p: Plain, gamma: float, lam: float, lam_value: float | None = None) -> Answer:
    returns = _gae(p, gamma, lambda _: lam if lam_value is None else lam_value)
    return _gae(p, gamma, lambda _: lam), {"returns": [a + v for a, v in zip(returns, p.value_old, strict=True)]}


def _gae(p: Plain, gamma: float, lam_of: Callable[[int], float]) -> list[float]:
    """`lam_of`: lambda by the number of a sequence's tokens."""
    out = [0.0] * len(p.row_of)
    for i, row in enumerate(p.rows):
        after = 0.0 if p.ended[i] else p.value_after[i]
        running = 0.0
        for t in reversed(row):
            running = p.token_reward[t] + gamma * after - p.value_old[t] + gamma * lam_of(len(row)) * running
            out[t], after = running, p.value_old[t]
    return out


# --- other baselines, several rewards -----------------------------------------------------------------------------


def _compared(p: Plain, i: int) -> bool:
    return len(_voters(p, i, "group")) >= 2


def over_mean(p: Plain) -> Answer:
    enough = [_compared(p, i) for i in range(len(p.reward))]
    out = [0.0] * len(enough)
    for i, reward in enumerate(p.reward):
        votes = _voters(p, i, "group")
        out[i] = reward / (sum(votes) / len(votes)) - 1 if enough[i] and sum(votes) > 0 else 0.0
    return _within_voters(p, out), {"has_signal": enough}


def length_weighted_mean(p: Plain) -> Answer:
    out, signal = [0.0] * len(p.reward), [False] * len(p.reward)
    for i, reward in enumerate(p.reward):
        mates = [j for j, v in enumerate(p.votes) if v and p.group[j] == p.group[i]]
        length = sum(p.length[j] for j in mates)
        signal[i] = len(mates) >= 2 and length > 0
        out[i] = reward - sum(p.length[j] * p.reward[j] for j in mates) / length if signal[i] else 0.0
    return out, {"has_signal": signal}


def best_minus_second(p: Plain, std: str, eps: float) -> Answer:
    out = [0.0] * len(p.reward)
    for i, reward in enumerate(p.reward):
        votes = sorted(_voters(p, i, "group"), reverse=True)
        if p.votes[i] and len(votes) >= 2 and reward == votes[0]:
            out[i] = (votes[0] - votes[1]) / (_stdev(votes) + eps if std == "group" else 1.0)
    return out, {"has_signal": [_compared(p, i) for i in range(len(out))]}


def rescaled_mean(p: Plain, counted: str) -> Answer:
    voters = [i for i, v in enumerate(p.votes) if v]
    varied = [i for i in voters if len(set(_voters(p, i, "group"))) > 1]
    teaching = varied if counted == "varied_groups" else [i for i in voters if p.reward[i] != 0]
    factor = len(voters) / len(teaching) if teaching else 1.0
    enough = [_compared(p, i) for i in range(len(p.reward))]
    means = [sum(_voters(p, i, "group")) / max(len(_voters(p, i, "group")), 1) for i in range(len(enough))]
    return [(r - m) * factor if e else 0.0 for r, m, e in zip(p.reward, means, enough, strict=True)], {
        "has_signal": enough
    }


RUNNING = {"running_mean": 0.25, "running_std": 0.5}
"""What a run is said to have seen so far."""


def running(p: Plain, eps: float) -> Answer:
    mean, spread = RUNNING["running_mean"], RUNNING["running_std"]
    return [(r - mean) / (spread + eps) for r in p.reward], {"has_signal": [True] * len(p.reward)}


def minus_role_average(p: Plain, decay: float) -> Answer:
    del decay  # it acts between batches
    return [r - b for r, b in zip(p.reward, p.role_average, strict=True)], {"has_signal": [True] * len(p.reward)}


def minus_given(p: Plain) -> Answer:
    return [r - b for r, b in zip(p.reward, p.baseline, strict=True)], {"has_signal": [True] * len(p.reward)}


def _columns(p: Plain) -> list[tuple[list[float], list[float]]]:
    """Each key: its rewards, and which of them there are."""
    rewards, there = cast("Any", p.rewards), cast("Any", p.rewards_scored)
    return [([row[k] for row in rewards], [row[k] for row in there]) for k in range(len(rewards[0]) if rewards else 0)]


def weighted_sum(p: Plain, weights: tuple[float, ...]) -> Answer:
    out = [0.0] * len(p.reward)
    for weight, (rewards, there) in zip(weights, _columns(p), strict=True):
        out = [o + (weight * r if t else 0.0) for o, r, t in zip(out, rewards, there, strict=True)]
    return out, {}


def each_key(p: Plain, weights: tuple[float, ...], ddof: int, eps: float, whitened: bool) -> Answer:
    out, signal = [0.0] * len(p.reward), [False] * len(p.reward)
    for weight, (rewards, there) in zip(weights, _columns(p), strict=True):
        votes = [float(bool(v and t)) for v, t in zip(p.votes, there, strict=True)]
        own = Plain(p.tokens, {**p.sequences, "reward": rewards, "votes": votes}, p.rows, p.row_of)
        found, seen = mean_std(own, "group", "group", ddof, eps)
        out = [o + (weight * f if t else 0.0) for o, f, t in zip(out, found, there, strict=True)]
        signal = [s or bool(e and t) for s, e, t in zip(signal, seen["has_signal"], there, strict=True)]
    white = _white(out, [bool(v and s) for v, s in zip(p.votes, signal, strict=True)]) if whitened else out
    return [w if s else 0.0 for w, s in zip(white, signal, strict=True)], {"has_signal": signal}


def _white(values: list[float], votes: list[bool]) -> list[float]:
    among = [value for value, vote in zip(values, votes, strict=True) if vote]
    if len(among) < 2:
        return [0.0] * len(values)
    centre, scale = sum(among) / len(among), math.sqrt(_stdev(among) ** 2 + 1e-8) if len(set(among)) > 1 else 1.0
    return [(_clamp(value, (min(among), max(among))) - centre) / scale for value in values]


def not_ended_constant(p: Plain, value: float) -> Answer:
    return [r if e else value for r, e in zip(p.reward, p.ended, strict=True)], {}


def relative_length(p: Plain, factor: float) -> Answer:
    out = list(p.reward)
    for i, votes in enumerate([_voters(p, i, "group") for i in range(len(out))]):
        longest = max(
            [n for n, v, g in zip(p.length, p.votes, p.group, strict=True) if v and g == p.group[i]], default=0
        )
        if votes and longest > 0:
            out[i] -= factor * sum(votes) / len(votes) * min(p.length[i] / longest, 1.0)
    return out, {}


def gae_by_length(p: Plain, alpha: float, gamma: float, lam_value: float) -> Answer:
    advantage = _gae(p, gamma, lambda n: max(0.0, 1 - 1 / (alpha * n)))
    returns = _gae(p, gamma, lambda _: lam_value)
    return advantage, {"returns": [a + v for a, v in zip(returns, p.value_old, strict=True)]}


def gae_by_share(p: Plain, share: float, gamma: float) -> Answer:
    advantage = _gae(p, gamma, lambda n: share ** (1 / (n - 1)) if n > 1 else 1.0)
    return advantage, {"returns": [a + v for a, v in zip(advantage, p.value_old, strict=True)]}


def plus_teacher(p: Plain, coef: float, outcome_coef: float) -> Answer:
    out = _each(p, lambda t: outcome_coef * p.outcome[p.row_of[t]] + coef * (p.logp_teacher[t] - p.logp_old[t]))
    return out, {"returns": out}


def scaled_by_teacher(p: Plain, share: float, band: tuple[float, float]) -> Answer:
    def credit(t: int) -> float:
        whole = p.outcome[p.row_of[t]]
        sign = (whole > 0) - (whole < 0)
        return whole * (1 - share + share * _clamp(p.exp(sign * (p.logp_teacher[t] - p.logp_old[t])), band))

    out = _each(p, credit)
    return out, {"returns": out}


def optimal_token_baseline(p: Plain, eps: float) -> Answer:
    returns, _ = reward_to_go(p, 1.0)
    sizes = _each(p, lambda t: 1 - 2 * math.exp(p.logp_old[t]) + p.pi_squared[t])
    out = list(returns)
    for i, row in enumerate(p.rows):
        for step, t in enumerate(row):
            mates = [
                other for j, other in enumerate(p.rows)
                if p.votes[j] and p.group[j] == p.group[i] and len(other) > step
            ]  # fmt: skip
            weights = [sum(sizes[s] for s in other[: step + 1]) for other in mates]
            paid = sum(w * returns[other[step]] for w, other in zip(weights, mates, strict=True))
            out[t] -= paid / (sum(weights) + eps) if len(mates) >= 2 else 0.0
    return out, {"returns": returns}


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
    "reward.not_ended_constant": not_ended_constant, "reward.relative_length": relative_length,
    "normalize.over_mean": over_mean, "normalize.length_weighted_mean": length_weighted_mean,
    "normalize.best_minus_second": best_minus_second, "normalize.rescaled_mean": rescaled_mean,
    "normalize.minus_given": minus_given, "normalize.running": running,
    "normalize.minus_role_average": minus_role_average,
    "normalize.each_key": each_key, "reward.weighted_sum": weighted_sum,
    "advantage.broadcast": broadcast, "advantage.reward_to_go": reward_to_go, "advantage.gae": gae,
    "advantage.gae_by_length": gae_by_length, "advantage.gae_by_share": gae_by_share,
    "advantage.plus_teacher": plus_teacher, "advantage.scaled_by_teacher": scaled_by_teacher,
    "advantage.optimal_token_baseline": optimal_token_baseline,
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
    **KEPT, **WEIGHED, **TURNS,
}  # fmt: skip
"""Formula name to definition. A formula without one fails the suite."""
