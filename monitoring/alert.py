"""The type of an alert, and text that several alerts share. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from monitoring.links import runbook

Severity = Literal["critical", "warning", "info"]
"""Severities as Alertmanager's usual routes use them: a page, a ticket for the next working day, information."""

DEPLOYMENT = "{{ $labels.namespace }}/{{ $labels.deployment }}"
"""Its name, in annotations."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. Summary and description are Prometheus templates."""

    name: str
    expr: str
    """PromQL: one series for each thing that is wrong."""
    hold: str
    """How long it must hold without a gap (``for``)."""
    severity: Severity
    summary: str
    """One sentence: who, what, how much."""
    description: str
    """What it means and what the operator does by itself."""
    page: str
    """Name of its runbook."""
    source: str
    """Reason for the thresholds and times, and where they come from."""

    def to_dict(self) -> dict[str, Any]:
        """As in a rule file."""
        annotations = {"summary": self.summary, "description": self.description}
        annotations |= {"threshold": self.source, "runbook_url": runbook(self.page)}
        return {"alert": self.name, "expr": self.expr, "for": self.hold, "labels": {"severity": self.severity}, "annotations": annotations}


def group(name: str, alerts: Iterable[Alert]) -> dict[str, Any]:
    """A group of a rule file."""
    return {"name": name, "rules": [alert.to_dict() for alert in alerts]}
