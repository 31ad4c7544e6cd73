"""Numbers, names and colors as Grafana shows them, for pictures. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

_COLORS = {
    "green": "#56a64b",
    "light-green": "#96d98d",
    "orange": "#f2930c",
    "red": "#e02f44",
    "light-red": "#ff7383",
    "blue": "#3274d9",
    "light-blue": "#8ab8ff",
    "purple": "#a352cc",
    "yellow": "#e0b400",
    "text": "#24292e",
    "transparent": "none",
}
_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""))
_SUFFIXES = {"reqps": " req/s", "ops": " ops/s"}


def color_of(name: str) -> str:
    """Returns a color by Grafana's name for it, or the name itself."""
    return _COLORS.get(name, name)


def level_color(levels: Sequence[tuple[float, str]], value: float) -> str:
    """Returns the color of the highest level that the value reaches."""
    return [color for level, color in levels if value >= level][-1] if levels else "text"


def legend_of(legend: str, labels: Mapping[str, str]) -> str:
    """Returns a legend with its labels filled in."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)


def value_text(value: float, unit: str, decimals: int | None = None) -> str:
    """Returns a number with its unit; with three digits unless ``decimals`` is given."""
    if not math.isfinite(value):
        return ""
    if unit in ("percentunit", "percent"):
        return _number(value * 100 if unit == "percentunit" else value, decimals) + " %"
    if unit == "none":
        return _number(value, decimals)
    scale = {"s": _TIMES, "bytes": _SIZES}.get(unit, _COUNTS)
    factor, name = next((one for one in scale if abs(value) >= one[0]), scale[-1] if value and unit == "s" else (1.0, ""))
    if value == 0 and unit == "s":
        name = "s"
    text = _number(value / factor, decimals)
    return text + (f" {name}" if name else "") + _SUFFIXES.get(unit, "")


def _number(value: float, decimals: int | None) -> str:
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.3g}"
