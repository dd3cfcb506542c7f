"""The training signal of LLM reinforcement learning as small pure functions over flat tokens.

prepare(batch, recipe) → prepared.updates() → decide(update) → token_loss(micro, logp_current) → step(losses)
"""

from trimtab.signal.batch import SignalBatch
from trimtab.signal.formula import Formula, catalog, find, formula
from trimtab.signal.metrics import METRICS, Metrics, metric_spec
from trimtab.signal.padded import loss
from trimtab.signal.parallel import ProcessGroup, Reducer, gathered
from trimtab.signal.part import Part, part
from trimtab.signal.preparation import Prepared, prepare
from trimtab.signal.recipe import KL, Recipe, Stage, Term
from trimtab.signal.recipes import names, recipe
from trimtab.signal.state import SignalState
from trimtab.signal.step import StepResult, TokenLoss, decide, step, token_loss
from trimtab.signal.update import Decided, MicroBatch, Update

__all__ = [
    "KL",
    "METRICS",
    "Decided",
    "Formula",
    "Metrics",
    "MicroBatch",
    "Part",
    "Prepared",
    "ProcessGroup",
    "Recipe",
    "Reducer",
    "SignalBatch",
    "SignalState",
    "Stage",
    "StepResult",
    "Term",
    "TokenLoss",
    "Update",
    "catalog",
    "decide",
    "find",
    "formula",
    "gathered",
    "loss",
    "metric_spec",
    "names",
    "part",
    "prepare",
    "recipe",
    "step",
    "token_loss",
]
