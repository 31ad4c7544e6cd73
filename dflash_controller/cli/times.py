"""Times as Kubernetes writes them, and how long ago they were."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def happened(event: Mapping[str, Any]) -> str:
    """Returns when an Event last happened, as text that sorts."""
    series = event.get("series") or {}
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event["metadata"].get("creationTimestamp") or "")


def age(text: Any, now: datetime) -> float | None:
    """Returns the seconds since a time as Kubernetes writes it; None if it is none."""
    try:
        then = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()


def ago(text: Any, now: datetime) -> str:
    """Returns how long ago a time was, as ``3 h ago``; empty if it is none."""
    found = span(text, now)
    return f"{found} ago" if found else ""


def span(text: Any, now: datetime) -> str:
    """Returns the time since then, as ``3 h``; empty if it is none."""
    seconds = age(text, now)
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
