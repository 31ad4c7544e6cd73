"""Where the pictures are, and the sizes of what they show."""

from __future__ import annotations

from testbed.operator_process import ROOT

PICTURES = ROOT / "docs" / "dashboards"
INCH = 0.5
"""Of one column of Grafana's grid, of which there are 24."""
ROW_INCH = 0.3
HEAD_INCH = 0.4
"""Height of a dashboard's title."""
DPI = 100
COLUMN_PIXELS, ROW_PIXELS, HEAD_PIXELS = (round(inches * DPI) for inches in (INCH, ROW_INCH, HEAD_INCH))
