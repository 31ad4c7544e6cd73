"""The Service in front of the engines of every revision."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.defaults import SERVICE_TYPE
from dflash_controller.api.names import HTTP_PORT_NAME, child_labels, engine_selector
from dflash_controller.api.types import Spec
from dflash_controller.render.compact import compact


def service(name: str, namespace: str, spec: Spec, port: int) -> dict[str, Any]:
    """Returns the Service; ``port`` is the one clients use, the stable revision's engine port.

    The target port is referred to by name, so that it also reaches pods of a revision with another port during a rollout. Workers of
    multi-node replicas do not serve requests and are not selected.
    """
    manifest: dict[str, Any] = compact(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": child_labels(name),
                "annotations": spec.service.annotations,
            },
            "spec": {
                "type": spec.service.type or SERVICE_TYPE,
                "selector": engine_selector(name),
                "ports": [{"name": HTTP_PORT_NAME, "port": port, "targetPort": HTTP_PORT_NAME, "protocol": "TCP"}],
            },
        }
    )
    return manifest
