"""Folder of the pictures, and the sizes of their parts."""

from __future__ import annotations

from testbed.operator_process import ROOT

PICTURES = ROOT / "docs" / "dashboards"
INCH = 0.5
"""Width in inches of one column of Grafana's grid, which has 24."""
ROW_INCH = 0.3
HEAD_INCH = 0.4
"""Height in inches of a dashboard's title."""
DPI = 100
COLUMN_PIXELS, ROW_PIXELS, HEAD_PIXELS = (round(inches * DPI) for inches in (INCH, ROW_INCH, HEAD_INCH))
