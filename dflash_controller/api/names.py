"""Group, version, labels, annotations and the names of child objects."""

from __future__ import annotations

GROUP = "serving.dflash.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DFlashDeployment"
PLURAL = "dflashdeployments"

FIELD_MANAGER = "dflash-operator"
MANAGED_BY = "dflash-operator"

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_DEPLOYMENT = f"{GROUP}/deployment"
LABEL_REVISION = f"{GROUP}/revision"
LABEL_BLOCK_SIZE = f"{GROUP}/block-size"
LABEL_ROLE = f"{GROUP}/role"
ROLE_ENGINE = "engine"
ROLE_WORKER = "worker"
ROLE_PREFETCH = "prefetch"

ANNOTATION_STATE = f"{GROUP}/state"
ANNOTATION_HISTORY = f"{GROUP}/history"
ANNOTATION_NUMBER = f"{GROUP}/number"
ANNOTATION_RECORD = f"{GROUP}/record"
ANNOTATION_TRIAL = f"{GROUP}/trial"
ANNOTATION_PROBE = f"{GROUP}/probe"
ANNOTATION_LEARNED = f"{GROUP}/learned"
ANNOTATION_RATES = f"{GROUP}/rates"

ANNOTATION_PROMOTE = f"{GROUP}/promote"
ANNOTATION_ABORT = f"{GROUP}/abort"
ANNOTATION_PIN = f"{GROUP}/pin"

ENGINE_CONTAINER = "engine"
FETCH_CONTAINER = "dflash-fetch"
HTTP_PORT_NAME = "http"


def child_labels(deployment: str) -> dict[str, str]:
    """Labels on every child, by which the operator finds it again."""
    return {LABEL_MANAGED_BY: MANAGED_BY, LABEL_DEPLOYMENT: deployment}


def engine_selector(deployment: str) -> dict[str, str]:
    """Pods that answer requests, of every revision (workers of a multi-node replica do not)."""
    return {LABEL_DEPLOYMENT: deployment, LABEL_ROLE: ROLE_ENGINE}
