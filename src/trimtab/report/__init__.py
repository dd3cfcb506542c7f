"""Pages for people, made from the plain files of a run folder. Imports only the errors of trimtab."""

from trimtab.report.compare import write_comparison
from trimtab.report.page import write_report

__all__ = ["write_comparison", "write_report"]
