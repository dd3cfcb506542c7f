"""KL estimators: the divergence of a policy from a reference, one number per token, from the sampled token alone.

k1, k2, k3 are J. Schulman's names (joschu.net/blog/kl-approx.html, 2020) for estimators of KL(policy || reference)
from samples of the policy. Whether a KL enters the reward or the loss is the recipe's choice, not theirs.
"""

from collections.abc import Callable
from typing import Literal

from trimtab.signal.catalogue import Ceiling, formula
from trimtab.signal.layout import PerToken, Segments
from trimtab.signal.reduce import bounded_exp, sequence_mean, to_tokens

Estimator = Literal["k1", "k2", "k3"]

_SCHULMAN = "Schulman 2020, Approximating KL Divergence, joschu.net/blog/kl-approx.html"
_PROMISES = ("mask_content", "nonfinite_isolation", "no_aliasing", "permutation", "equals_definition")


@formula(source=f"{_SCHULMAN}, k1", scope="token", promises=_PROMISES)
def k1(logp_current: PerToken, logp_ref: PerToken) -> PerToken:
    """The log-ratio itself: unbiased, high variance, can be negative.

    k1_t = logp_current_t - logp_ref_t
    """
    return logp_current - logp_ref.detach()


@formula(source=f"{_SCHULMAN}, k2", scope="token", promises=_PROMISES)
def k2(logp_current: PerToken, logp_ref: PerToken) -> PerToken:
    """Half the squared log-ratio: biased, never negative; as a loss its gradient is the KL's.

    k2_t = (logp_current_t - logp_ref_t)^2 / 2
    """
    return 0.5 * (logp_current - logp_ref.detach()).square()


@formula(source=f"{_SCHULMAN}, k3", scope="token", promises=_PROMISES)
def k3(logp_current: PerToken, logp_ref: PerToken) -> PerToken:
    """The log-ratio with its control variate: unbiased, never negative.

    k3_t = exp(d_t) - d_t - 1,   d_t = logp_ref_t - logp_current_t

    Differs from the source: d is bounded to ±20 inside the exponential only.
    """
    difference = logp_ref.detach() - logp_current
    return bounded_exp(difference) - difference - 1


@formula(
    source="DeepSeek-AI 2025, DeepSeek-V3.2, arXiv:2512.02556, unbiased KL estimate",
    scope="token",
    promises=_PROMISES,
)
def importance_weighted_k3(logp_current: PerToken, logp_ref: PerToken, logp_anchor: PerToken) -> PerToken:
    """k3 under samples of another policy: reweighted by current/anchor, so that value and gradient are unbiased.

    kl_t = exp(logp_current_t - logp_anchor_t) * k3_t

    The ratio carries gradient: that is the score-function term which plain k3 in a loss lacks.
    """
    return bounded_exp(logp_current - logp_anchor.detach()) * k3(logp_current, logp_ref)


@formula(source="verl, kl_penalty = abs", scope="token", promises=_PROMISES)
def absolute(logp_current: PerToken, logp_ref: PerToken) -> PerToken:
    """The size of the log-ratio: never negative; as a loss it pulls with the same force however far the policy is.

    kl_t = |logp_current_t - logp_ref_t|
    """
    return (logp_current - logp_ref.detach()).abs()


@formula(source="open-instruct, kl_estimator = 3; slime, unbiased KL with k1", scope="token", promises=_PROMISES)
def importance_weighted_k1(logp_current: PerToken, logp_ref: PerToken, logp_anchor: PerToken) -> PerToken:
    """k1 under samples of another policy: reweighted by current/anchor, with the gradient of both.

    kl_t = exp(logp_current_t - logp_anchor_t) * k1_t

    Its gradient is ratio * (k1 + 1); the 1 has mean 0 and adds noise only.
    """
    return bounded_exp(logp_current - logp_anchor.detach()) * k1(logp_current, logp_ref)


@formula(source="slime, unbiased KL with k2", scope="token", promises=_PROMISES)
def importance_weighted_k2(logp_current: PerToken, logp_ref: PerToken, logp_anchor: PerToken) -> PerToken:
    """k2 under samples of another policy: reweighted by current/anchor, with the gradient of both.

    kl_t = exp(logp_current_t - logp_anchor_t) * k2_t

    The gradient of k2 alone is already the KL's; the ratio's own gradient comes on top of it.
    """
    return bounded_exp(logp_current - logp_anchor.detach()) * k2(logp_current, logp_ref)


@formula(
    source="TRL, use_bias_correction_kl with importance_sampling_level = sequence", scope="sequence", promises=_PROMISES
)
def geometric_weighted_k3(
    logp_current: PerToken, logp_ref: PerToken, logp_anchor: PerToken, segments: Segments
) -> PerToken:
    """k3 times the geometric-mean ratio of the sequence; every token's KL sends a gradient into all of its sequence.

    kl_t = exp(mean over the sequence of (logp_current - logp_anchor)) * k3_t

    It is not unbiased: only importance_weighted_k3 is. With on = "kept" a rejected token counts as ratio 1.
    """
    log_ratio = sequence_mean(logp_current - logp_anchor.detach(), segments)
    return bounded_exp(to_tokens(log_ratio, segments)) * k3(logp_current, logp_ref)


@formula(source="verl, kl_loss_type with a + (straight-through)", scope="token", promises=_PROMISES)
def k2_gradient(logp_current: PerToken, logp_ref: PerToken, *, value: Estimator = "k3") -> PerToken:
    """The value of one estimator with the gradient of k2, which is that of the KL for samples of the current policy.

    kl_t = sg(value_t - k2_t) + k2_t

    k1 has an expected gradient of 0 in a loss, and k3 that of the other direction; k2 has the right one.
    """
    slope = k2(logp_current, logp_ref)
    return slope + (_ESTIMATORS[value](logp_current, logp_ref) - slope).detach()


@formula(source="OpenRLHF, kl.unbiased_gradient", scope="token", promises=_PROMISES)
def importance_weighted_k2_gradient(
    logp_current: PerToken,
    logp_ref: PerToken,
    logp_anchor: PerToken,
    *,
    value: Estimator = "k3",
    cap: Ceiling = 10.0,
) -> PerToken:
    """As k2_gradient, for samples of another policy: the slope is weighted by current/anchor, bounded and detached.

    kl_t = sg(value_t - w_t * k2_t) + w_t * k2_t,   w_t = sg(min(exp(logp_current_t - logp_anchor_t), cap))

    Settings in use: cap is 10 in OpenRLHF.
    """
    weight = bounded_exp((logp_current - logp_anchor).detach()).clamp(max=cap)
    slope = weight * k2(logp_current, logp_ref)
    return slope + (_ESTIMATORS[value](logp_current, logp_ref) - slope).detach()


@formula(
    source="Kimi Team 2026, Kimi K2.5, arXiv:2602.02276; prime-rl, kl_tau",
    scope="token",
    promises=_PROMISES,
    known_as=("behaviour penalty",),
)
def anchor_square(logp_current: PerToken, logp_anchor: PerToken) -> PerToken:
    """The squared log-ratio to the policy that sampled, in place of a reference.

    kl_t = (logp_current_t - logp_anchor_t)^2

    Settings in use: coef 1e-3 with anchor = "rollout" in prime-rl, on all tokens, also those a trust region rejects.
    There is no 1/2, unlike k2.
    """
    return (logp_current - logp_anchor.detach()).square()


_ESTIMATORS: dict[str, Callable[[PerToken, PerToken], PerToken]] = {"k1": k1, "k2": k2, "k3": k3}
