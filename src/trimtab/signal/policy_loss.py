"""Policy losses: one number per token, to be minimised, never averaged.

Each takes `logp_current` (the only input with gradient), an anchor where it has a ratio, and the advantage, and returns
the token losses with their observations. Which tokens count, and how much, is decided elsewhere: rejected tokens arrive
as log-ratio 0 and advantage 0, and `keep` says which they are to a formula that looks across a sequence.
Formulas are named for their arithmetic; the papers' names are recipes.
"""

import torch
from torch import Tensor

from trimtab.signal.catalogue import Band, Ceiling, NonNegative, Positive, Rule, Unit, formula
from trimtab.signal.layout import Keep, PerToken, Segments, TokenIndex
from trimtab.signal.reduce import bounded_exp, sequence_mean, smallest, to_tokens

Losses = tuple[PerToken, dict[str, Tensor]]

_COMMON = ("mask_content", "nonfinite_isolation", "no_aliasing", "split", "permutation", "equals_definition")
_RATIO = (*_COMMON, "on_policy_identity", "metric_truth")


@formula(source="Williams 1992, Machine Learning 8, eq. 11", scope="token", promises=(*_COMMON, "on_policy_identity"))
def reinforce(logp_current: PerToken, advantage: PerToken) -> Losses:
    """The score-function surrogate.

    l_t = -A_t * logp_current_t
    """
    return -advantage.detach() * logp_current, {}


@formula(source="the negative log-likelihood of the sampled tokens", scope="token", promises=_COMMON)
def cross_entropy(logp_current: PerToken) -> Losses:
    """Supervised learning on the sampled tokens; reads no advantage.

    l_t = -logp_current_t
    """
    return -logp_current, {}


@formula(
    source="Schulman et al. 2017, PPO, arXiv:1707.06347, eq. 7",
    scope="token",
    consumes="ratio",
    promises=_RATIO,
    known_as=("PPO clip",),
)
def clipped(logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, *, band: Band = (0.8, 1.2)) -> Losses:
    """The PPO surrogate, negated so that lower is better.

    l_t = -min(r_t * A_t, clamp(r_t, *band) * A_t),   r_t = exp(logp_current_t - logp_anchor_t)

    Differs from the paper: the band need not be symmetric (DAPO, arXiv:2503.14476).
    """
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    return _clip(ratio, advantage, band)


@formula(
    source="Ye et al. 2020, Mastering Complex Control in MOBA Games, arXiv:1912.09729, eq. 4",
    scope="token",
    consumes="ratio",
    promises=_RATIO,
    known_as=("dual clip",),
)
def dual_clipped(
    logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, *, band: Band = (0.8, 1.2), cap: Ceiling = 3.0
) -> Losses:
    """The PPO surrogate whose loss on a negative advantage never exceeds cap * |A|.

    l_t = clipped_t where A_t >= 0;   min(clipped_t, -cap * A_t) where A_t < 0
    """
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    inner, seen = _clip(ratio, advantage, band)
    ceiling = -cap * advantage.detach()
    capped = (advantage < 0) & (inner > ceiling)
    return torch.where(capped, ceiling, inner), {**seen, "capped_tokens": capped}


@formula(
    source="Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 5 and 7",
    scope="sequence",
    consumes="ratio",
    promises=_RATIO,
    constant_advantage=True,
    known_as=("GSPO",),
)
def geometric_clipped(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    segments: Segments,
    *,
    band: Band = (0.9997, 1.0004),
) -> Losses:
    """The PPO surrogate on the sequence's geometric-mean ratio; its gradient is shared by the sequence's tokens.

    l_t = -min(s * A_t, clamp(s, *band) * A_t),   s = exp(mean over kept tokens of (logp_current - logp_anchor))

    Undefined when the advantage or the importance varies inside a sequence (the pipeline refuses).
    """
    log_ratio = sequence_mean(logp_current - logp_anchor.detach(), segments, keep)
    return _clip(bounded_exp(to_tokens(log_ratio, segments)), advantage, band)


@formula(
    source="Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 14 and 15",
    scope="sequence",
    consumes="ratio",
    promises=_RATIO,
    known_as=("GSPO-token",),
)
def geometric_clipped_token(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    segments: Segments,
    *,
    band: Band = (0.9997, 1.0004),
) -> Losses:
    """The value of the sequence's geometric-mean ratio with each token's own gradient, so advantages may vary.

    l_t = -min(s_t * A_t, clamp(s_t, *band) * A_t),   s_t = sg(s) * exp(logp_current_t - sg(logp_current_t))
    """
    log_ratio = sequence_mean((logp_current - logp_anchor).detach(), segments, keep)
    ratio = bounded_exp(to_tokens(log_ratio, segments)) * torch.exp(logp_current - logp_current.detach())
    return _clip(ratio, advantage, band)


@formula(
    source="MiniMax 2025, MiniMax-M1, arXiv:2506.13585, eq. 4 and 5",
    scope="token",
    consumes="ratio",
    promises=_RATIO,
    known_as=("CISPO",),
)
def clipped_importance(
    logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, *, band: Band = (0.0, 5.0)
) -> Losses:
    """REINFORCE under a bounded, detached ratio: clipping bounds a token's weight and never removes its gradient.

    l_t = -sg(clamp(r_t, *band)) * A_t * logp_current_t
    """
    ratio = bounded_exp((logp_current - logp_anchor).detach())
    seen = {"clipped_tokens": (ratio < band[0]) | (ratio > band[1])}
    return -ratio.clamp(*band) * advantage.detach() * logp_current, seen


@formula(
    source="Gao et al. 2025, SAPO, arXiv:2511.20347, eq. 5 and 6",
    scope="token",
    consumes="ratio",
    promises=_RATIO,
    known_as=("SAPO",),
)
def soft_gated(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    *,
    temperature_positive: Positive = 1.0,
    temperature_negative: Positive = 1.05,
) -> Losses:
    """A smooth gate around ratio 1 in place of the hard clip; softer for positive advantages.

    l_t = -A_t * (4 / tau) * sigmoid(tau * (r_t - 1)),   tau by the sign of A_t

    Its gradient at r = 1 is REINFORCE's. Nothing is clipped, so it reports none.
    """
    ratio = bounded_exp(logp_current - logp_anchor.detach())
    positive, negative = torch.full_like(ratio, temperature_positive), torch.full_like(ratio, temperature_negative)
    tau = torch.where(advantage > 0, positive, negative)
    # sigmoid(x) as a tanh: torch's own sigmoid rounds a vector's tail otherwise than its body, so a split would show.
    gate = 0.5 * (1 + torch.tanh(0.5 * tau * (ratio - 1)))
    return -advantage.detach() * (4 / tau) * gate, {"clipped_tokens": torch.zeros_like(ratio, dtype=torch.bool)}


@formula(
    source="Cui et al. 2025, The Entropy Mechanism of RL, arXiv:2505.22617, eq. 11",
    stage="select",
    scope="update",
    promises=("no_aliasing", "permutation", "equals_definition"),
    rules=(
        Rule(
            lambda given: given["covariance_low"] < given["covariance_high"],
            "covariance_low is below covariance_high; otherwise no token is ever drawn",
        ),
    ),
)
def covariance_in_band(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    token_key: TokenIndex,
    *,
    band: Band = (0.8, 1.2),
    covariance_low: float = 1.0,
    covariance_high: float = 5.0,
    fraction: Unit = 2e-4,
) -> Keep:
    """A random `fraction` of the kept tokens, drawn among those whose covariance lies in the open band.

    cov_t = (A_t - mean A) * (logp_current_t - mean logp_current), means over kept tokens of the update

    Tokens that the PPO clip already stops are not drawn. The draw is the smallest `token_key`, a hash of
    (seed, sequence id, token index), so it does not depend on order or split.
    """
    covariance = _covariance(logp_current, advantage, keep)
    _, seen = _clip(bounded_exp(logp_current - logp_anchor), advantage, band)
    eligible = keep & ~seen["clipped_tokens"] & (covariance > covariance_low) & (covariance < covariance_high)
    return smallest(token_key.double(), eligible, _share(keep, fraction), token_key)


@formula(
    source="Cui et al. 2025, The Entropy Mechanism of RL, arXiv:2505.22617, eq. 12",
    stage="select",
    scope="update",
    promises=("no_aliasing", "permutation", "equals_definition"),
)
def covariance_largest(
    logp_current: PerToken, advantage: PerToken, keep: Keep, token_key: TokenIndex, *, fraction: Unit = 2e-3
) -> Keep:
    """The `fraction` of kept tokens with the largest covariance of advantage and log-prob; equal ones by `token_key`.

    cov_t = (A_t - mean A) * (logp_current_t - mean logp_current), means over kept tokens of the update
    """
    return smallest(-_covariance(logp_current, advantage, keep), keep, _share(keep, fraction), token_key)


@formula(
    source="Cui et al. 2025, The Entropy Mechanism of RL, arXiv:2505.22617, eq. 11 (Clip-Cov)",
    scope="token",
    consumes="ratio",
    promises=_RATIO,
    selects=covariance_in_band,
    known_as=("Clip-Cov",),
)
def covariance_clipped(
    logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, selected: Keep, *, band: Band = (0.8, 1.2)
) -> Losses:
    """The PPO surrogate without the selected tokens.

    l_t = clipped_t where t is not selected; 0 where it is
    """
    inner, seen = _clip(bounded_exp(logp_current - logp_anchor.detach()), advantage, band)
    return torch.where(selected, torch.zeros_like(inner), inner), {**seen, "selected_tokens": selected.clone()}


@formula(
    source="Cui et al. 2025, The Entropy Mechanism of RL, arXiv:2505.22617, eq. 12 (KL-Cov)",
    scope="token",
    consumes="ratio",
    promises=_RATIO,
    selects=covariance_largest,
    known_as=("KL-Cov",),
)
def covariance_penalised(
    logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, selected: Keep, *, coef: NonNegative = 1.0
) -> Losses:
    """The unclipped ratio surrogate with a penalty on the selected tokens.

    l_t = -r_t * A_t + [t is selected] * coef * |logp_current_t - logp_anchor_t|
    """
    log_ratio = logp_current - logp_anchor.detach()
    penalty = torch.where(selected, log_ratio, torch.zeros_like(log_ratio)).abs()
    seen = {"clipped_tokens": torch.zeros_like(selected), "selected_tokens": selected.clone()}
    return -bounded_exp(log_ratio) * advantage.detach() + coef * penalty, seen


def _clip(ratio: PerToken, advantage: PerToken, band: tuple[float, float]) -> Losses:
    """-min(r A, clamp(r) A), and where the clip is the smaller of the two: only there is the gradient stopped."""
    fixed = advantage.detach()
    free, bounded = ratio * fixed, ratio.clamp(*band) * fixed
    return -torch.minimum(free, bounded), {"clipped_tokens": bounded < free}


def _covariance(logp_current: PerToken, advantage: PerToken, keep: Keep) -> PerToken:
    count = keep.sum()
    nothing = torch.zeros_like(advantage)
    mean_advantage = torch.where(keep, advantage, nothing).sum() / count
    mean_logp = torch.where(keep, logp_current, nothing).sum() / count
    return (advantage - mean_advantage) * (logp_current - mean_logp)


def _share(keep: Keep, fraction: float) -> Tensor:
    """How many tokens a fraction of the kept ones is: rounded down, at least one, as in the authors' code."""
    return (keep.sum().double() * fraction).floor().clamp(min=1)
