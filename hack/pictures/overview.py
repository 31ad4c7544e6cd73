"""``python -m hack.pictures.overview`` makes the picture of the README from parts of the dashboards' pictures."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from hack.pictures.layout import COLUMN_PIXELS, HEAD_PIXELS, PICTURES, ROW_PIXELS
from monitoring.dashboards import DIRECTORY
from monitoring.dashboards.queries import dashboards
from testbed.operator_process import ROOT

PANELS = (
    ("fleet", "Generated tokens"),
    ("speculation", "Block size over time"),
    ("speculation", "Acceptance length: stable and candidate"),
    ("rollout", "Phase over time"),
)
"""Dashboard and title of each panel, row by row from the left. All are half as wide as a dashboard."""
FILE = PICTURES / "overview.png"


def overview() -> Image.Image:
    """Returns the panels side by side, two in a row."""
    cut = [_panel(dashboard, title) for dashboard, title in PANELS]
    width, height = cut[0].size
    whole = Image.new("RGB", (2 * width, len(cut) // 2 * height), "white")
    for place, panel in enumerate(cut):
        whole.paste(panel, (place % 2 * width, place // 2 * height))
    return whole.quantize(256, method=Image.Quantize.MEDIANCUT)


def _panel(dashboard: str, title: str) -> Image.Image:
    [grid] = [
        panel["gridPos"]
        for panel in dashboards(ROOT / DIRECTORY)[dashboard]["panels"]
        if panel["title"] == title and panel["type"] not in ("row", "stat", "table")
    ]
    left, top = grid["x"] * COLUMN_PIXELS, HEAD_PIXELS + grid["y"] * ROW_PIXELS
    box = (left, top, left + grid["w"] * COLUMN_PIXELS, top + grid["h"] * ROW_PIXELS)
    return Image.open(PICTURES / f"{dashboard}.png").convert("RGB").crop(box)


def main(file: Path = FILE) -> int:
    overview().save(file, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
