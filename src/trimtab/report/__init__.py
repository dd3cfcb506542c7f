"""Pages for people, made from the plain files of a run folder. Imports nothing of trimtab but its errors."""

from trimtab.report.compare import write_comparison
from trimtab.report.page import write_report

__all__ = ["write_comparison", "write_report"]
