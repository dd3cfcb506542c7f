"""The only place that reads a number out of a text, the way GSM8K's graders do."""

import re
from fractions import Fraction

MARK = "####"
"""GSM8K writes the answer after this mark, on the last line."""
MAX_DIGITS = 400
"""A longer number is not read as an answer: turning it into an integer would only cost time."""

MAX_EXPONENT = 300
"""The largest power of ten of a float; beyond it a short text would become a huge integer."""

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(rf"(?:(?<![\w)])-)?\$?(?:{_WHOLE}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?(?:/{_WHOLE})?")


def number_in(text: str) -> Fraction | None:
    """The number after the last `####`, or else the last number of the text; None when there is none.

    Commas between digits and dollar signs are ignored; fractions and decimals are exact.

    >>> number_in("48/2=24, 48+24=72\\n#### $1,072.50")
    Fraction(2145, 2)
    >>> number_in("so it is 3/4.")
    Fraction(3, 4)
    """
    tail = text.rpartition(MARK)[2]
    found: list[str] = _NUMBER.findall(tail)
    if not found:
        return None
    return _fraction(found[0] if MARK in text else found[-1])


def number_after_mark(text: str) -> Fraction | None:
    """The number after the last `####`; None when there is no mark."""
    return number_in(text) if MARK in text else None


def _fraction(written: str) -> Fraction | None:
    plain = written.replace(",", "").replace("$", "").lower()
    over, _, under = plain.partition("/")
    exponent = over.partition("e")[2]
    if len(plain) > MAX_DIGITS or (exponent and abs(int(exponent)) > MAX_EXPONENT):
        return None
    try:
        return Fraction(over) / Fraction(under or "1")
    except (ValueError, ZeroDivisionError):
        return None
