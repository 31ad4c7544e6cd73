"""The type of an alert, and text shared by several alerts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from monitoring.links import runbook

Severity = Literal["critical", "warning", "info"]
"""Severities as in Alertmanager's usual routes: a page, a ticket for the next working day, information."""

DEPLOYMENT = "{{ $labels.namespace }}/{{ $labels.deployment }}"
"""Namespace and name of a deployment, for annotations."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. Summary and description are Prometheus templates."""

    name: str
    expr: str
    """PromQL that returns one series per problem."""
    hold: str
    """How long ``expr`` must hold without a gap (``for``)."""
    severity: Severity
    summary: str
    """One sentence: what is affected, what happens, how much."""
    description: str
    """What the alert means and what the operator does by itself."""
    page: str
    """Name of the runbook."""
    source: str
    """Reason and source of the thresholds and times."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the alert as in a rule file."""
        annotations = {"summary": self.summary, "description": self.description}
        annotations |= {"threshold": self.source, "runbook_url": runbook(self.page)}
        return {"alert": self.name, "expr": self.expr, "for": self.hold, "labels": {"severity": self.severity}, "annotations": annotations}


def group(name: str, alerts: Iterable[Alert]) -> dict[str, Any]:
    """Returns a group of a rule file."""
    return {"name": name, "rules": [alert.to_dict() for alert in alerts]}
