"""Published formulas and the mistakes made in them, to recognise what a function computes without being told."""

from trimtab.sentinel.known.fit import Fit, fitted, paths
from trimtab.sentinel.known.repair import Repair, repaired

__all__ = ["Fit", "Repair", "fitted", "paths", "repaired"]
