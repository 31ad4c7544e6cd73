"""Alerts on the operator itself. Pure.

They are grouped by the namespace of the operator's pods: two operators that serve different namespaces each have a leader.
"""

from __future__ import annotations

from dflash_controller.observe.sources.prometheus.reduction import of_its_pod
from monitoring.alert import Alert

_OPERATOR = "The DFlash operator in {{ $labels.namespace }}"
_OPERATIONS = "docs/reference/operator.md"


def operator() -> list[Alert]:
    errors = 'sum by (namespace) (rate(dflash_reconcile_total{result="error"}[10m]))'
    return [
        Alert(
            name="DFlashOperatorDown",
            # Grouped by clusters, this also finds the one whose operator is missing among others.
            expr="absent(dflash_build_info)\nor\ngroup by () (dflash:deployment_pods) unless on () dflash_build_info",
            hold="5m",
            severity="critical",
            summary="Prometheus scrapes no DFlash operator",
            description=(
                "Engines keep serving, but nothing is scaled, replaced, repaired or rolled back, and a candidate on trial stays on trial."
            ),
            page="operator-down",
            source="A restart takes seconds, the drain of a node a minute or two.",
        ),
        Alert(
            name="DFlashOperatorNoLeader",
            expr=f"sum by (namespace, lease) (max by (namespace, pod, lease) ({of_its_pod('dflash_leader')})) != 1",
            hold="2m",
            severity="critical",
            summary=f"{_OPERATOR} has {{{{ $value }}}} leaders instead of one",
            description=(
                "Without a leader nothing is reconciled, as with no operator at all. Two leaders for this long are an error; preconditions "
                "on writes still prevent conflicting changes."
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
            description="At least one deployment does not reach its spec. Conflicts are normal and do not count.",
            page="reconcile-errors",
            source=f"{_OPERATIONS}; 5 % leave out single failures, 30 min a short outage of the API server.",
        ),
        Alert(
            name="DFlashReconcileBacklog",
            expr="max by (namespace) (dflash_workqueue_oldest_seconds) > 60",
            hold="5m",
            severity="warning",
            summary=f"{_OPERATOR}: a deployment has waited {{{{ $value | humanizeDuration }}}} for a reconcile",
            description="Changes and repairs are delayed.",
            page="reconcile-backlog",
            source=_OPERATIONS,
        ),
        Alert(
            name="DFlashWatchStale",
            expr="time() - min by (namespace) (dflash_last_resync_timestamp_seconds > 0) > 1200",
            hold="1m",
            severity="warning",
            summary=f"{_OPERATOR} has not listed its objects for {{{{ $value | humanizeDuration }}}}",
            description=(
                "One of its replicas relies on watches alone, and a watch may have missed something. The kubelet restarts it after three "
                "intervals and a minute."
            ),
            page="watch-stale",
            source=f"{_OPERATIONS}: it lists every 5 min; 20 min are four lists.",
        ),
    ]
