"""Selectors over the pods of one deployment."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import LABEL_DEPLOYMENT, LABEL_ROLE, ROLE_ENGINE, ROLE_WORKER


def all_pods(name: str) -> dict[str, Any]:
    """Selects the engine pods of every revision and the workers of multi-node replicas, but no prefetch pods."""
    return {
        "matchLabels": {LABEL_DEPLOYMENT: name},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": [ROLE_ENGINE, ROLE_WORKER]}],
    }
