"""Which interval and which threshold the settings of a function can mean."""

from collections.abc import Iterator, Mapping, Sequence

from trimtab.sentinel.binding.words import words_of

Band = tuple[float, float]
LOW = frozenset({"low", "lo", "lower", "min", "below", "floor"})
HIGH = frozenset({"high", "hi", "upper", "max", "above", "cap", "higher", "ceiling"})
OTHER = frozenset({"coef", "coeff", "beta", "gamma", "lam", "lambda", "temperature", "temp", "tau", "entropy", "vf"})
"""Words of settings that bound no ratio."""
FREE = float("inf")
MOST = 12
"""How many intervals are tried: there are thousands of formulas for each."""


def likely(numbers: Sequence[float], named: Mapping[str, float]) -> list[Band]:
    """Intervals around 1: from settings called low and high where there are any, else from all numbers."""
    lows = [v for n, v in named.items() if set(words_of(n)) & LOW and 0 <= v < 1]
    highs = [v for n, v in named.items() if set(words_of(n)) & HIGH and v > 0]
    others = [v for n, v in named.items() if not set(words_of(n)) & (OTHER | LOW | HIGH) and v > 0]
    if lows or highs:
        around = _two_sided([n for n in others if n < 1], [n for n in others if n < 1])
        both = _two_sided(lows or others, highs or others)
        alone = tuple(_one_sided(lows, highs))
        found = dict.fromkeys((*both, *around, *alone) if lows and highs else (*alone, *around, *both))
    else:
        free = others or [n for n in numbers if n > 0]
        found = dict.fromkeys((*_two_sided([n for n in free if n < 1], free), *_one_sided((), free)))
    return [band for band in found if band[0] < 1 < band[1]][:MOST]


def _two_sided(lows: Sequence[float], highs: Sequence[float]) -> Iterator[Band]:
    for low in lows:
        for high in highs:
            yield (1 - low, 1 + high) if high < 1 else (low, high)
    for low in lows:
        for high in highs:
            yield (low, 1 + high) if high < 1 else (1 - low, high)


def _one_sided(lows: Sequence[float], highs: Sequence[float]) -> Iterator[Band]:
    for high in (n for n in highs if n > 1):
        yield 0.0, high
    for low in lows:
        yield low, FREE
        yield 1 - low, FREE


def shown(band: Band) -> str:
    """`[0.8, 1.2]`; `at most 2`; `at least 0.5`."""
    if band[1] == FREE:
        return f"at least {band[0]:g}"
    return f"at most {band[1]:g}" if band[0] == 0 else f"[{band[0]:g}, {band[1]:g}]"


def called(named: Mapping[str, float], *words: str) -> list[float]:
    """The numbers of the settings with one of these words in their names."""
    return [value for name, value in named.items() if set(words_of(name)) & set(words)]


def sides(numbers: Sequence[float], named: Mapping[str, float]) -> list[Band]:
    """How far something may go down and up: the settings called low and high, or any two numbers below 1."""
    ends: dict[frozenset[str], list[float]] = {
        words: [v for n, v in named.items() if set(words_of(n)) & words and 0 < v < 1] for words in (LOW, HIGH)
    }
    near = [n for n in numbers if 0 < n < 1]
    # Beside a setting called high, the one without a side is the low one, as `epsilon` is beside `epsilon_high`.
    lows = ends[LOW] or [n for n in near if n not in ends[HIGH]] or near
    highs = ends[HIGH] or [n for n in near if n not in ends[LOW]] or near
    return [(low, high) for low in lows for high in highs]


DISTANCES = frozenset({"kl", "k1", "k2", "k3", "threshold", "thresh", "delta", "log", "tau", "veto", "error", "diff"})
"""Words of settings that bound a distance, which is 0 where policies agree."""


def thresholds(numbers: Sequence[float], named: Mapping[str, float]) -> list[float]:
    """Numbers that a distance can be held against: those of settings that are no ends of an interval."""
    ends = {n for n in named if set(words_of(n)) & (LOW | HIGH) and not set(words_of(n)) & DISTANCES}
    free = {v for n, v in named.items() if n not in ends}
    return [n for n in numbers if n > 0 and (n in free or n not in named.values())]
