"""Watch a trainer from inside: drift, denominators, masks and scales, as metrics and findings. It changes nothing."""

from trimtab.watch.finding import Finding
from trimtab.watch.watch import Watch

__all__ = ["Finding", "Watch"]
