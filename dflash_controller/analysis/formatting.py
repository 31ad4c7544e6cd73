"""Text of metrics in sentences."""

from __future__ import annotations

import math

_BOUNDLESS = math.log(11)
"""Log ratio of + 1000 %."""


def format_number(value: float | None) -> str:
    """Returns three significant digits, or a word if there is no value."""
    if value is None:
        return "nothing"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(log_ratio: float) -> str:
    """Returns a difference of logarithms as a signed percentage, or words if too little is known for a number."""
    if log_ratio > _BOUNDLESS:
        return "anything above"
    change = 100 * math.expm1(log_ratio)
    return f"{change:+.0f} %" if abs(change) >= 10 else f"{change:+.1f} %"


def against(candidate: float | None, stable: float | None, unit: str = "") -> str:
    """Returns both values as text."""
    return f"{format_number(candidate)}{unit} against {format_number(stable)}{unit}"
