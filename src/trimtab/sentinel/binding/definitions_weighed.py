"""Reference definitions of losses with soft weights and bounds, of the KLs beside them, and of the wider averages."""

import math
from collections.abc import Callable

from trimtab.sentinel.binding.plain import Answer, Plain, clamp, each, row_mean, turn_of

# --- losses -------------------------------------------------------------------------------------------------------


def _d(p: Plain, t: int) -> float:
    return p.logp_current[t] - p.logp_old[t]


def _kept_mean(p: Plain, t: int, value: Callable[[int], float]) -> float:
    kept = [s for s in p.rows[p.row_of[t]] if p.keep[s]]
    return sum(value(s) for s in kept) / len(kept) if kept else 0.0


def _credit(p: Plain, t: int) -> float:
    """A rejected token has no advantage left."""
    return p.advantage[t] if p.keep[t] else 0.0


def geometric_of_clipped(p: Plain, band: tuple[float, float]) -> Answer:
    low, high = math.log(band[0]) if band[0] > 0 else -math.inf, math.log(band[1])

    def held(s: int) -> float:
        return min(_d(p, s), high) if p.advantage[s] > 0 else max(_d(p, s), low)

    def clipped(t: int) -> bool:
        up, down = _d(p, t) > high, _d(p, t) < low
        return bool(p.keep[t]) and ((p.advantage[t] > 0 and up) or (p.advantage[t] < 0 and down))

    flags = [clipped(t) for t in range(len(p.row_of))]
    return each(p, lambda t: -_credit(p, t) * p.exp(_kept_mean(p, t, held))), {"clipped_tokens": flags}


def gamma_weighted(
    p: Plain, power_positive: float, rate_positive: float, power_negative: float, rate_negative: float
) -> Answer:
    def loss(t: int) -> float:
        total = clamp(sum(_d(p, s) for s in p.rows[p.row_of[t]]), (-p.bound, p.bound))
        power, rate = (power_positive, rate_positive) if p.advantage[t] >= 0 else (power_negative, rate_negative)
        weight = math.exp(rate + power * total - rate * p.exp(total))
        return -weight * p.advantage[t] * p.logp_current[t]

    return each(p, loss), {}


def quadratic(p: Plain, coef: float) -> Answer:
    return each(p, lambda t: coef * _d(p, t) ** 2 / 2 - p.advantage[t] * p.logp_current[t]), {}


def tapered(p: Plain, band: tuple[float, float], level: str) -> Answer:
    def ratio(t: int) -> float:
        kept = [s for s in p.rows[p.row_of[t]] if p.keep[s]]
        own = _d(p, t) if p.keep[t] else 0.0
        total = sum(_d(p, s) for s in kept)
        return p.exp({"token": own, "sequence": total, "geometric": total / max(len(kept), 1)}[level])

    def loss(t: int) -> float:
        logp = p.logp_current[t] if p.keep[t] else 0.0
        weight = 1.0 if _credit(p, t) > 0 else clamp(ratio(t), band)
        return -weight * _credit(p, t) * logp

    flags = [_credit(p, t) <= 0 and not band[0] <= ratio(t) <= band[1] for t in range(len(p.row_of))]
    return each(p, loss), {"clipped_tokens": flags}


def geometric_soft_gated(p: Plain, temperature_positive: float, temperature_negative: float) -> Answer:
    def loss(t: int) -> float:
        credit = _credit(p, t)
        tau = temperature_positive if credit > 0 else temperature_negative
        ratio = p.exp(_kept_mean(p, t, lambda s: _d(p, s)))
        return -credit * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))

    return each(p, loss), {"clipped_tokens": [False] * len(p.row_of)}


def turn_clipped(p: Plain, band: tuple[float, float]) -> Answer:
    def pair(t: int) -> tuple[float, float]:
        kept = [s for s in turn_of(p, t) if p.keep[s]]
        ratio = p.exp(sum(_d(p, s) for s in kept) / max(len(kept), 1))
        return ratio * _credit(p, t), clamp(ratio, band) * _credit(p, t)

    pairs = [pair(t) for t in range(len(p.row_of))]
    return [-min(one) for one in pairs], {"clipped_tokens": [bounded < free for free, bounded in pairs]}


def huber_clipped(p: Plain, reach: float, width: float) -> Answer:
    def cost(error: float) -> float:
        return error * error / 2 if abs(error) < width else width * (abs(error) - width / 2)

    def both(t: int) -> tuple[float, float]:
        held = clamp(p.value[t], (p.value_old[t] - reach, p.value_old[t] + reach))
        return cost(p.value[t] - p.returns[t]), cost(held - p.returns[t])

    pairs = [both(t) for t in range(len(p.row_of))]
    return [max(pair) for pair in pairs], {"clipped_tokens": [held > free for free, held in pairs]}


# --- kl -----------------------------------------------------------------------------------------------------------


def _k(p: Plain, t: int, name: str) -> float:
    d = p.logp_current[t] - p.logp_ref[t]
    return {"k1": d, "k2": d * d / 2, "k3": p.exp(-d) + d - 1, "abs": abs(d)}[name]


def _by_sampler(p: Plain, t: int) -> float:
    return p.exp(p.logp_current[t] - p.logp_rollout[t])


def absolute(p: Plain) -> Answer:
    return each(p, lambda t: _k(p, t, "abs")), {}


def importance_weighted_k1(p: Plain) -> Answer:
    return each(p, lambda t: _by_sampler(p, t) * _k(p, t, "k1")), {}


def importance_weighted_k2(p: Plain) -> Answer:
    return each(p, lambda t: _by_sampler(p, t) * _k(p, t, "k2")), {}


def geometric_weighted_k3(p: Plain) -> Answer:
    def ratio(t: int) -> float:
        return p.exp(row_mean(p, p.row_of[t], lambda s: p.logp_current[s] - p.logp_rollout[s]))

    return each(p, lambda t: ratio(t) * _k(p, t, "k3")), {}


def k2_gradient(p: Plain, value: str) -> Answer:
    return each(p, lambda t: _k(p, t, value)), {}


def importance_weighted_k2_gradient(p: Plain, value: str, cap: float) -> Answer:
    """The weight and its cap are in the gradient only."""
    return each(p, lambda t: _k(p, t, value)), {}


def anchor_square(p: Plain) -> Answer:
    return each(p, lambda t: (p.logp_current[t] - p.logp_rollout[t]) ** 2), {}


# --- averages -----------------------------------------------------------------------------------------------------


def _share(p: Plain, name: list[float], over: str) -> Answer:
    """One over the number of named units with a counted token, times the counted tokens of the token's own unit."""
    counted = [t for t in range(len(p.row_of)) if over == "all" or p.keep[t]]
    units = [name[p.row_of[t]] for t in counted]

    def weight(t: int) -> float:
        return 1 / len(set(units)) / units.count(name[p.row_of[t]]) if p.keep[t] else 0.0

    return each(p, weight), {}


def prompt_mean(p: Plain, over: str) -> Answer:
    return _share(p, p.group, over)


def episode_mean(p: Plain, over: str) -> Answer:
    return _share(p, p.episode, over)


def given_weight(p: Plain, by: str, over: str) -> Answer:
    """The case has no weights of its own; its entropies stand for them."""
    counted = [t for t in range(len(p.row_of)) if over == "all" or p.keep[t]]
    total = sum(p.entropy[t] for t in counted) if by == "weights" else len(counted)
    return each(p, lambda t: p.entropy[t] / total if p.keep[t] and total else 0.0), {}


WEIGHED: dict[str, Callable[..., Answer]] = {
    "policy_loss.geometric_of_clipped": geometric_of_clipped, "policy_loss.gamma_weighted": gamma_weighted,
    "policy_loss.turn_clipped": turn_clipped, "policy_loss.quadratic": quadratic, "policy_loss.tapered": tapered,
    "policy_loss.geometric_soft_gated": geometric_soft_gated, "value_loss.huber_clipped": huber_clipped,
    "kl.absolute": absolute, "kl.importance_weighted_k1": importance_weighted_k1,
    "kl.importance_weighted_k2": importance_weighted_k2, "kl.geometric_weighted_k3": geometric_weighted_k3,
    "kl.k2_gradient": k2_gradient, "kl.importance_weighted_k2_gradient": importance_weighted_k2_gradient,
    "kl.anchor_square": anchor_square,
    "weighting.prompt_mean": prompt_mean, "weighting.episode_mean": episode_mean,
    "weighting.given_weight": given_weight,
}  # fmt: skip
"""Formula name to definition."""
