"""`python -m tests.bad_input`: every row; prints the counts and what went wrong."""

import sys
from collections import Counter

from tests.bad_input import KINDS
from tests.bad_input.row import OUTCOMES, outcome


def main() -> int:
    found = {}
    for kind, module in KINDS.items():
        found[kind] = {row.name: outcome(row) for row in module.rows()}
    for kind, outcomes in found.items():
        counts = Counter(what for what, _ in outcomes.values())
        print(f"{kind}: tried {len(outcomes)}, " + ", ".join(f"{what} {counts[what]}" for what in OUTCOMES))
    wrong = [
        (kind, name, *out)
        for kind, all_ in found.items()
        for name, out in all_.items()
        if out[0] not in ("refused", "right")
    ]
    for kind, name, what, words in wrong:
        print(f"  {what:7} {kind} {name}\n          {words}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
