"""Credit from a teacher: `logp_teacher`, an extra field, is what another policy says of the sampled tokens."""

import torch

from trimtab.signal.advantage import PROMISES, Credit
from trimtab.signal.catalogue import Band, NonNegative, Unit, formula
from trimtab.signal.layout import PerSequence, PerToken, Segments
from trimtab.signal.reduce import bounded_exp, to_tokens


@formula(
    source="Lu et al. 2025, On-Policy Distillation (Thinking Machines); Xiaomi 2026, MOPD, arXiv:2601.02780, eq. 8",
    scope="sequence",
    stage="advantage",
    promises=PROMISES,
    known_as=("OPD", "MOPD"),
)
def plus_teacher(
    outcome: PerSequence,
    logp_teacher: PerToken,
    logp_old: PerToken,
    segments: Segments,
    *,
    coef: NonNegative = 1.0,
    outcome_coef: NonNegative = 1.0,
) -> Credit:
    """The episode's normalised reward, plus how much likelier the teacher finds the token than the student.

    A_t = outcome_coef * outcome + coef * (logp_teacher_t - logp_old_t)

    The expected second term is minus the KL of the student to the teacher, token by token.
    Settings in use: outcome_coef 0 distils and reads no reward; slime and ROLL add to the outcome with coef 1.
    Whitening afterwards rescales the teacher's part too.
    """
    advantage = outcome_coef * to_tokens(outcome, segments) + coef * (logp_teacher - logp_old)
    return advantage, advantage.clone()


@formula(
    source="RLSD 2026, arXiv:2604.03128 (as ms-swift has it)",
    scope="sequence",
    stage="advantage",
    promises=PROMISES,
    known_as=("RLSD",),
)
def scaled_by_teacher(
    outcome: PerSequence,
    logp_teacher: PerToken,
    logp_old: PerToken,
    segments: Segments,
    *,
    share: Unit = 0.5,
    band: Band = (0.8, 1.2),
) -> Credit:
    """The episode's normalised reward, larger at tokens that the teacher would have pushed the same way.

    A_t = outcome * ((1 - share) + share * clip(exp(sign(outcome) * (logp_teacher_t - logp_old_t)), *band))

    The teacher changes sizes and never a sign, if the band holds no negative number.
    """
    whole = to_tokens(outcome, segments)
    ratio = bounded_exp(torch.sign(whole) * (logp_teacher - logp_old)).clamp(*band)
    advantage = whole * ((1 - share) + share * ratio)
    return advantage, advantage.clone()
