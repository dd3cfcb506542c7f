"""Published formulas and their known mistakes, to recognise what a function computes without being told."""

from trimtab.sentinel.known.fit import Fit, fitted

__all__ = ["Fit", "fitted"]
