"""Panels drawn by matplotlib from the real results of their queries, close enough to Grafana to show the content of a dashboard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hack.pictures.text import color_of, legend_of, level_color, value_text
from monitoring.dashboards.queries import Panel

MOST_SERIES = 10
"""Maximum series in a legend; Grafana would scroll."""
CELL_INCH = 0.2
"""Height in inches of a table's row."""
PALETTE = (
    "#3274d9",
    "#56a64b",
    "#f2930c",
    "#a352cc",
    "#e02f44",
    "#33a2c4",
    "#b877d9",
    "#8f7a1f",
    "#d683ce",
    "#5c6b73",
    "#96d98d",
    "#ffb357",
)
GRID = "#e4e7eb"
TEXT = "#24292e"


@dataclass(frozen=True, slots=True)
class Line:
    """One series: Unix times and values."""

    ref: str
    labels: Mapping[str, str]
    times: np.ndarray[Any, np.dtype[np.float64]]
    values: np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of a panel's queries, from time ``start`` to ``end``."""

    panel: Panel
    lines: Sequence[Line]
    start: float
    end: float
    marks: Sequence[tuple[float, str]]
    """Time and color of each annotation."""

    def legend(self, line: Line) -> str:
        """Returns the name of a series as Grafana would write it."""
        legend = next(query.legend for query in self.panel.queries if query.ref == line.ref)
        return legend_of(legend, line.labels)

    @property
    def unit(self) -> str:
        return str(self.panel.spec["fieldConfig"]["defaults"].get("unit", "short"))

    @property
    def levels(self) -> list[tuple[float, str]]:
        """Returns the thresholds. The lowest comes first and has no lower bound."""
        return level_steps(self.panel.spec["fieldConfig"]["defaults"].get("thresholds") or {})


def level_steps(thresholds: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Returns thresholds as in the JSON, as pairs of a lower bound and a color."""
    steps = thresholds.get("steps") or ()
    return [(-math.inf if step["value"] is None else float(step["value"]), str(step["color"])) for step in steps]


def draw(axes: Axes, answer: Answer) -> None:
    """Draws one panel. Raises KeyError for a panel type that no dashboard has."""
    if not answer.lines:
        nothing = answer.panel.spec["fieldConfig"]["defaults"].get("noValue") or "No data"
        axes.text(0.5, 0.5, str(nothing), ha="center", va="center", fontsize=7, color="#808080", transform=axes.transAxes)
        axes.axis("off")
        return
    _KINDS[answer.panel.kind](axes, answer)


def _stat(axes: Axes, answer: Answer) -> None:
    """Draws one number, or one for each series with its name above it, as Grafana does."""
    decimals = answer.panel.spec["fieldConfig"]["defaults"].get("decimals")
    lines = sorted(answer.lines, key=answer.legend)
    for place, line in enumerate(lines):
        value, across = float(line.values[-1]), (place + 0.5) / len(lines)
        color = color_of(level_color(answer.levels, value))
        shown, size = value_text(value, answer.unit, decimals), 17 if len(lines) == 1 else 12
        axes.text(across, 0.4, shown, ha="center", va="center", fontsize=size, color=color, transform=axes.transAxes)
        if len(lines) > 1:
            axes.text(across, 0.75, answer.legend(line), ha="center", va="center", fontsize=5.5, transform=axes.transAxes)
    axes.axis("off")


def _timeseries(axes: Axes, answer: Answer) -> None:
    custom = answer.panel.spec["fieldConfig"]["defaults"]["custom"]
    dashed = {
        item["matcher"]["options"] for item in answer.panel.spec["fieldConfig"]["overrides"] if item["matcher"]["id"] == "byFrameRefID"
    }
    if custom.get("stacking", {}).get("mode") == "normal":
        _stack(axes, answer)
    else:
        for number, line in enumerate(answer.lines):
            style = "--" if line.ref in dashed else "-"
            times, values = _with_gaps(line)
            axes.plot(_minutes(answer, times), values, style, lw=1.1, color=PALETTE[number % len(PALETTE)], label=answer.legend(line))
    for level, color in answer.levels:
        if math.isfinite(level) and color != "transparent" and custom.get("thresholdsStyle"):
            axes.axhline(level, ls=":", lw=0.8, color=color_of(color))
    for at, color in answer.marks:
        axes.axvline((at - answer.start) / 60, ls="--", lw=0.6, color=color_of(color), alpha=0.7)
    _time_axis(axes, answer)
    least = answer.panel.spec["fieldConfig"]["defaults"].get("min")
    if least is not None:
        axes.set_ylim(bottom=float(least))
    axes.yaxis.set_major_formatter(lambda value, _: value_text(value, answer.unit))
    if len(answer.lines) <= MOST_SERIES:
        columns = min(len(answer.lines), answer.panel.spec["gridPos"]["w"] // 3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.48, -0.12), ncols=columns, fontsize=4.5, frameon=False, columnspacing=1.0)


def _with_gaps(line: Line) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Returns the series with a gap wherever samples are further apart than usual."""
    steps = np.diff(line.times)
    holes = np.flatnonzero(steps > 1.5 * steps.min()) + 1 if len(steps) else np.array([], dtype=np.intp)
    return np.insert(line.times, holes, line.times[holes]), np.insert(line.values, holes, np.nan)


def _stack(axes: Axes, answer: Answer) -> None:
    times = np.unique(np.concatenate([line.times for line in answer.lines]))
    heights = np.zeros((len(answer.lines), len(times)))
    for row, line in enumerate(answer.lines):
        heights[row, np.searchsorted(times, line.times)] = line.values
    names = [answer.legend(line) for line in answer.lines]
    axes.stackplot(
        _minutes(answer, times), heights, labels=names, colors=[PALETTE[n % len(PALETTE)] for n in range(len(names))], alpha=0.55
    )


def _state_timeline(axes: Axes, answer: Answer) -> None:
    words: Mapping[str, Mapping[str, Any]] = answer.panel.spec["fieldConfig"]["defaults"]["mappings"][0]["options"]
    seen = {}
    for row, line in enumerate(answer.lines):
        minutes = _minutes(answer, line.times)
        step = float(np.min(np.diff(minutes))) if len(minutes) > 1 else 0.1
        for code in np.unique(line.values):
            word = words[str(int(code))]
            spans = [(minute, step * 1.05) for minute in minutes[line.values == code]]
            seen[str(word["text"])] = axes.broken_barh(spans, (row - 0.4, 0.8), color=color_of(str(word["color"])), lw=0)
    axes.set_yticks(range(len(answer.lines)), [answer.legend(line) for line in answer.lines])
    _time_axis(axes, answer)
    axes.legend(seen.values(), seen.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=8, fontsize=5, frameon=False)


def _heatmap(axes: Axes, answer: Answer) -> None:
    lines = sorted(answer.lines, key=answer.legend)
    times = np.unique(np.concatenate([line.times for line in lines]))
    cells = np.full((len(lines), len(times)), np.nan)
    for row, line in enumerate(lines):
        cells[row, np.searchsorted(times, line.times)] = line.values
    mesh = axes.pcolormesh(
        _minutes(answer, times), np.arange(len(lines)), cells, cmap="RdYlGn", vmin=0, vmax=1, shading="nearest", rasterized=True
    )
    axes.set_yticks(range(len(lines)), [answer.legend(line) for line in lines])
    axes.invert_yaxis()
    _time_axis(axes, answer)
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(mesh, ax=axes, fraction=0.04, pad=0.01, aspect=30, format=lambda value, _: value_text(value, answer.unit))
    bar.ax.tick_params(labelsize=5, length=2)


def _xychart(axes: Axes, answer: Answer) -> None:
    names = _columns(answer.panel)
    (by,) = (name for name in names if not name.startswith("Value"))
    sides: dict[str, dict[str, dict[float, float]]] = {"A": {}, "B": {}}
    for line in answer.lines:
        sides[line.ref].setdefault(line.labels[by], {}).update(zip(line.times.tolist(), line.values.tolist(), strict=True))
    for number, name in enumerate(sorted(sides["A"])):
        across, upward = sides["A"][name], sides["B"].get(name, {})
        both = sorted(set(across) & set(upward))
        color = PALETTE[number % len(PALETTE)]
        axes.scatter([across[at] for at in both], [upward[at] for at in both], s=6, alpha=0.6, lw=0, color=color, label=name)
    axes.set_xlabel(names["Value #A"], fontsize=6)
    axes.set_ylabel(names["Value #B"], fontsize=6)
    axes.grid(color=GRID, lw=0.5)
    axes.legend(loc="lower right", fontsize=5, frameon=False)


def _bargauge(axes: Axes, answer: Answer) -> None:
    lines = sorted(answer.lines, key=answer.legend)[:14]
    values = [float(line.values[-1]) for line in lines]
    axes.barh(range(len(lines)), values, color=PALETTE[0], height=0.6)
    for row, value in enumerate(values):
        axes.text(value, row, " " + value_text(value, answer.unit), va="center", fontsize=5.5, color=TEXT)
    axes.set_yticks(range(len(lines)), [answer.legend(line) for line in lines])
    axes.invert_yaxis()
    full = answer.panel.spec["fieldConfig"]["defaults"].get("max")
    axes.set_xlim(0, (max([*values, 1e-9]) if full is None else float(full)) * 1.15)
    axes.set_xticks([])


def _table(axes: Axes, answer: Answer) -> None:
    names = _columns(answer.panel)
    found: list[dict[str, str]] = []
    colors: dict[tuple[str, str], str] = {}
    units = properties_by_field(answer.panel.spec["fieldConfig"]["overrides"])
    for line in answer.lines:
        own = {names[label]: value for label, value in line.labels.items() if label in names}
        number = names.get("Value" if len(answer.panel.queries) == 1 else f"Value #{line.ref}")
        if number is not None:
            wanted = {item["id"]: item["value"] for item in units.get(number, ())}
            value = float(line.values[-1])
            own[number] = value_text(value, str(wanted.get("unit", "short")), wanted.get("decimals"))
            if "thresholds" in wanted:
                colors[number, own[number]] = level_color(level_steps(wanted["thresholds"]), value)
        for row in found:
            if all(row.get(name, value) == value for name, value in own.items()) and set(row) & set(own):
                row.update(own)
                break
        else:
            found.append(own)
    heads = list(names.values())
    for head, properties in units.items():
        for mapping in (item["value"] for item in properties if item["id"] == "mappings"):
            colors |= {(head, word): str(shown["color"]) for word, shown in mapping[0]["options"].items()}
    order = [by["displayName"] for by in answer.panel.spec["options"].get("sortBy", ())]
    found.sort(key=lambda row: [row.get(name, "") for name in order])
    height = CELL_INCH / _height_inches(axes)
    cells = [[row.get(head, "") for head in heads] for row in found[: int(1 / height) - 1]]
    widths = [max(len(text) for text in (head, *(row[place] for row in cells))) + 2 for place, head in enumerate(heads)]
    made = axes.table(
        cells, colLabels=heads, colWidths=[width / sum(widths) for width in widths], loc="upper left", cellLoc="left", edges="horizontal"
    )
    made.auto_set_font_size(False)
    made.set_fontsize(6)
    for (place, column), cell in made.get_celld().items():
        cell.set_height(height)
        cell.set_edgecolor(GRID)
        color = colors.get((heads[column], cell.get_text().get_text()), "text") if place else "text"
        cell.set_text_props(color=color_of(color), weight="bold" if place == 0 else "normal")
    axes.axis("off")


def properties_by_field(overrides: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns the properties that all overrides of a field set together; a field may have several."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for item in overrides:
        found.setdefault(item["matcher"]["options"], []).extend(item["properties"])
    return found


def _height_inches(axes: Axes) -> float:
    figure = axes.get_figure()
    assert figure is not None
    return float(axes.bbox.height / figure.dpi)


def _columns(panel: Panel) -> dict[str, str]:
    """Returns the heading of each field, in display order."""
    options = next(step["options"] for step in panel.spec["transformations"] if step["id"] == "organize")
    names: Mapping[str, str] = options["renameByName"]
    return {field: names[field] for field, _ in sorted(options["indexByName"].items(), key=lambda item: item[1])}


def _minutes(answer: Answer, times: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return (times - answer.start) / 60


def _time_axis(axes: Axes, answer: Answer) -> None:
    axes.set_xlim(0, (answer.end - answer.start) / 60)
    axes.xaxis.set_major_locator(MaxNLocator(max(3, answer.panel.spec["gridPos"]["w"] // 2)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} min")
    axes.grid(color=GRID, lw=0.5)


_KINDS: Mapping[str, Callable[[Axes, Answer], None]] = {
    "stat": _stat,
    "timeseries": _timeseries,
    "state-timeline": _state_timeline,
    "heatmap": _heatmap,
    "xychart": _xychart,
    "bargauge": _bargauge,
    "table": _table,
}
