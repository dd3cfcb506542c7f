"""A finding as a folder that a maintainer can use without us: reproduction file, runner, payload, test, report, ledger.

write(Path("findings"), verdict, subject, Target("slime", "THUDM/slime", Tree.folder("slime")))
"""

from trimtab.sentinel.findings.by_binding import replay_with_binding
from trimtab.sentinel.findings.draft import Target, recipe_of
from trimtab.sentinel.findings.duplicates import Looked, look
from trimtab.sentinel.findings.folder import Written, mark, write, write_finding
from trimtab.sentinel.findings.ledger import Row, rows
from trimtab.sentinel.findings.regression import regression_test
from trimtab.sentinel.findings.runner import program

__all__ = [
    "Looked",
    "Row",
    "Target",
    "Written",
    "look",
    "mark",
    "program",
    "recipe_of",
    "regression_test",
    "replay_with_binding",
    "rows",
    "write",
    "write_finding",
]
