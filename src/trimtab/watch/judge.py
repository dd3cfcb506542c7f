"""Evidence of one step in, findings out: the only place that decides what is a fault. docs/watch.md says how.

Each decision is an exact identity, or a test whose chance of a false alarm is below 1e-9 per step (ODDS), together with
a least size, so that what is real and harmless stays unsaid.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from trimtab.watch.evidence import LAGS
from trimtab.watch.finding import sentence

ODDS = -20.7
"""log(1e-9)."""
SIGMAS = 6.0
"""A normal variable is this many standard deviations above its mean with a chance of 1e-9."""
FEW_TOKENS, FEW_ROWS = 64, 8
"""Below these numbers nothing is decided."""
ON_LINE = 0.7
"""Share of the variance that a line explains. 64 independent points reach it with a chance below 1e-16."""
SLANT = 0.03
"""Least |1/temperature - 1| that is said."""
APART = 1e-2
"""Mean |log-ratio| below which alignment is not judged: no shifted log-prob is that close."""
DIFFERENT = 0.05
"""Mean |current - old| before any update that no rounding explains, not even that of 8-bit numbers."""
FACTOR = math.log(1.25)
"""A gradient within this factor of the one that is due may be a regulariser's doing."""
EXACT = 0.02
"""Relative error up to which a factor is recognised."""

Numbers = Mapping[str, float]
Said = tuple[str, str]
"""A finding's name and its sentence."""


def judge(numbers: Numbers, where: str, accumulation: int = 1) -> list[Said]:
    """What is wrong in a step. A fault that explains others comes first, and what it explains is left out."""
    read = _reader(numbers)
    found = [*_undefined(read, where), *_mask(read, where), *_scale(read, where, accumulation)]
    found += list(_advantage(read, where))
    engine = list(_alias(read, where)) or list(_shift(read, where, "engine"))
    found += engine or [*_certain(read, where)] or [*_temperature(read, where)]
    if not engine:
        found += list(_shift(read, where, "old")) or list(_old(read, where))
    return found


def _reader(numbers: Numbers) -> Callable[[str], float]:
    return lambda name: numbers.get(f"evidence/{name}", 0.0)


def moments(read: Callable[[str], float], name: str) -> tuple[float, float, float]:
    """Count, mean and standard deviation."""
    n, total, square = (read(f"{name}/{part}") for part in ("n", "sum", "square"))
    mean = total / max(n, 1.0)
    return n, mean, math.sqrt(max(square / max(n, 1.0) - mean * mean, 0.0))


def _undefined(read: Callable[[str], float], where: str) -> Iterator[Said]:
    for name in ("logp_current", "logp_old"):
        if count := read(f"undefined/{name}"):
            yield (
                f"undefined_{name}",
                sentence(
                    where, f"{name} is not a number at {count:.0f} trainable tokens",
                    "the loss of those tokens is undefined", "Take them out of the mask, or repair the model",
                ),
            )  # fmt: skip
    if (highest := read("logp_highest")) > 1e-4:
        yield (
            "logp_above_zero",
            sentence(
                where, f"a log-prob is {highest:.3g}, which is a probability above 1", "it is no log-prob",
                "Look at the sign and at what was gathered",
            ),
        )  # fmt: skip


def _mask(read: Callable[[str], float], where: str) -> Iterator[Said]:
    if leaked := read("leaked"):
        yield (
            "gradient_outside_mask",
            sentence(
                where, f"{leaked:.0f} tokens outside the mask have a gradient",
                "the model learns from tokens that it did not choose", "Use one mask for log-probs and loss",
            ),
        )  # fmt: skip
    rows, repeats, chance = read("prompt/rows"), read("prompt/repeats"), read("prompt/logp")
    groups, alike, odds = read("first/groups"), read("first/alike"), read("first/logp")
    told = ""
    if rows >= FEW_ROWS and repeats == rows and chance < ODDS:
        told = f"all {rows:.0f} answers begin with the tokens of their prompt, by chance once in exp({-chance:.0f})"
    elif groups >= 2 and alike == groups and odds < ODDS:
        told = f"in all {groups:.0f} groups every answer begins with the same token, by chance once in exp({-odds:.0f})"
    if told:
        yield (
            "prompt_in_mask",
            sentence(
                where, told, "tokens of the prompt are in the mask and train as if the policy had chosen them",
                "Begin the mask behind the prompt",
            ),
        )  # fmt: skip


def _scale(read: Callable[[str], float], where: str, accumulation: int) -> Iterator[Said]:
    n, mean, apart = moments(read, "slope/log")
    if n < FEW_ROWS:
        return
    many, rest, left = moments(read, "slope/again")
    is_divided = accumulation > 1 and abs(mean + math.log(accumulation)) < 5 * EXACT
    is_off = max(abs(mean), apart) > 5 * EXACT
    if many >= FEW_ROWS and max(abs(rest), left) < EXACT and is_off and not is_divided:
        yield _twice(where, "in the loss")
        return
    share = math.exp(mean)
    if abs(mean) < FACTOR or apart > FACTOR:
        return
    if is_divided:
        yield (
            "loss_divided_twice",
            sentence(
                where, f"the gradient of every token is {share:.3g} of what is due, one over the {accumulation} "
                "micro-batches of a step", f"a step is {accumulation} times too small: the loss was divided twice",
                "Divide it by the number of micro-batches in one place only",
            ),
        )  # fmt: skip
        return
    yield (
        "gradient_scale",
        sentence(
            where, f"the gradient of every token is {share:.3g} times what advantage and denominator give",
            "the step is not of the size that the options say", "Look for a factor on the loss after its mean is taken",
        ),
    )  # fmt: skip


def _twice(where: str, place: str) -> Said:
    return (
        "advantage_scaled_twice",
        sentence(
            where, f"the advantage is divided by the spread of the rewards once more {place}",
            "groups with little spread count for too much", "Scale advantages in one place only",
        ),
    )  # fmt: skip


def _advantage(read: Callable[[str], float], where: str) -> Iterator[Said]:
    rows = read("advantage/rows")
    n, mean, apart = moments(read, "advantage/share")
    if rows < FEW_ROWS or read("advantage/other_sign") or (abs(mean) < EXACT and apart < EXACT):
        return
    for level in ("group", "batch"):
        _, rest, left = moments(read, f"advantage/again_{level}")
        if abs(rest) < EXACT and left < EXACT:
            yield _twice(where, f"(that of the {level}) than the options say")
            return
    if apart < EXACT:
        yield (
            "advantage_scale",
            sentence(
                where, f"the advantages of {n:.0f} rows are {math.exp(mean):.4g} times what rewards, groups and "
                "options give", "the step is not of the size that the options say",
                "Scale advantages in one place only",
            ),
        )  # fmt: skip


def _alias(read: Callable[[str], float], where: str) -> Iterator[Said]:
    told, bits = read("engine/told"), read("engine/bits")
    if told < FEW_TOKENS or bits < told or read("old/told") < FEW_TOKENS:
        return
    if read("old/bits") < 0.9 * read("old/told"):
        gap = read("old/gap") / max(read("old/tokens"), 1.0)
        yield (
            "old_is_rollout",
            sentence(
                where, f"logp_old equals logp_rollout bit for bit at all {told:.0f} tokens, and before any update the "
                f"policy itself differs from both by {gap:.2g} per token",
                "the old policy is the sampler's, and the ratio of the loss holds the sampler's error too",
                "Compute logp_old with the trainer's own model",
            ),
        )  # fmt: skip


def _shift(read: Callable[[str], float], where: str, side: str) -> Iterator[Said]:
    best: tuple[float, int, float, float] | None = None
    for lag in LAGS:
        n, gain, apart = moments(read, f"{side}/lag{lag}/gain")
        before, after = (read(f"{side}/lag{lag}/{part}") / max(n, 1.0) for part in ("before", "after"))
        is_sure = n >= 2 * FEW_ROWS and gain > SIGMAS * apart / math.sqrt(max(n, 1.0))
        if is_sure and before > APART and after < 0.5 * before and (best is None or after < best[0]):
            best = after, lag, before, n
    if best is not None:
        name, other = ("logp_rollout", "logp_old") if side == "engine" else ("logp_old", "logp_current")
        yield (
            "rollout_shifted" if side == "engine" else "old_shifted",
            sentence(
                where, f"{name} differs from {other} by {best[2]:.3g} per token, and by {best[0]:.3g} if it is moved "
                f"by {best[1]} tokens ({best[3]:.0f} sequences)", "each stands at another token",
                "Align them: the log-prob of token t comes from the logits at t - 1",
            ),
        )  # fmt: skip


def _certain(read: Callable[[str], float], where: str) -> Iterator[Said]:
    count, tokens = read("engine/certain"), read("engine/tokens")
    if count >= 2 * FEW_ROWS and count > 0.01 * tokens:
        yield (
            "tokens_not_sampled",
            sentence(
                where, f"logp_rollout is exactly 0 at {count:.0f} of {tokens:.0f} trainable tokens that the trainer "
                "finds improbable", "these tokens were not sampled, or their log-probs are lost",
                "Take tokens of tools and prompts out of the mask, and look for padding in place of log-probs",
            ),
        )  # fmt: skip


def line(read: Callable[[str], float]) -> tuple[float, float, float]:
    """Points, slope and share of the variance explained, of rollout - old over old + entropy."""
    n, x, y, xx, xy, yy = (read(f"temperature/{part}") for part in ("n", "x", "y", "xx", "xy", "yy"))
    if n < FEW_TOKENS:
        return n, 0.0, 0.0
    wide, tall, both = xx - x * x / n, yy - y * y / n, xy - x * y / n
    return (n, both / wide, both * both / (wide * tall)) if wide > 0 and tall > 0 else (n, 0.0, 0.0)


def _temperature(read: Callable[[str], float], where: str) -> Iterator[Said]:
    n, slope, explained = line(read)
    if n >= FEW_TOKENS and explained > ON_LINE and abs(slope) > SLANT:
        about = f"about {1 / (1 + slope):.2g} times" if slope > -0.9 else "many times"
        yield (
            "rollout_temperature",
            sentence(
                where, f"logp_rollout lies on a line of slope {slope:.2f} over logp_old ({explained:.0%} of the "
                "variance)", f"the sampler's log-probs belong to {about} the trainer's temperature",
                "Report log-probs at the temperature at which the trainer computes its own",
            ),
        )  # fmt: skip


def _old(read: Callable[[str], float], where: str) -> Iterator[Said]:
    tokens = read("old/tokens")
    gap = read("old/gap") / max(tokens, 1.0)
    if tokens >= FEW_TOKENS and gap > DIFFERENT:
        yield (
            "old_is_not_current",
            sentence(
                where, f"before any update logp_current differs from logp_old by {gap:.3g} per token",
                "the ratio is not 1 where it must be, and clipping acts on noise",
                "Look for dropout, another temperature or another mask in one of the two passes",
            ),
        )  # fmt: skip
