"""The search for a counter-example, and shrinking it."""

from trimtab.sentinel.search.examine import ENOUGH, EXAMPLES, Severity, Status, Verdict, check, examine, hold, ready

__all__ = ["ENOUGH", "EXAMPLES", "Severity", "Status", "Verdict", "check", "examine", "hold", "ready"]
