"""What does a call of the reward pool cost in addition to the function itself?

    python -m bench.reward             100 calls of 256 short answers, one worker; a few seconds

Prints the fastest, the median and the slowest call. On an idle two-core machine the median is 2 to 3 ms.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from trimtab.rollout.reward_pool import RewardPool

FUNCTION = (
    "def exact(completions, answer, **columns):\n    return [float(a == b) for a, b in zip(completions, answer)]\n"
)


def time_calls(calls: int, answers: int) -> list[float]:
    """Milliseconds of each call, after one that is not counted."""
    texts = ["some text of an answer"] * answers
    columns = {"completions": texts, "completion_ids": [list(range(30))] * answers, "answer": texts}
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "exact_reward.py"
        _ = file.write_text(FUNCTION)
        with RewardPool(f"{file}:exact", 1, 60.0, ("answer",)) as pool:
            _ = pool.judge(columns, answers)
            for _ in range(calls):
                started = time.perf_counter()
                _ = pool.judge(columns, answers)
                times.append(1000 * (time.perf_counter() - started))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--calls", type=int, default=100)
    _ = parser.add_argument("--answers", type=int, default=256)
    chosen = parser.parse_args()
    times = time_calls(chosen.calls, chosen.answers)
    print(f"{chosen.answers} answers per call: {min(times):.1f} ms at best, {median(times):.1f} ms median, "
          f"{max(times):.1f} ms at worst")  # fmt: skip


if __name__ == "__main__":
    main()
