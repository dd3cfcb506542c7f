"""The only place that makes a console. Text is printed as it is; style is given beside it, never inside it.

rich reads square brackets in a string as markup: "Bound the reward to [low, high]" would lose its bounds, and a name
that holds "[/]" would end in an error. So markup is off, and what is bold says so: `bold("dapo", "  recipe")`.
"""

from rich.console import Console
from rich.text import Text


def plain_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; wide enough for whole names where there is none, so that grep finds them."""
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    return console


def bold(head: str, rest: str = "") -> Text:
    """A line that begins with a bold word."""
    return Text.assemble((head, "bold"), rest)
