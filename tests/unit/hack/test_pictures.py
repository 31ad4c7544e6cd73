"""Pictures of panels: colors, rows and names as Grafana would show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hack.pictures.panels import Answer, Line, draw
from hack.pictures.text import color_of
from monitoring.dashboards import ALL, DIRECTORY
from monitoring.dashboards.phases import PHASE_COLORS
from monitoring.dashboards.queries import Panel, dashboards, panels
from testbed.operator_process import ROOT

JSON = dashboards(ROOT / DIRECTORY)


def panel_of(dashboard: str, title: str) -> Panel:
    [found] = [panel for name in ALL if name == dashboard for panel in panels(JSON[name]) if panel.title == title]
    return found


def drawn(panel: Panel, *series: tuple[str, Mapping[str, str], float], height: float = 0.9) -> Axes:
    """The panel with these series, given by reference, labels and value, in a figure of ten inches."""
    lines = [Line(ref, labels, np.array([60.0]), np.array([value])) for ref, labels, value in series]
    axes = Figure(figsize=(10, 10)).add_axes((0.05, 0.05, 0.9, height))
    draw(axes, Answer(panel, lines, 0.0, 60.0, []))
    return axes


def cells(axes: Axes) -> dict[str, Any]:
    [table] = axes.tables
    return {cell.get_text().get_text(): cell for cell in table.get_celld().values()}


def test_a_column_with_links_keeps_its_colors() -> None:
    """Two overrides of one column apply together."""
    panel = panel_of("fleet", "Deployments")
    [phase] = [query.ref for query in panel.queries if "dflash:rollout_phase" in query.expr]
    row = {"namespace": "team", "deployment": "chat", "phase": "RolledBack"}
    assert cells(drawn(panel, (phase, row, 1.0)))["RolledBack"].get_text().get_color() == color_of(PHASE_COLORS["RolledBack"])


def test_a_taller_table_shows_more_rows() -> None:
    panel = panel_of("rollout", "Verdicts")
    [ref] = [query.ref for query in panel.queries if query.labels >= {"verdict"}]
    series = [(ref, {"namespace": "team", "deployment": "chat", "metric": f"m{n}", "verdict": "Successful"}, 1.0) for n in range(30)]
    assert [
        sum(text.startswith("m") and text[1:].isdigit() for text in cells(drawn(panel, *series, height=tall))) for tall in (0.1, 0.3)
    ] == [
        4,
        14,
    ]


def test_an_empty_table_says_why() -> None:
    [text] = drawn(panel_of("rollout", "Verdicts")).texts
    assert text.get_text() == "No rollout yet"


def test_a_number_for_each_deployment_has_its_name() -> None:
    panel = panel_of("speculation", "Acceptance length")
    series = [("A", {"namespace": "team", "deployment": name}, value) for name, value in (("chat", 4.86), ("code", 6.02))]
    assert [text.get_text() for text in drawn(panel, *series).texts] == ["4.86", "team/chat", "6.02", "team/code"]
    assert [text.get_text() for text in drawn(panel, series[0]).texts] == ["4.86"]
