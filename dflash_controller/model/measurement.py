"""A measurement is a value, is absent for a reason, or failed. Absent is never zero."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """``samples`` counts what the number was computed from (drafts, requests); ``age_s`` is the age of its newest input."""

    value: float
    samples: float = 0.0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing to measure: no traffic, a missing series, too few samples."""

    reason: str


@dataclass(frozen=True, slots=True)
class Error:
    """The source itself failed: timeout, refusal, malformed answer."""

    message: str


NO_SERIES = Absent("NoSeries")
"""The page has none of the series that the measurement is made from."""
STALE = Absent("Stale")
"""The newest sample is too old to tell of now."""

Measurement = Value | Absent | Error
