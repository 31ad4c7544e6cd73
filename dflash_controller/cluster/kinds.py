"""The kinds of object the operator reads and writes, and their URL paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api import names


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource. ``optional``: its CustomResourceDefinition may be absent from a healthy cluster."""

    api_version: str
    name: str
    plural: str
    optional: bool = False

    @property
    def group(self) -> str:
        """API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the URL path of the collection, an object or its subresource. ``namespace`` None: all, or a cluster-scoped kind."""
        parts = ["", "apis" if self.group else "api", self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *filter(None, (name, subresource))])

    @property
    def discovery_path(self) -> str:
        """URL path of the list of resources in this group and version."""
        return "/".join(["", "apis" if self.group else "api", self.api_version])


DFLASH_DEPLOYMENT = Kind(names.API_VERSION, names.KIND, names.PLURAL)
CONTROLLER_REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets", optional=True)
JOB = Kind("batch/v1", "Job", "jobs")
POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
POD_DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", optional=True)
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
NODE = Kind("v1", "Node", "nodes")
"""Cluster-scoped; read one by one, never stored."""

CHILDREN = (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    JOB,
    POD,
    SERVICE,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
    SERVICE_ACCOUNT,
    POD_MONITOR,
)
"""Children of a DFlashDeployment, found only by their label ``serving.dflash.io/deployment``."""

STORED = (DFLASH_DEPLOYMENT, *CHILDREN)
OPTIONAL = tuple(kind for kind in STORED if kind.optional)
WORKLOADS = (DEPLOYMENT, LEADER_WORKER_SET)
CHILD_SELECTOR = names.LABEL_DEPLOYMENT
"""Selects every child of every DFlashDeployment: the label exists."""

_BY_TYPE = {(kind.api_version, kind.name): kind for kind in (*STORED, EVENT, LEASE)}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Returns the kind of a manifest. Raises ValueError for one the operator does not handle."""
    return find_kind(str(manifest.get("apiVersion", "")), str(manifest.get("kind", "")))


def find_kind(api_version: str, name: str) -> Kind:
    """Returns the kind with this API version and name. Raises ValueError for one the operator does not handle."""
    try:
        return _BY_TYPE[api_version, name]
    except KeyError:
        raise ValueError(f"the operator does not handle {api_version} {name}") from None


def selector_of(deployment: str) -> str:
    """Returns the label selector of one DFlashDeployment's children."""
    return f"{names.LABEL_DEPLOYMENT}={deployment}"
