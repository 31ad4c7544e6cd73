"""Renders the PodMonitor by which the Prometheus Operator finds the engines."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import (
    HTTP_PORT_NAME,
    LABEL_BLOCK_SIZE,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    child_labels,
    engine_selector,
)

SCRAPE_INTERVAL = "15s"
"""Short enough for the load samples of 15 to 30 s in which the load of a replica is measured."""


def pod_monitor(name: str, namespace: str) -> dict[str, Any]:
    """Returns a ``monitoring.coreos.com/v1`` PodMonitor over the engine pods of every revision, for clusters that serve the kind."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": name, "namespace": namespace, "labels": child_labels(name)},
        "spec": {
            "selector": {"matchLabels": engine_selector(name)},
            # Rules and dashboards distinguish deployments, revisions and block sizes by these labels.
            "podTargetLabels": [LABEL_DEPLOYMENT, LABEL_ROLE, LABEL_REVISION, LABEL_BLOCK_SIZE],
            "podMetricsEndpoints": [{"port": HTTP_PORT_NAME, "path": "/metrics", "interval": SCRAPE_INTERVAL}],
        },
    }
