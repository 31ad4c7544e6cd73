"""All alerts. Pure.

None fires on a healthy system that is idle, scaled to zero, or in a normal rollout. Ratios have no value without traffic, series of pods
end with the pods, and alerts leave a candidate to its rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monitoring import condition_alerts, operator_alerts, serving_alerts, speculation_alerts
from monitoring.alert import Alert, group

_GROUPS: Mapping[str, Callable[[], list[Alert]]] = {
    "dflash.alerts.speculation": speculation_alerts.speculation,
    "dflash.alerts.tuner": speculation_alerts.tuner,
    "dflash.alerts.rollouts": speculation_alerts.rollouts,
    "dflash.alerts.latency": serving_alerts.latency,
    "dflash.alerts.load": serving_alerts.load,
    "dflash.alerts.replicas": serving_alerts.replicas,
    "dflash.alerts.operator": operator_alerts.operator,
    "dflash.alerts.conditions": condition_alerts.conditions,
}


def alerts() -> list[Alert]:
    """Returns all alerts in the order of the file."""
    return [alert for alerts_of in _GROUPS.values() for alert in alerts_of()]


def groups() -> list[dict[str, Any]]:
    """Returns the groups of a Prometheus rule file."""
    return [group(name, alerts_of()) for name, alerts_of in _GROUPS.items()]
