"""Known bugs of ROLL."""

from bench.known_bugs.row import Row
from trimtab.sentinel.targets.roll import TARGET

_BOUND = {binding.name: binding for binding in TARGET.bindings}


def _row(name: str, buggy: str, fixed: str | None, invariants: tuple[str, ...], binding: str, note: str = "") -> Row:
    return Row(name, "roll", TARGET.repository, buggy, fixed, invariants, _BOUND[binding], note)


ROWS = [
    _row("ROLL-AGG", "436a5275e", "d8d7e78f1", ("equals_definition", "mean_is_a_mean"), "agg_loss"),
    _row("HEAD-ROLL-AGG-MASK", "8eb27cc2d", None, ("mask_content",), "agg_loss"),
    _row("HEAD-ROLL-REWARDNORM-SHAPE", "8eb27cc2d", None, ("sample_isolation", "equals_definition"), "reward_norm"),
]  # fmt: skip
