"""The planted bugs, by theme: small edits of our own functions, most of them once shipped by somebody."""

from mutants.edit import MUTANTS, Mutant
from mutants.planted import content, corners, known, meaning, metrics, options, rollout, scale, surrogate, who

__all__ = [
    "MUTANTS",
    "Mutant",
    "content",
    "corners",
    "known",
    "meaning",
    "metrics",
    "options",
    "rollout",
    "scale",
    "surrogate",
    "who",
]
