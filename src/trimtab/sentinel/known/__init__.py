"""Published formulas and the mistakes that are made in them, for functions that nobody has described."""

from trimtab.sentinel.known.fit import fitted
from trimtab.sentinel.known.repair import repaired

__all__ = ["fitted", "repaired"]
