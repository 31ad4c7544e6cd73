"""The identity of engine pods: one of their own, without any right or token."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.names import child_labels


def service_account_name(name: str) -> str:
    """Not the bare name: a deployment may be called ``default``, as the namespace's own ServiceAccount is."""
    return f"{name}-engine"


def service_account(name: str, namespace: str) -> dict[str, Any]:
    """Must exist before the first pod does: admission refuses pods of an unknown ServiceAccount."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": service_account_name(name), "namespace": namespace, "labels": child_labels(name)},
        "automountServiceAccountToken": False,
    }
