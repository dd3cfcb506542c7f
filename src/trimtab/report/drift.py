"""The only place that shows how far sampler and trainer are apart: over steps, by ratio, position, age, staleness."""

from trimtab.report import verdict
from trimtab.report.data import ROUNDING, Json, RunData, Series, number, objects
from trimtab.report.figure import Line, Mark, bars, curves
from trimtab.report.section import question
from trimtab.report.words import percent, small

SMALL = 1e-2
"""Below this mean |log-ratio|, formats such as bf16 or fp8 are the usual cause, and training was not harmed."""
DRIFT = "mean |log-ratio| per token, at the last evaluation"
BY_AGE = "mean |log-ratio| per token, all evaluations together"
AGE = "updates between sampling and learning"
MANY_TIMES = 1.5
"""A series grows or falls if one end is this many times the other."""


def agreement(run: RunData) -> str:
    """Drift split into engine and staleness, over steps, on a log axis."""
    engine, stale, total, largest = _parts(run)
    lines = [
        Line("largest in a batch", "faint", largest),
        Line("in all", "first", total),
        Line("engine: the same version, sampler against trainer", "second", engine, dots=len(engine.values) < 40),
        Line("staleness: trainer now against trainer at sampling", "fourth", stale, dots=len(stale.values) < 40),
    ]
    whole = total or engine
    moves = bool(whole) and max(whole.values) >= ROUNDING  # on a log axis, rounding would look large
    marks = [Mark("0.01: worth a look", "warn", SMALL)]
    drawing = curves("drift", lines, scale="log", marks=marks, height=2.8) if moves else ""
    return question("drift", "Do sampler and trainer agree?", agreed(run), drawing)


def agreed(run: RunData) -> str:
    """A verdict on the mean gap, and its larger part."""
    engine, stale, total, largest = _parts(run)
    whole = total or engine
    if not whole:
        return "Not measured: no step compared the trainer's log-probs with the sampler's."
    average = whole.mean
    said = f"their log-probs of the sampled tokens differ by {small(average)} on average"
    if largest:
        said += f" and by {small(max(largest.values))} at most"
    split = _split(engine, stale)
    if average < ROUNDING:
        return f"Yes: {said}, which is rounding."
    if average < SMALL:
        return (
            f"Nearly: {said}. This is typical of low-precision sampling. "
            f"A truncated importance ratio corrects it at little cost.{split}"
        )
    held = "the recipe corrects for that; see the sample size below." if verdict.corrects(run) else (
        "use a recipe with a correction, and look for the cause."
    )  # fmt: skip
    return f"No: {said}. Sampled tokens are off-policy; {held}{split}"


def _split(engine: Series, stale: Series) -> str:
    if not engine or not stale:
        return ""
    larger, lesser, name = (engine, stale, "engine") if engine.mean > stale.mean else (stale, engine, "staleness")
    return f" Most of it is {name}: {small(larger.mean)} per token against {small(lesser.mean)}."


def _parts(run: RunData) -> tuple[Series, Series, Series, Series]:
    """Engine, staleness, total, largest. Runs without drift probes have only the last two."""
    return (
        run.series("drift/engine_abs_mean", "drift/engine_token_abs_mean"),
        run.series("drift/staleness_abs_mean", "drift/staleness_token_abs_mean"),
        run.series("logratio_engine/token_abs_mean", "logratio_total/token_abs_mean", "drift/total_abs_mean"),
        run.series("logratio_engine/token_abs_max", "logratio_total/token_abs_max"),
    )


def ratios(run: RunData) -> str:
    """The histogram of log-ratios at the first, a middle and the last evaluation."""
    lines = [line for line in run.diagnostics if _histogram(line) is not None]
    if not lines:
        return _missing("ratios", "How are the ratios spread?", "diagnostics.jsonl holds no histogram of ratios")
    chosen = [lines[i] for i in sorted({0, len(lines) // 2, len(lines) - 1})]
    shares = {f"step {int(line['step'])}": _histogram(line) or ([], []) for line in chosen}
    ticks = next(iter(shares.values()))[0]
    drawing = bars(
        "ratios", {name: part for name, (_, part) in shares.items()}, ticks, xlabel="log-ratio, from", scale="share"
    )
    return question("ratios", "How are the ratios spread?", spread(lines[-1]), drawing)


def spread(line: Json) -> str:
    """The share of tokens with a ratio near 1, and the share far from it."""
    found = line["ratio_histogram"]
    edges, counts = [float(edge) for edge in found["edges"]], [float(count) for count in found["counts"]]
    total = sum(counts) or 1.0
    lows, highs = _bins(edges, len(counts))
    near = sum(c for c, low, high in zip(counts, lows, highs, strict=True) if low >= -0.1001 and high <= 0.1001) / total
    far = sum(c for c, low, high in zip(counts, lows, highs, strict=True) if low >= 0.999 or high <= -0.999) / total
    told = "none is beyond a factor of e" if far == 0 else f"{percent(far)} are beyond a factor of e (log-ratio ±1)"
    within = f"{percent(near)} of the tokens have a ratio within about ten percent of 1"
    return f"At step {int(line['step'])}, {within}; {told}."


def _bins(edges: list[float], count: int) -> tuple[list[float], list[float]]:
    """Lower and upper end of each bin. If there is one bin more than gaps between edges, the outer two are open."""
    inf = float("inf")
    cuts = [-inf, *edges, inf] if count == len(edges) + 1 else edges
    return cuts[:-1], cuts[1:]


def _histogram(line: Json) -> tuple[list[str], list[float]] | None:
    found = line.get("ratio_histogram")
    if not isinstance(found, dict):
        return None
    edges, counts = ([number(v) for v in found.get(name) or []] for name in ("edges", "counts"))
    sizes = (len(edges) + 1, len(edges) - 1)
    if None in edges or None in counts or len(counts) not in sizes or not sum(c or 0 for c in counts):
        return None
    lows, _ = _bins([float(e or 0) for e in edges], len(counts))
    total = sum(c or 0 for c in counts)
    return [f"{low:g}".replace("-inf", "less") for low in lows], [(c or 0) / total for c in counts]


def sample_size(run: RunData) -> str:
    """Effective sample size over steps, of tokens and of sequences."""
    lines = [
        Line(name.replace("ess_", "").replace("/", " ratio, by "), role, run.series(name))
        for role, name in zip(("second", "first", "fifth", "fourth"), _sizes(run), strict=False)
    ]
    drawing = curves("ess", lines, scale="share", marks=[Mark("0.3: worth a look", "warn", 0.3)], height=2.3)
    return question("ess", "How many answers does a batch count as?", sized(run), drawing if lines else "")


def _sizes(run: RunData) -> list[str]:
    return [
        name
        for pair in ("total", "engine")
        for level in ("token", "sequence")
        if run.series(name := f"ess_{pair}/{level}")
    ]


def sized(run: RunData) -> str:
    """A sentence on the sample size, at the level at which the recipe corrects."""
    series = verdict.effective(run)
    if not series:
        return "Not measured: the effective sample size needs the sampler's log-probs."
    lowest = min(series.values)
    return (
        "The ratios differ, so some answers count for more than others. At the end a batch counts as "
        f"{percent(series.last)} of its answers. The lowest share is {percent(lowest)}, at step "
        f"{series.steps[series.values.index(lowest)]}."
    )


def by_position(run: RunData) -> str:
    """Is drift there from the first token, or does it grow along the answer?"""
    rows = _rows(run, "drift_by_position")
    if not rows:
        return _missing(
            "position", "Where in an answer does drift arise?", "diagnostics.jsonl holds no drift by position"
        )
    names = [_range(row) for row in rows]
    values = [number(row.get("abs_mean")) or 0.0 for row in rows]
    first, last = _ends(values)
    said = {
        "grows": f"It grows along the answer: {small(first)} per token in the first third, {small(last)} in the last.",
        "falls": f"It is largest at the start: {small(first)} per token in the first third, {small(last)} in the last. "
        "Look at prompts and templates.",
        "flat": f"It is about the same at all positions, {small(sum(values) / len(values))} per token.",
        "none": f"Nowhere: it is {small(max(values))} per token at most, which is rounding.",
    }[_growth(values)]
    drawing = bars("position", {DRIFT: values}, names, xlabel="position in the answer") if _is_drift(values) else ""
    return question("position", "Where in an answer does drift arise?", said, drawing)


def by_age(run: RunData) -> str:
    """Does older data drift more? All evaluations are pooled, because a steady run has one age in each."""
    sums: dict[int, tuple[float, float]] = {}
    for row in (row for line in run.diagnostics for row in objects(line.get("drift_by_age"))):
        mean, tokens = number(row.get("abs_mean")), number(row.get("tokens")) or 1.0
        if mean is not None:
            total, count = sums.get(age := int(number(row.get("age")) or 0), (0.0, 0.0))
            sums[age] = (total + mean * tokens, count + tokens)
    if not sums:
        return _missing("age", "Does older data drift more?", "diagnostics.jsonl holds no drift by version age")
    names = [str(age) for age in sorted(sums)]
    values = [sums[age][0] / sums[age][1] for age in sorted(sums)]
    first, last, mean = small(values[0]), small(values[-1]), small(sum(values) / len(values))
    said = {
        "grows": f"Yes: {first} per token at age {names[0]}, {last} at age {names[-1]}.",
        "falls": f"No: {first} per token at age {names[0]}, only {last} at age {names[-1]}.",
        "flat": f"Hardly: about {mean} per token at every age, so the cause is the engine.",
        "none": "No drift at any age.",
    }[_growth(values)]
    if len(values) == 1:
        said = f"Not known: all tokens are {names[0]} updates old. Their drift is {first} per token."
    drawing = bars("age", {BY_AGE: values}, names, xlabel=AGE) if len(values) > 1 and _is_drift(values) else ""
    return question("age", "Does older data drift more?", said, drawing)


def staleness(run: RunData) -> str:
    """How old were the tokens that it learned from? All evaluations are pooled."""
    tokens: dict[int, float] = {}
    for line in run.diagnostics:
        for row in objects(line.get("staleness_histogram")):
            age = int(number(row.get("age")) or 0)
            tokens[age] = tokens.get(age, 0.0) + (number(row.get("tokens")) or 0.0)
    total = sum(tokens.values())
    if not total:
        return _missing("staleness", "How stale was the data?", "no staleness was recorded")
    ages = sorted(tokens)
    mean = sum(age * tokens[age] for age in ages) / total
    limit = number(run.setting("staleness"))
    bound = "" if limit is None else f"; the limit is {limit:.0f}" + (" and was exceeded" if ages[-1] > limit else "")
    said = f"{mean:.1f} updates old on average, {ages[-1]} at most{bound}."
    if not ages[-1]:
        said = "Not at all: every token was sampled by the policy that learned from it."
    everything = range(ages[0], min(ages[-1], ages[0] + 200) + 1)
    shares = {"share of the tokens, all evaluations together": [tokens.get(age, 0.0) / total for age in everything]}
    drawing = bars("staleness", shares, [str(age) for age in everything], xlabel=AGE, scale="share")
    return question("staleness", "How stale was the data?", said, drawing if ages[-1] else "")


def _rows(run: RunData, name: str) -> list[Json]:
    """The entries of the last evaluation that has any."""
    for line in reversed(run.diagnostics):
        rows = [row for row in objects(line.get(name)) if number(row.get("abs_mean")) is not None]
        if rows:
            return rows
    return []


def _range(row: Json) -> str:
    first, last = (number(row.get(name)) for name in ("from", "to"))
    start = int(first or 0)
    return f"{start}" if last is None or int(last) <= start + 1 else f"{start}–{int(last) - 1}"


def _is_drift(values: list[float]) -> bool:
    return max(values) >= ROUNDING


def _growth(values: list[float]) -> str:
    first, last = _ends(values)
    if not _is_drift(values):
        return "none"
    return "grows" if last > MANY_TIMES * first else "falls" if first > MANY_TIMES * last else "flat"


def _ends(values: list[float]) -> tuple[float, float]:
    """Means of the first and of the last third."""
    third = max(1, len(values) // 3)
    return sum(values[:third]) / third, sum(values[-third:]) / third


def _missing(anchor: str, title: str, why: str) -> str:
    return question(anchor, title, f"Not known: {why}.")
