"""What a run is: run files, overrides, and the importers of other frameworks' options."""

from trimtab.config.correction import OffPolicyCorrection, source_metrics
from trimtab.config.run import RunFile, load_run, parse_run
from trimtab.config.signal import SignalTable, build_recipe, explain_recipe
from trimtab.config.train import TrainSettings

__all__ = [
    "OffPolicyCorrection",
    "RunFile",
    "SignalTable",
    "TrainSettings",
    "build_recipe",
    "explain_recipe",
    "load_run",
    "parse_run",
    "source_metrics",
]
