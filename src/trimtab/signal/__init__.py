"""The training signal of LLM reinforcement learning as small pure functions over flat tokens.

prepare(batch, recipe) → prepared.updates() → decide(update) → token_loss(micro, logp_current) → step(losses)
"""

from trimtab.signal.batch import SignalBatch
from trimtab.signal.catalogue import Formula, catalog, find, formula
from trimtab.signal.composition import Recipe
from trimtab.signal.cookbook import names, recipe
from trimtab.signal.counts import Counts
from trimtab.signal.decision import decide
from trimtab.signal.fast import fused_loss, use_metrics, use_path
from trimtab.signal.ingredient import KL, Stage, Term
from trimtab.signal.metric_names import METRICS, WATCH, metric_spec
from trimtab.signal.metrics import Metrics
from trimtab.signal.objective import StepResult, TokenLoss, step, token_loss
from trimtab.signal.padded import count, loss
from trimtab.signal.parallel import ProcessGroup, Reducer, gather, gather_tokens, merge_metrics
from trimtab.signal.parts import Part, part
from trimtab.signal.preparation import Prepared, prepare
from trimtab.signal.scores import logp, logp_and_entropy, logp_from_hidden
from trimtab.signal.state import SignalState
from trimtab.signal.update import Decided, MicroBatch, Update

__all__ = [
    "KL",
    "METRICS",
    "WATCH",
    "Counts",
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
    "count",
    "decide",
    "find",
    "formula",
    "fused_loss",
    "gather",
    "gather_tokens",
    "logp",
    "logp_and_entropy",
    "logp_from_hidden",
    "loss",
    "merge_metrics",
    "metric_spec",
    "names",
    "part",
    "prepare",
    "recipe",
    "step",
    "token_loss",
    "use_metrics",
    "use_path",
]
