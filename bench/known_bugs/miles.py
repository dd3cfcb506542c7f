"""Known bugs of miles."""

from bench.known_bugs import two_ranks
from bench.known_bugs.row import Row
from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.miles import HUB, TARGET
from trimtab.sentinel.targets.target import Binding

_BOUND = {binding.name: binding for binding in TARGET.bindings}


def _row(name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: str, note: str = "") -> Row:
    return Row(name, "miles", TARGET.repository, buggy, fixed, invariants, _BOUND[binding], note)


ROWS = [
    _row("MILES-FANOUT-NORM", "34d01b7a3", "63d2190ae", ("group_isolation",), "_post_process_rewards"),
    _row("MILES-METRIC-EXTREMA", "319716c02", "862ac1ea1", ("metric_truth",), "reduce_gathered_log_dict"),
    _row("MILES-SCOREDLP", "7a6cf48e6", "2b5b7fc1f", ("metric_truth",), "policy_loss"),
    _row("HEAD-MILES-KL-ALIAS", "31f1ca961", None, ("no_aliasing",), "compute_advantages"),
    _row("HEAD-MILES-RFPP-KL", "31f1ca961", None, ("credit_over_trainable", "mask_content"),
         "get_reinforce_plus_plus_returns"),
    Row("HEAD-MILES-WHITEN-CP", "miles", TARGET.repository, "31f1ca961", None, ("parallel_layout",),
        Binding("normalize_advantages", (Spec("normalize_advantages", file=f"{HUB}/advantages.py"),), two_ranks.miles,
                given=two_ranks.stand_ins), "two processes that own the halves of every sequence"),
]  # fmt: skip
