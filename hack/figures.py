"""``python -m hack.figures`` draws the figures of docs/explanation/dflash.md, in light and in dark colours, as SVG.

The plots show the published tables in ``testbed/data``. A test fails if a file differs from the output of this command.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from benchmarks.tuner_tables import Series, load
from testbed.simulator.table import SEED_ACCEPT, SEED_TABLES

FOLDER = Path(__file__).parents[1] / "docs" / "explanation" / "figures"
WIDTH = 9.0
"""Width of every figure in inches."""
TRAINED, SHORT = 16, 8
"""The two block sizes that are published for all targets."""


@dataclass(frozen=True)
class Colours:
    """Colours of one scheme of the site."""

    name: str
    text: str
    muted: str
    grid: str
    plain: str
    good: str
    bad: str
    on_strong: str
    lines: tuple[str, ...]


LIGHT = Colours(
    "light", "#1f2328", "#59636e", "#d1d9e0", "#eef1f4", "#1a7f37", "#cf222e", "#ffffff", ("#0969da", "#bc4c00", "#8250df", "#1a7f37")
)
DARK = Colours(
    "dark", "#e6edf3", "#9da7b1", "#3d444d", "#2a313c", "#2ea043", "#e5534b", "#ffffff", ("#58a6ff", "#f0883e", "#bc8cff", "#3fb950")
)


# One step

KNOWN = "def"
DRAFTED = ("sort", "(", "xs", ")", ":", "return", "xs")
CHECKED = ("sort", "(", "xs", ":", "", "", "")
"""What the target itself would have written at each drafted position; it is of no use behind the first difference."""


def step(colours: Colours) -> Figure:
    """Draws one verify step: drafter, target, what is committed."""
    figure = Figure(figsize=(WIDTH, 4.3))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 90)
    axes.set_ylim(0, 43)
    axes.axis("off")
    accepted = next(i for i, (draft, token) in enumerate(zip(DRAFTED, CHECKED, strict=True)) if draft != token)
    box = _boxes(axes, colours)

    axes.text(1, 40, "1  The drafter fills the block in one pass", color=colours.text, weight="bold", size=11, va="center")
    box(0, 32, KNOWN, "strong")
    for i, token in enumerate(DRAFTED, 1):
        box(i, 32, token, "plain")
    axes.text(1, 29.2, "known token", color=colours.muted, size=8.5, va="center")
    axes.text(12, 29.2, "7 drafted tokens: with the known one, a block of 8", color=colours.muted, size=8.5, va="center")

    axes.text(1, 25, "2  The target checks all 8 positions in one pass", color=colours.text, weight="bold", size=11, va="center")
    for i, token in enumerate(DRAFTED, 1):
        kind = "good" if i <= accepted else "bad" if i == accepted + 1 else "faded"
        box(i, 17, token, kind)
        note = "accepted" if i <= accepted else "refused" if i == accepted + 1 else "dropped"
        axes.text(i * 11 + 5.5, 14.2, note, color=colours.muted, size=8.5, ha="center", va="center")

    axes.text(1, 10, "3  Committed", color=colours.text, weight="bold", size=11, va="center")
    for i, token in enumerate([*DRAFTED[:accepted], CHECKED[accepted]], 1):
        box(i, 2, token, "good" if i <= accepted else "strong")
    axes.text(
        (accepted + 2) * 11 + 1,
        4.2,
        f"{accepted} drafts and 1 token of the target itself:\nacceptance length {accepted + 1} for one pass of the target",
        color=colours.text,
        size=10,
        va="center",
    )
    return figure


def _boxes(axes: Axes, colours: Colours) -> Callable[[int, float, str, str], None]:
    looks = {
        "strong": (colours.lines[0], colours.on_strong, 1.0),
        "plain": (colours.plain, colours.text, 1.0),
        "good": (colours.good, colours.on_strong, 1.0),
        "bad": (colours.bad, colours.on_strong, 1.0),
        "faded": (colours.plain, colours.muted, 0.6),
    }

    def box(column: int, bottom: float, text: str, kind: str) -> None:
        face, ink, alpha = looks[kind]
        shape = FancyBboxPatch(
            (column * 11 + 1, bottom), 9, 4.4, boxstyle="round,pad=0,rounding_size=0.8", facecolor=face, edgecolor=colours.grid, alpha=alpha
        )
        axes.add_patch(shape)
        axes.text(column * 11 + 5.5, bottom + 2.1, text, color=ink, size=10, ha="center", va="center", family="monospace")

    return box


# Plots


def blocks(colours: Colours) -> Figure:
    """Plots how much faster block 16 is than block 8, by concurrency."""
    figure, axes = _plot(colours, "Requests in service at once (concurrency)", "Tokens/s with block 16, compared with block 8")
    targets = by_model()
    ticks = sorted({c for found in targets.values() for one in found for c in one.concurrencies})
    for (model, found), colour in zip(targets.items(), colours.lines, strict=False):
        gains = [{c: 100 * (times - 1) for c in one.concurrencies if (times := gain(one, c))} for one in found]
        for points in gains:
            axes.plot(
                [ticks.index(c) for c in points], list(points.values()), color=colour, alpha=0.35, linewidth=1, marker="o", markersize=3
            )
        middle = {c: median(points[c] for points in gains if c in points) for c in ticks if any(c in points for points in gains)}
        axes.plot(
            [ticks.index(c) for c in middle], list(middle.values()), color=colour, linewidth=2.6, marker="o", markersize=6, label=model
        )
    axes.axhline(0, color=colours.text, linewidth=1)
    axes.set_xticks(range(len(ticks)), [str(c) for c in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %" if value else "0 %")
    axes.text(len(ticks) - 1, 4, "above: block 16 is faster", color=colours.text, size=10, ha="right")
    axes.text(0, -9, "below: block 8 is faster", color=colours.text, size=10)
    _legend(axes, colours, "upper right")
    return figure


def speed(colours: Colours) -> Figure:
    """Plots the speed-up over the same model without a drafter, by concurrency, for one target."""
    figure, axes = _plot(colours, "Requests in service at once (concurrency)", "Tokens/s compared with no drafter")
    found = {one.workload: one for one in by_model()["Qwen3.5-9B"]}
    ticks = found["math500"].concurrencies
    for (workload, label), colour in zip((("math500", "maths"), ("mt-bench", "chat")), colours.lines, strict=False):
        for block, dash in ((TRAINED, "-"), (SHORT, "--")):
            speeds = found[workload].speeds
            values = [speeds[block, c] / speeds[1, c] for c in ticks]
            axes.plot(
                range(len(ticks)),
                values,
                color=colour,
                linestyle=dash,
                linewidth=2.2,
                marker="o",
                markersize=5,
                label=f"{label}, block {block}",
            )
    axes.set_xticks(range(len(ticks)), [str(c) for c in ticks])
    axes.set_ylim(1, None)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    _legend(axes, colours, "upper right")
    return figure


def acceptance(colours: Colours) -> Figure:
    """Plots the acceptance length by block size, one line for each workload of one target."""
    figure, axes = _plot(colours, "Block size", "Acceptance length (tokens per verify step)")
    names = {"humaneval": "code (HumanEval)", "math500": "maths (MATH-500)", "gsm8k": "maths (GSM8K)", "mt-bench": "chat (MT-Bench)"}
    found = {one.workload: one for one in by_model()["Qwen3.5-35B-A3B"]}
    for (workload, label), colour in zip(names.items(), colours.lines, strict=True):
        lengths = {1: 1.0, **found[workload].lengths}
        sizes = sorted(lengths)
        axes.plot(sizes, [lengths[size] for size in sizes], color=colour, linewidth=2.2, marker="o", markersize=5, label=label)
    axes.plot([1, TRAINED], [1, TRAINED], color=colours.muted, linestyle=":", linewidth=1.4, label="every draft accepted")
    axes.set_ylim(0, 10)
    axes.set_xticks([1, 4, SHORT, TRAINED], ["1 (no drafts)", "4", "8", "16"])
    _legend(axes, colours, "lower right")
    return figure


def _plot(colours: Colours, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 4.4))
    axes = figure.add_axes((0.09, 0.13, 0.89, 0.84))
    axes.set_facecolor("none")
    axes.set_xlabel(x, color=colours.text, size=10.5)
    axes.set_ylabel(y, color=colours.text, size=10.5)
    axes.tick_params(colors=colours.text, labelsize=10, length=0)
    axes.grid(True, color=colours.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _legend(axes: Axes, colours: Colours, where: Literal["upper right", "lower right"]) -> None:
    axes.legend(loc=where, frameon=False, labelcolor=colours.text, fontsize=10)


def by_model() -> Mapping[str, Sequence[Series]]:
    """Returns the published series by target, in the order of the table, without targets that were measured at one block size only."""
    found: dict[str, list[Series]] = {}
    for one in load(SEED_TABLES, SEED_ACCEPT):
        if any(gain(one, c) for c in one.concurrencies):
            found.setdefault(one.model, []).append(one)
    return {model: many for model, many in found.items() if len(many) > 1}


def gain(one: Series, concurrency: int) -> float | None:
    long, short = one.speeds.get((TRAINED, concurrency)), one.speeds.get((SHORT, concurrency))
    return long / short if long and short else None


# Files

FIGURES: Mapping[str, Callable[[Colours], Figure]] = {"step": step, "blocks": blocks, "speed": speed, "acceptance": acceptance}


def drawn() -> Mapping[str, bytes]:
    """Returns every figure by file name."""
    return {f"{name}-{colours.name}.svg": _svg(draw, colours) for name, draw in FIGURES.items() for colours in (LIGHT, DARK)}


def _svg(draw: Callable[[Colours], Figure], colours: Colours) -> bytes:
    page = io.BytesIO()
    # Text stays text, and nothing in the file changes from one run to the next.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dflash", "font.family": "sans-serif"}):
        draw(colours).savefig(page, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return b"".join(line.rstrip() + b"\n" for line in page.getvalue().splitlines())


def main() -> None:
    """Writes every figure."""
    for name, content in drawn().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
