"""Results must survive inputs in half precision."""

from dataclasses import replace

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers

_NEAR = 0.05
"""Distance of the policies. They are so close that half precision rounds their KL away first."""
_LOST = 0.2
"""Relative error above which a result counts as rounded away."""


@invariant(
    family="I11",
    statement="Half-precision inputs give the same results as the same numbers in single precision.",
    why="Differences of close log-probs round away in bfloat16, and a KL of exactly 0 looks like perfect agreement.",
    bug="OpenRLHF f96a48ba8: the KL of bfloat16 log-probs was computed in bfloat16 and rounded to 0.",
    repair="Cast to float32 before the first difference or exponential.",
)
def half_precision(subject: Subject, case: Case) -> Violation | None:
    if not subject.reading(*LOGPS, "logits"):
        raise case.cannot("it reads no log-probs and no logits")
    if subject.coarse:
        what = f"it computes in half precision: rounding {subject.coarse} to half precision changes no bit"
        return Violation(what, "half precision", "at least single precision", effect=Effect("value", (), 1.0))
    base = case.tokens["logp_rollout"].clamp(-2.0, -0.5)
    wave = torch.sin(torch.arange(base.numel(), dtype=torch.float64) * 2.3)
    near = {n: base + _NEAR * (i + 1) * wave for i, n in enumerate(LOGPS) if n in case.tokens}
    rounded = case.with_tokens(**near)
    floats = {n: v.bfloat16() for n, v in rounded.tokens.items() if v.dtype.is_floating_point}
    with torch.no_grad():
        plain = replace(rounded, mask_dtype=torch.float32)
        exact = call_subject(subject, plain.with_tokens(**{n: v.float() for n, v in floats.items()}))
        try:
            # A mask in double precision would promote every product to double precision.
            coarse = call_subject(subject, replace(rounded, mask_dtype=torch.bfloat16).with_tokens(**floats))
        except (RuntimeError, TypeError, ValueError):
            return None  # raising on half precision is the best answer
    for name, result in exact.items():
        if result.kind not in ("kl", "importance", "logp", "entropy") or result.level == "cell":
            continue
        owed, found = result.value.double(), coarse[name].value.double()
        lost = (owed.abs() > 1e-4) & ((found - owed).abs() > _LOST * owed.abs())
        if bool(lost.any()):
            effect = Effect("value", (), float(((found - owed).abs() / owed.abs().clamp(min=1e-12)).max()))
            what = f"{name} of bfloat16 inputs is rounded away"
            return Violation(
                what, numbers(found), numbers(owed), grade="bug" if subject.half else "hygiene", effect=effect
            )
    return None
