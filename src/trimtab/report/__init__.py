"""Pages for people, made from the plain files of a run folder. Imports only errors and lexicon of trimtab."""

from trimtab.report.compare import write_comparison
from trimtab.report.page import write_log_report, write_report

__all__ = ["write_comparison", "write_log_report", "write_report"]
