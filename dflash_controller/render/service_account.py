"""Renders the ServiceAccount of the engine pods, which has no permissions and no token."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import child_labels


def service_account_name(name: str) -> str:
    """Returns the name of the ServiceAccount. A suffix avoids a clash with the namespace's own ServiceAccount ``default``."""
    return f"{name}-engine"


def service_account(name: str, namespace: str) -> dict[str, Any]:
    """Returns the ServiceAccount. It must exist before the first pod: admission refuses pods of an unknown ServiceAccount."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": service_account_name(name), "namespace": namespace, "labels": child_labels(name)},
        "automountServiceAccountToken": False,
    }
