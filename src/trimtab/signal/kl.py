"""KL estimators: the divergence of a policy from a reference, one number per token, from the sampled token alone.

k1, k2, k3 are J. Schulman's names (joschu.net/blog/kl-approx.html, 2020) for estimators of KL(policy || reference)
from samples of the policy. Whether a KL enters the reward or the loss is the recipe's choice, not theirs.
"""

from trimtab.signal.catalogue import formula
from trimtab.signal.layout import PerToken
from trimtab.signal.reduce import bounded_exp

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
