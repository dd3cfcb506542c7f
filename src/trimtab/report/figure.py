"""The only place that draws: matplotlib figures as inline SVG whose colours are the page's own.

Figures are drawn in placeholder colours, one per role, which are then replaced by CSS variables. So one drawing serves
the light page and the dark one. The text next to a figure explains it; the figure itself holds no explanation.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, cast

from trimtab.errors import MissingExtra
from trimtab.report.data import Series, smoothed, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLES = {
    name: f"#{i:02x}{i:02x}{i:02x}"
    for i, name in enumerate(
        ("ink", "faint", "line", "card", "warn", "bad", "first", "second", "third", "fourth", "fifth", "sixth"), start=1
    )
}
"""Placeholder colours that no figure uses otherwise. Each stands for a CSS variable of the same name."""
PALETTE = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Roles for lines of equal rank, in the order in which they are assigned."""
WINDOW = 10
"""Steps behind a smoothed point. With 10 steps of 32 x 8 answers, the noise of the mean is about 0.01."""
MOST_POINTS = 400
"""Largest number of points in a line: more than a screen shows, few enough for a page of 2 MB."""
WIDE = 8.2
"""Width of a full-width figure in inches. At this width its text is as large as that of the page."""
Scale = Literal["plain", "share", "log"]


@dataclass(frozen=True)
class Line:
    """One curve and its label. `smooth` draws the mean over the last steps, with the raw values thin behind it."""

    label: str
    role: str
    series: Series
    smooth: bool = False
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Mark:
    """One separate point; a horizontal level if `step` is None."""

    label: str
    role: str
    value: float
    step: int | None = None


def curves(
    name: str,
    lines: Sequence[Line],
    *,
    scale: Scale = "plain",
    marks: Sequence[Mark] = (),
    height: float = 2.5,
) -> str:
    """Lines over steps with their key; empty when there is nothing to draw."""
    shown = [line for line in lines if line.series and (scale != "log" or any(line.series.values))]
    if not shown:
        return ""

    def paint(axis: Any) -> None:
        draw_lines(axis, shown, scale=scale, marks=marks)

    entries = [(line.role, line.label + (f", mean over {WINDOW} steps" if line.smooth else "")) for line in shown]
    entries += [(mark.role, mark.label) for mark in marks if mark.label]
    return drawn(name, paint, height=height) + key(entries)


def draw_lines(axis: Any, lines: Sequence[Line], *, scale: Scale = "plain", marks: Sequence[Mark] = ()) -> None:
    """Curves, levels and points on one axis, with limits that leave room and never cut a line."""
    floor = _floor(lines) if scale == "log" else None
    for line in lines:
        _line(axis, line, floor)
    for mark in marks:
        if mark.step is None:
            _ = axis.axhline(mark.value, color=ROLES[mark.role], linewidth=1, linestyle=(0, (4, 3)))
        else:
            style = {"marker": "D", "markersize": 8, "markeredgecolor": ROLES["card"], "zorder": 5}
            _ = axis.plot([mark.step], [mark.value], color=ROLES[mark.role], **style)
    if scale == "share":
        axis.set_ylim(-0.03, 1.06)
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
    elif scale == "log":
        values = [value for line in lines for value in line.series.values] + [mark.value for mark in marks]
        _log_axis(axis, [value for value in values if value > 0])
    else:
        values = [value for line in lines for value in line.series.values] + [m.value for m in marks]
        low, high = min(0.0, *values), max(*values, 1e-9)
        axis.set_ylim(low * 1.08, high * 1.08)
    axis.set_xlabel("step")


def bars(
    name: str, heights: dict[str, list[float]], ticks: Sequence[str], *, xlabel: str, scale: Scale = "plain"
) -> str:
    """Groups of bars over named ticks, one colour for each series of heights."""
    wide = 0.8 / max(1, len(heights))

    def paint(axis: Any) -> None:
        for i, (role, values) in enumerate(zip(PALETTE, heights.values(), strict=False)):
            places = [place - 0.4 + (i + 0.5) * wide for place in range(len(values))]
            _ = axis.bar(places, values, width=0.9 * wide, color=ROLES[role], linewidth=0)
        every = -(-len(ticks) // 10)
        first = len(ticks) // 2 % every  # the middle tick always has a label
        axis.set_xticks(list(range(len(ticks)))[first::every], list(ticks)[first::every])
        axis.set_xlabel(xlabel, labelpad=8)
        if scale == "share":
            high = max([value for values in heights.values() for value in values], default=1.0)
            axis.set_ylim(0, min(1.0, 1.15 * high) or 1.0)
            axis.yaxis.set_major_formatter(_as_percent)

    return drawn(name, paint, height=2.4) + key(list(zip(PALETTE, heights, strict=False)))


def drawn(name: str, paint: Callable[[Any], None], *, height: float = 2.9, width: float = WIDE) -> str:
    """An SVG element with one axis, painted by the caller."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('report: figures need matplotlib: pip install "trimtab[report]"') from error

    with mpl.rc_context(cast(Any, _style(name))):
        figure = Figure(figsize=(width, height), layout="constrained")
        _ = FigureCanvasSVG(figure)
        axis = figure.subplots()
        _plain_axis(axis, ticks=8 if width == WIDE else 5)
        paint(axis)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    kind = "figure wide" if width == WIDE else "figure"
    return f'<div class="{kind}">{_inline(text.getvalue(), name)}</div>'


def panels(entries: Sequence[tuple[str, Callable[[Any], None]]]) -> str:
    """Small figures side by side, or below each other on a narrow screen, from (name, painter) pairs."""
    width = WIDE / max(2, len(entries))
    drawings = "".join(drawn(name, paint, width=width, height=2.3) for name, paint in entries)
    return f'<div class="panels">{drawings}</div>'


def key(entries: Sequence[tuple[str, str]]) -> str:
    """What the colours mean, as text of the page: it wraps, screen readers can read it, and it never covers a curve."""
    items = "".join(f'<li><i style="background: var(--{role})"></i>{escape(text)}</li>' for role, text in entries)
    return f'<ul class="key">{items}</ul>'


def _as_number(value: float, _: object) -> str:
    return f"{value:.2g}"


def _as_percent(value: float, _: object) -> str:
    return f"{100 * value:.3g} %"


def _line(axis: Any, line: Line, floor: float | None) -> None:
    kept = thinned(line.series, MOST_POINTS)
    raw = [max(value, floor) for value in kept.values] if floor is not None else list(kept.values)
    look: dict[str, Any] = {"color": ROLES[line.role]}
    if line.dots:
        look |= {"marker": "o", "markersize": 4.5}
    if line.dashed:
        look |= {"linestyle": (0, (4, 2))}
    if line.smooth:
        _ = axis.plot(kept.steps, raw, color=ROLES[line.role], linewidth=0.8, alpha=0.35)
        course = thinned(Series(line.series.steps, tuple(smoothed(line.series.values, WINDOW))), MOST_POINTS)
        raw = [max(value, floor) for value in course.values] if floor is not None else list(course.values)
    _ = axis.plot(kept.steps, raw, linewidth=2.2 if line.dots else 1.8, **look)


def _floor(lines: Sequence[Line]) -> float:
    """Zeros have no place on a log axis. They are drawn slightly below the smallest positive value."""
    above = [value for line in lines for value in line.series.values if value > 0]
    return max(1e-9, 0.5 * min(above)) if above else 1e-9


def _log_axis(axis: Any, values: list[float]) -> None:
    """Plain numbers at the ticks, and enough ticks where the values span a small range."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_yscale("log")
    few = max(values, default=1.0) < 100 * min(values, default=1.0)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=7))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(_as_number)


def _plain_axis(axis: "Axes", ticks: int) -> None:
    from matplotlib.ticker import MaxNLocator

    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.grid(visible=True, axis="y", linewidth=0.7)
    axis.tick_params(which="both", length=0)
    axis.margins(x=0.02)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _style(name: str) -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 10.5,
        "font.family": "sans-serif",
        "text.color": ROLES["ink"],
        "axes.edgecolor": ROLES["line"],
        "axes.labelcolor": ROLES["faint"],
        "axes.titlesize": 10.5,
        "axes.titlecolor": ROLES["faint"],
        "axes.axisbelow": True,
        "xtick.color": ROLES["faint"],
        "ytick.color": ROLES["faint"],
        "grid.color": ROLES["line"],
    }


def _inline(svg: str, name: str) -> str:
    """The SVG without prolog, metadata, name spaces and fixed size, with the colours and fonts of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{name}"', 1).replace("xlink:href", "href")
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    # ids such as figure_1 and axes_1 repeat in every figure, and nothing refers to them
    svg = re.sub(r'\sid="(?![mp][0-9a-f]{6,})[^"]*"', "", svg)
    for role, colour in ROLES.items():
        svg = svg.replace(colour, f"var(--{role})")
    return svg
