"""Known bugs of miles."""

from typing import Any

from bench.known_bugs import two_ranks
from bench.known_bugs.row import Row
from trimtab.sentinel.loading import Spec
from trimtab.sentinel.targets.miles import HUB, TARGET
from trimtab.sentinel.targets.target import Binding

_BOUND = {binding.name: binding for binding in TARGET.bindings}


def _row(
    name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: str, note: str = "", **judged: Any
) -> Row:
    return Row(name, "miles", TARGET.repository, buggy, fixed, invariants, _BOUND[binding], note, **judged)


ONE_TOKEN = (
    "miles/backends/training_utils/loss.py:1003, Megatron: with --calculate-per-token-loss, a sample whose loss mask "
    "is all 0 (a filtered one, or one that --mask-offpolicy-in-partial-rollout masks) adds one token to the count"
)
NOT_PASSED = (
    "miles/backends/training_utils/loss.py:681: compute_policy_loss is called without eps_clip_c, so a run with "
    "--eps-clip-c and the policy loss trains without a dual clip (repaired later, in 9525fc77f)"
)
"""Judged real at the repair of another bug, and confirmed by somebody who did not write the bindings: where, and what
reaches it."""


ROWS = [
    _row("MILES-FANOUT-NORM", "34d01b7a3", "63d2190ae", ("group_isolation",), "_post_process_rewards"),
    _row("MILES-METRIC-EXTREMA", "319716c02", "862ac1ea1", ("metric_truth",), "reduce_gathered_log_dict"),
    _row("MILES-SCOREDLP", "7a6cf48e6", "2b5b7fc1f", ("metric_truth",), "policy_loss",
         real={"mean_is_a_mean": ONE_TOKEN, "denominator": ONE_TOKEN, "options_live": NOT_PASSED}),
    _row("HEAD-MILES-KL-ALIAS", "31f1ca961", None, ("no_aliasing",), "compute_advantages"),
    _row("HEAD-MILES-RFPP-KL", "31f1ca961", None, ("credit_over_trainable", "mask_content"),
         "get_reinforce_plus_plus_returns"),
    Row("HEAD-MILES-WHITEN-CP", "miles", TARGET.repository, "31f1ca961", None, ("parallel_layout",),
        Binding("normalize_advantages", (Spec("normalize_advantages", file=f"{HUB}/advantages.py"),), two_ranks.miles,
                given=two_ranks.stand_ins), "two processes that own the halves of every sequence"),
]  # fmt: skip
