"""Runs every row at its buggy and its fixed commit, each in a child process: found, missed or false alarm.

    TRIMTAB_PEER_REPOS=DIR python -m bench.known_bugs [--only ID] [--markdown FILE] [--json FILE]

DIR holds git directories named owner+name/repo, owner+name, owner/name or name.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

from bench.known_bugs.judge import Judgement, judge_row, rows
from bench.known_bugs.table import line, markdown
from trimtab.processor import limit_instructions


def main() -> int:
    """Print one line per row, and write the requested tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.known_bugs", description=__doc__)
    parser.add_argument("--only", action="append", help="a row's id, or a framework; may be repeated")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of one commit")
    asked = parser.parse_args()
    limit_instructions()
    where = os.environ.get("TRIMTAB_PEER_REPOS")
    if not where or not Path(where).is_dir():
        print("TRIMTAB_PEER_REPOS names no folder; it should hold git directories named owner+name", file=sys.stderr)
        return 2
    done: list[Judgement] = []
    for row in rows():
        if not asked.only or row.id in asked.only or row.framework in asked.only:
            done.append(judge_row(row, Path(where), seconds=asked.seconds))
            print(line(done[-1]), flush=True)
    found = sum(one.verdict == "found" for one in done)
    grades = Counter(next(iter(one.buggy.violated.values()))["grade"] for one in done if one.verdict == "found")
    told = ", ".join(f"{count} {grade}" for grade, count in grades.most_common())
    alarms = sum(len(one.bugs_at_fix) for one in done)
    print(f"{found} of {len(done)} found ({told}); {alarms} other bug verdicts at the fixes")
    if asked.markdown:
        asked.markdown.write_text(markdown(done))
    if asked.json:
        asked.json.write_text(json.dumps([one.as_data() for one in done], indent=1, sort_keys=True) + "\n")
    return 0 if all(one.verdict == "found" for one in done) else 1


if __name__ == "__main__":
    sys.exit(main())
