"""The search for a counter-example, and shrinking it."""

from trimtab.sentinel.search.examine import EXAMPLES, check, examine, hold
from trimtab.sentinel.search.prepare import ready
from trimtab.sentinel.search.trial import ENOUGH, Severity, Status, Verdict

__all__ = ["ENOUGH", "EXAMPLES", "Severity", "Status", "Verdict", "check", "examine", "hold", "ready"]
