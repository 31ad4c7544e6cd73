"""Metrics in sentences."""

from __future__ import annotations

import math

_BOUNDLESS = math.log(11)
"""+ 1000 %."""


def format_number(value: float | None) -> str:
    """Three significant digits; a word where there is no value."""
    if value is None:
        return "nothing"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(log_ratio: float) -> str:
    """A difference of logarithms as a signed percentage; without a number where so little is known that it would mean nothing."""
    if log_ratio > _BOUNDLESS:
        return "anything above"
    change = 100 * math.expm1(log_ratio)
    return f"{change:+.0f} %" if abs(change) >= 10 else f"{change:+.1f} %"


def against(candidate: float | None, stable: float | None, unit: str = "") -> str:
    """Both values."""
    return f"{format_number(candidate)}{unit} against {format_number(stable)}{unit}"
