"""Alerts on the operator itself. Pure.

By namespace of the operator's pods: two operators that serve different namespaces each have a leader.
"""

from __future__ import annotations

from monitoring.alert import Alert

_OPERATOR = "The DFlash operator in {{ $labels.namespace }}"
_OPERATIONS = "docs/reference/operator.md"


def operator() -> list[Alert]:
    errors = 'sum by (namespace) (rate(dflash_reconcile_total{result="error"}[10m]))'
    return [
        Alert(
            name="DFlashOperatorDown",
            expr="absent(dflash_build_info)",
            hold="5m",
            severity="critical",
            summary="No DFlash operator is there to be scraped",
            description=(
                "Engines keep serving. Nothing is scaled, replaced, repaired or rolled back, and a candidate on trial stays on trial."
            ),
            page="operator-down",
            source="A restart takes seconds, a node that is drained a minute or two.",
        ),
        Alert(
            name="DFlashOperatorNoLeader",
            expr="sum by (namespace, lease) (max by (namespace, instance, lease) (dflash_leader)) != 1",
            hold="2m",
            severity="critical",
            summary=f"{_OPERATOR} has {{{{ $value }}}} leaders, and must have one",
            description=(
                "Without a leader nothing is done, as with no operator at all. Two that believe to lead for so long are a fault; writes "
                "are fenced all the same."
            ),
            page="operator-no-leader",
            source=f"{_OPERATIONS}: a standby takes over 15 s after the last renewal.",
        ),
        Alert(
            name="DFlashReconcileErrors",
            expr=f"{errors} / sum by (namespace) (rate(dflash_reconcile_total[10m])) > 0.05",
            hold="30m",
            severity="warning",
            summary=f"{_OPERATOR}: {{{{ $value | humanizePercentage }}}} of reconciles fail",
            description="At least one deployment is not brought to what its spec asks for. Conflicts are normal and not counted.",
            page="reconcile-errors",
            source=f"{_OPERATIONS}; 5 % leave out single failures, 30 min an API server that comes back.",
        ),
        Alert(
            name="DFlashReconcileBacklog",
            expr="max by (namespace) (dflash_workqueue_oldest_seconds) > 60",
            hold="5m",
            severity="warning",
            summary=f"{_OPERATOR}: a deployment has been waiting for {{{{ $value | humanizeDuration }}}} to be looked at",
            description="Changes and repairs come late.",
            page="reconcile-backlog",
            source=_OPERATIONS,
        ),
        Alert(
            name="DFlashWatchStale",
            expr="time() - max by (namespace) (dflash_last_resync_timestamp_seconds > 0) > 1200",
            hold="1m",
            severity="warning",
            summary=f"{_OPERATOR} has not listed its objects for {{{{ $value | humanizeDuration }}}}",
            description=(
                "It works from what watches tell, and a watch may have missed something. The kubelet restarts it after three intervals "
                "and a minute."
            ),
            page="watch-stale",
            source=f"{_OPERATIONS}: a list is taken every 5 min; 20 min are four.",
        ),
    ]
