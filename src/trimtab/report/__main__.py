"""`python -m trimtab.report > docs/troubleshooting.md`: the document that a run's page links to."""

from trimtab.report.symptom import document
from trimtab.report.symptoms import SYMPTOMS

print(document(SYMPTOMS), end="")
