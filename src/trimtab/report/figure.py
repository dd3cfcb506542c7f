"""The only place that draws: matplotlib figures as inline SVG whose colours are the page's own.

Figures are drawn in stand-in colours, one for each role, which then become CSS variables. So one drawing serves the
light page and the dark one.
"""

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, cast

from trimtab.report.data import RunData, Series, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLES = {
    "ink": "#010101",
    "faint": "#020202",
    "line": "#030303",
    "first": "#040404",
    "second": "#050505",
    "third": "#060606",
    "card": "#070707",
}
"""Colours nobody would draw with, each standing for a CSS variable of the same name."""

WINDOW = 10
"""Steps behind a smoothed point; 10 steps of 32 x 8 answers move by about 0.01."""


def drawn(name: str, panels: int, paint: Callable[[list[Any]], None], *, height: float = 2.9) -> str:
    """An SVG element with `panels` axes side by side, painted by the caller."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(cast(Any, _style(name))):
        figure = Figure(figsize=(8.2, height), layout="constrained")
        _ = FigureCanvasSVG(figure)
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        for axis in axes:
            _plain_axis(axis)
        paint(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _inline(text.getvalue(), name)


def key(entries: list[tuple[str, str]]) -> str:
    """What the colours mean, as text of the page: it wraps, it can be read aloud, and it never covers a curve."""
    items = "".join(f'<li><i style="background: var(--{role})"></i>{escape(text)}</li>' for role, text in entries)
    return f'<ul class="key">{items}</ul>'


def learning_curve(run: RunData) -> str:
    """Held-out accuracy and sampled reward over steps, and the final test accuracy."""
    accuracy, reward = run.series("eval/accuracy"), run.series("rollout/reward_mean")

    def paint(axes: list[Any]) -> None:
        axis = axes[0]
        _ = axis.plot(reward.steps, reward.values, color=ROLES["second"], linewidth=0.8, alpha=0.35)
        _ = axis.plot(reward.steps, smoothed(reward.values, WINDOW), color=ROLES["second"], linewidth=1.8)
        end, final = int(run.summary["steps"]), float(run.summary["held_out_accuracy"])
        steps, values = [*accuracy.steps, end], [*accuracy.values, float(run.summary["validation_accuracy"])]
        _ = axis.plot(steps, values, color=ROLES["first"], linewidth=2.2, marker="o", markersize=4.5)
        _ = axis.plot([end], [final], marker="D", markersize=8, color=ROLES["third"], markeredgecolor=ROLES["card"])
        axis.set_ylim(0, 1.04)
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
        axis.set_xlabel("step")

    return drawn("learning", 1, paint, height=3.3) + key(
        [
            ("first", "held-out accuracy, greedy, on validation prompts"),
            ("third", f"on test prompts: {float(run.summary['held_out_accuracy']):.3f}"),
            ("second", f"reward while sampling, and its mean over {WINDOW} steps"),
        ]
    )


def agreement(run: RunData) -> str:
    """How far the sampler's log-probs are from the trainer's, mean and largest, over steps."""
    mean, largest = run.gap("mean"), run.gap("max")
    floor = 1e-9  # equal numbers have no place on a log axis; float32 log-probs never differ by so little

    def paint(axes: list[Any]) -> None:
        axis = axes[0]
        for series, role in ((largest, "second"), (mean, "first")):
            if series:
                values = tuple(max(value, floor) for value in series.values)
                _ = axis.plot(series.steps, values, color=ROLES[role], linewidth=1.8)
        _ = axis.axhspan(floor, 1e-4, color=ROLES["third"], alpha=0.10, linewidth=0)
        axis.set_yscale("log")
        top = max([1e-3, *(3 * value for value in largest.values)])
        axis.set_ylim(max(floor, 0.2 * max(floor, min(mean.values))), top)
        axis.set_xlabel("step")
        axis.set_ylabel("|logp trainer − logp sampler|")

    return drawn("agreement", 1, paint, height=2.6) + key(
        [("second", "largest of a batch"), ("first", "mean of a batch"), ("third", "the region of rounding")]
    )


def use_of_data(lines: list[tuple[str, str, Series]]) -> str:
    """Shares of tokens over steps: lines of (name, role, series)."""

    def paint(axes: list[Any]) -> None:
        axis = axes[0]
        for _, role, series in lines:
            _ = axis.plot(series.steps, series.values, color=ROLES[role], linewidth=1.8)
        axis.set_ylim(-0.03, 1.06)
        axis.set_yticks([0, 0.5, 1.0], ["0", "50 %", "100 %"])
        axis.set_xlabel("step")

    return drawn("use", 1, paint, height=2.3) + key([(role, name) for name, role, _ in lines])


def steadiness(run: RunData) -> str:
    """Entropy, and the length of the gradient against its bound."""
    entropy, norm = run.series("entropy/token_mean"), run.series("train/grad_norm")

    def paint(axes: list[Any]) -> None:
        left, right = axes
        _ = left.plot(entropy.steps, entropy.values, color=ROLES["first"], linewidth=1.8)
        left.set_title("entropy, nats a token", loc="left")
        left.set_ylim(0, 1.08 * max(1e-3, *entropy.values))
        _ = right.plot(norm.steps, norm.values, color=ROLES["second"], linewidth=1.4)
        bound = float(run.config["grad_clip"])
        _ = right.axhline(bound, color=ROLES["faint"], linewidth=1, linestyle=(0, (4, 3)))
        right.set_title("gradient norm before clipping", loc="left")
        right.set_ylim(0, 1.08 * max(bound, *norm.values))
        for axis in axes:
            axis.set_xlabel("step")

    return drawn("steadiness", 2, paint, height=2.5)


def _plain_axis(axis: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.grid(visible=True, axis="y", linewidth=0.7)
    axis.tick_params(which="both", length=0)
    axis.margins(x=0.02)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


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
    """What a page can hold: no prolog, no metadata, no name spaces, no fixed size, and the page's colours and fonts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{name}"', 1).replace("xlink:href", "href")
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    for role, colour in ROLES.items():
        svg = svg.replace(colour, f"var(--{role})")
    return svg
