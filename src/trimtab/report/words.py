"""The only place that writes numbers for people: shares, points, counts, durations, lists."""

from collections.abc import Sequence

SPACE = "\u00a0"
"""Keeps a number and its unit on one line."""


def percent(share: float) -> str:
    """A share with a sensible number of digits; number and sign stay on one line.

    >>> percent(0.984), percent(1.0), percent(0.00042)
    ('98.4\\xa0%', '100\\xa0%', '0.042\\xa0%')
    """
    if share == 0 or 0.99995 <= share <= 1:
        return f"{100 * share:.0f}{SPACE}%"
    if 0.9995 <= abs(share) < 1:
        return f"{100 * share:.2f}{SPACE}%"
    return f"{100 * share:.1f}{SPACE}%" if abs(share) >= 0.001 else f"{100 * share:.2g}{SPACE}%"


def points(difference: float) -> str:
    """A difference of shares.

    >>> points(0.034), points(-0.5)
    ('3.4\\xa0points', '50.0\\xa0points')
    """
    return f"{abs(100 * difference):.1f}{SPACE}points"


def small(value: float) -> str:
    """A number of any size, with three digits.

    >>> small(0.0123), small(2.5e-7), small(12.0), small(0.0)
    ('0.0123', '2.5\xa0×\xa010⁻⁷', '12', '0')
    """
    digits, _, power = f"{value:.3g}".partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if power else ""
    return f"{digits}{SPACE}×{SPACE}10{raised}" if power else digits


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(3.21), duration(75), duration(7300)
    ('3.2\\xa0s', '1\\xa0min 15\\xa0s', '2\\xa0h 1\\xa0min')
    """
    if seconds < 60:
        return f"{seconds:.1f}{SPACE}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}{SPACE}min {seconds % 60:.0f}{SPACE}s"
    return f"{seconds // 3600:.0f}{SPACE}h {seconds % 3600 // 60:.0f}{SPACE}min"


def counted(count: int, one: str, many: str = "") -> str:
    """
    >>> counted(1, "step"), counted(1200, "step"), counted(0, "match", "matches")
    ('1 step', '1,200 steps', '0 matches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(items: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return ", ".join(items[:-1]) + (" and " if len(items) > 1 else "") + items[-1] if items else ""


def capital(text: str) -> str:
    """The text with its first letter as a capital."""
    return text[:1].upper() + text[1:]
