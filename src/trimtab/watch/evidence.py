"""Evidence of faults in one micro-batch, as sums: the only place that computes what the judge decides on.

Everything here is a sum, a count or an extremum under `evidence/…`, so it merges over micro-batches and ranks as
metrics do. A test that needs many tokens looks at the first MOST of them: more would not change what it says.
"""

from collections.abc import Iterator

import numpy as np

from trimtab.signal.metric_kind import Extremum, Metric, Sum
from trimtab.watch.flat import Flags, Flat, Floats, Integers
from trimtab.watch.measure import defined, log_ratio

LAGS = (-1, 1, -2, 2)
MOST = 32_768
"""Tokens that one test looks at."""
VISIBLE = 1e-3
"""A log-prob closer to 0 than this says nothing: every program rounds it alike."""
CERTAIN = -1.0
"""A sampler that was certain (log-prob exactly 0) of a token to which the trainer gives less than exp(-1)."""
CLOSE = 2e-3
"""Two sides that differ by less per token stand at the same tokens."""
NEAR = 0.02
"""Tokens whose log-ratio to the old policy is below this are on-policy, so that every policy loss has one slope."""
DROPPED = 0.2
"""A row whose slope is below this share of what is due is counted as dropped."""


def evidence(flat: Flat) -> dict[str, Metric]:
    """Every sum that the judge reads, of one micro-batch."""
    found: dict[str, Metric] = {}
    for name, number in _counts(flat):
        found[f"evidence/{name}"] = Sum(float(number))
    found["evidence/logp_highest"] = Extremum(_highest(flat), 1)
    return found


def _counts(flat: Flat) -> Iterator[tuple[str, float]]:
    yield "micro_batches", 1.0
    yield "leaked", flat.leaked
    yield from _undefined(flat)
    yield from _engine(flat)
    yield from _old(flat)
    yield from _repeated(flat)
    found = slopes(flat)
    yield from _slope(flat, found)
    yield from _effects(flat, found)


def _undefined(flat: Flat) -> Iterator[tuple[str, float]]:
    for name in ("logp_current", "logp_old", "logp_rollout"):
        if name in flat.tokens:
            yield f"undefined/{name}", _count(~np.isfinite(flat.tokens[name]))


def _highest(flat: Flat) -> float:
    held = [float(values.max(initial=-np.inf)) for name, values in flat.tokens.items() if name.startswith("logp_")]
    return max((value for value in held if np.isfinite(value)), default=-np.inf)


def _engine(flat: Flat) -> Iterator[tuple[str, float]]:
    """The sampler against the trainer: bits, certainty, temperature, alignment, and the drift of each sequence."""
    gap = log_ratio(flat, "logp_old", "logp_rollout")
    if gap is None or not gap.size:
        return
    old, rollout = flat.exact["logp_old"], flat.exact["logp_rollout"]
    told = np.abs(flat.tokens["logp_old"]) > VISIBLE
    yield "engine/tokens", gap.size
    yield "engine/told", _count(told)
    yield "engine/bits", _count(told & (old == rollout))
    yield "engine/certain", _count((flat.tokens["logp_rollout"] == 0) & (flat.tokens["logp_old"] < CERTAIN))
    size = _by_row(np.abs(gap), flat) / np.maximum(flat.counts, 1)
    yield from _moments("engine/gap", size[flat.counts > 0])
    few = slice(0, MOST)
    yield from _temperature(flat, few)
    yield from _alignment("engine", flat.tokens["logp_rollout"][few], flat.tokens["logp_old"][few], flat.sequence[few])


def _temperature(flat: Flat, few: slice) -> Iterator[tuple[str, float]]:
    """The line through (old + entropy, rollout - old): at another temperature its slope is 1/temperature - 1."""
    old = flat.tokens["logp_old"][few]
    beside = old + flat.tokens["entropy"][few] if "entropy" in flat.tokens else old
    apart = flat.tokens["logp_rollout"][few] - old
    both = np.isfinite(beside) & np.isfinite(apart)
    x, y = beside[both], apart[both]
    sums = (x.size, x.sum(), y.sum(), x @ x, x @ y, y @ y)
    for name, number in zip(("n", "x", "y", "xx", "xy", "yy"), sums, strict=True):
        yield f"temperature/{name}", float(number)


def _alignment(name: str, said: Floats, trained: Floats, sequence: Integers) -> Iterator[tuple[str, float]]:
    """How much nearer each sequence comes when one side is moved by some tokens."""
    rows = int(sequence[-1]) + 1 if sequence.size else 0
    here = defined(np.abs(said - trained))
    if here.size and here.mean() < CLOSE:
        return
    for lag in LAGS:
        left, right = (slice(0, -lag), slice(lag, None)) if lag > 0 else (slice(-lag, None), slice(0, lag))
        same = sequence[left] == sequence[right]
        moved = defined(np.abs(said[left] - trained[right]))
        row = sequence[left][same]
        count = np.bincount(row, minlength=rows)
        pairs = np.maximum(count, 1)
        before = np.bincount(row, here[left][same], minlength=rows) / pairs
        after = np.bincount(row, moved[same], minlength=rows) / pairs
        used = count > 0
        yield from _moments(f"{name}/lag{lag}/gain", (before - after)[used])
        yield f"{name}/lag{lag}/before", float(before[used].sum())
        yield f"{name}/lag{lag}/after", float(after[used].sum())


def _old(flat: Flat) -> Iterator[tuple[str, float]]:
    """The old policy against the current one, before any update: they are one policy."""
    gap = log_ratio(flat, "logp_current", "logp_old")
    if gap is None or flat.facts.get("updates", 0) != 0 or not flat.facts.get("has_old", True):
        return
    told = np.abs(flat.tokens["logp_current"]) > VISIBLE
    yield "old/tokens", gap.size
    yield "old/gap", float(np.abs(gap).sum())
    yield "old/told", _count(told)
    yield "old/bits", _count(told & (flat.exact["logp_current"] == flat.exact["logp_old"]))
    few = slice(0, MOST)
    yield from _alignment("old", flat.tokens["logp_old"][few], flat.tokens["logp_current"][few], flat.sequence[few])


def _repeated(flat: Flat) -> Iterator[tuple[str, float]]:
    """Rows whose answer begins as the prompt does, and how probable the policy finds that."""
    if flat.prompt_repeats is None or "logp_current" not in flat.tokens or not flat.num_tokens:
        return
    starts = flat.counts.cumsum() - flat.counts
    first = flat.prompt_repeats & (flat.counts > 0)
    chance = flat.tokens["logp_current"][np.minimum(starts, flat.num_tokens - 1)]
    yield "prompt/rows", flat.num_rows
    yield "prompt/repeats", _count(first)
    yield "prompt/logp", float(np.where(first, chance, 0.0).sum())


def slopes(flat: Flat) -> tuple[Floats, Flags] | None:
    """For each row the gradient that arrived, as a share of the one that is due; and which rows show one.

    due_t = advantage_t * importance_t / denominator, for a token whose ratio to the old policy is near 1.
    """
    advantage, gap = flat.advantage, log_ratio(flat, "logp_current", "logp_old")
    if advantage is None or "gradient" not in flat.tokens or "denominator" not in flat.rows:
        return None
    few = slice(0, MOST)
    sequence = flat.sequence[few]
    due = advantage[few] / flat.rows["denominator"][sequence]
    if "importance" in flat.tokens:
        due = due * flat.tokens["importance"][few]
    shown = (due != 0) & np.isfinite(due)
    shown &= True if gap is None else np.abs(gap[few]) < NEAR
    share = -flat.tokens["gradient"][few][shown] / due[shown]
    return _medians(share, sequence[shown], flat.num_rows)


def _slope(flat: Flat, found: tuple[Floats, Flags] | None) -> Iterator[tuple[str, float]]:
    if found is None:
        return
    share, shown = found
    kept = shown & (share > DROPPED / max(float(flat.facts.get("accumulation", 1)), 1.0))
    yield "slope/rows", _count(shown)
    yield "slope/dropped", _count(shown & ~kept)
    yield from _moments("slope/log", np.log(share[kept]))
    spread = flat.rows.get("spread")
    if spread is not None:
        # Whether the share is one over the spread of the rewards: then the advantage was divided by it once more.
        again = kept & (spread > 0)
        yield from _moments("slope/again", np.log(share[again]) + np.log(spread[again]))


def _effects(flat: Flat, found: tuple[Floats, Flags] | None) -> Iterator[tuple[str, float]]:
    """What each correction that is switched on changed: the tokens or rows that it touched."""
    corrections = flat.facts.get("corrections", ())
    if "importance" in flat.tokens and "importance" in corrections:
        yield "effect/importance/of", flat.num_tokens
        yield "effect/importance/changed", _count(flat.tokens["importance"] != 1.0)
    if "keep" in flat.tokens:
        yield "effect/keep/of", flat.num_tokens
        yield "effect/keep/changed", _count(flat.tokens["keep"] == 0)
    if "rejection" in corrections and found is not None:
        share, shown = found
        least = DROPPED / 4 / max(float(flat.facts.get("accumulation", 1)), 1.0)
        yield "effect/rejection/of", _count(shown)
        yield "effect/rejection/changed", _count(shown & (np.abs(share) < least))


def _moments(name: str, values: Floats) -> Iterator[tuple[str, float]]:
    """Count, sum and sum of squares."""
    yield f"{name}/n", values.size
    yield f"{name}/sum", float(values.sum())
    yield f"{name}/square", float(values @ values)


def _count(flags: Flags) -> float:
    return float(np.count_nonzero(flags))


def _by_row(values: Floats, flat: Flat) -> Floats:
    return np.bincount(flat.sequence, values, minlength=flat.num_rows).astype(np.float64)


def _medians(values: Floats, row: Integers, rows: int) -> tuple[Floats, Flags]:
    """The lower median of each row's values, and which rows have any."""
    order = np.lexsort((values, row))
    counts = np.bincount(row, minlength=rows)
    middle = counts.cumsum() - counts + np.maximum(counts - 1, 0) // 2
    found = np.zeros(rows)
    has = counts > 0
    found[has] = values[order][middle[has]]
    return found, has
