"""The fast path: the same training signal with less work. docs/performance.md explains it.

`per_sequence` works out decisions and weights about whole sequences once per sequence; `fused` gives a policy term, its
gradient and its observations in one pass. A formula without a shortcut here runs as it is written. The formulas
themselves stay the reference: tests hold every shortcut to its formula.
"""

from trimtab.signal.fast.choice import is_all_watched, is_fast, shortcuts_of, use_metrics, use_path
from trimtab.signal.fast.fused import fused_loss

__all__ = ["fused_loss", "is_all_watched", "is_fast", "shortcuts_of", "use_metrics", "use_path"]
