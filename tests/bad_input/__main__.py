"""`python -m tests.bad_input`: every row, in a plain interpreter; prints the counts and what went wrong."""

import json
import sys
from collections import Counter

from tests.bad_input import configurations, library
from tests.bad_input.row import OUTCOMES, outcome


def main() -> int:
    found = {}
    for kind, rows in (("library", library.rows()), ("configuration", configurations.rows())):
        names = Counter(row.name for row in rows)
        assert max(names.values()) == 1, f"{kind}: {names.most_common(3)}"
        found[kind] = {row.name: outcome(row) for row in rows}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return 0
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
