"""One DFlashDeployment of a test and what belongs to it, asked of the API server directly: quicker than kubectl, and from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cluster import Cluster
from testbed.waiting import wait_until

API_VERSION = "serving.dflash.io/v1alpha1"
STATE = "serving.dflash.io/state"
REVISION = "serving.dflash.io/revision"
_GROUPS = {
    "controllerrevisions": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "replicasets": "/apis/apps/v1",
    "leaderworkersets": "/apis/leaderworkerset.x-k8s.io/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "pods": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}


@dataclass(frozen=True)
class Deployment:
    """The DFlashDeployment of this name, there or not."""

    cluster: Cluster
    namespace: str
    name: str = "chat"

    def create(self, spec: Mapping[str, Any]) -> Deployment:
        manifest = {"apiVersion": API_VERSION, "kind": "DFlashDeployment", "metadata": {"name": self.name}, "spec": spec}
        self.cluster.api.request("POST", self._path(f"/apis/{API_VERSION}", "dflashdeployments"), manifest)
        return self

    def patch(self, **spec: Any) -> None:
        """Merge patch of the spec."""
        self.patch_whole({"spec": spec})

    def patch_whole(self, patch: Mapping[str, Any]) -> None:
        """Merge patch of the object."""
        self.cluster.api.request("PATCH", self._path(f"/apis/{API_VERSION}", "dflashdeployments", self.name), patch)

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api.get(self._path(f"/apis/{API_VERSION}", "dflashdeployments", self.name))
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().get("status") or {}
        return found

    def condition(self, type: str) -> tuple[str, str, str]:
        """Status, reason and message; empty ones where there is no such condition."""
        for item in self.status().get("conditions") or ():
            if item["type"] == type:
                return item["status"], item["reason"], item["message"]
        return "", "", ""

    def is_done(self) -> bool:
        """The newest spec is what runs, and nothing is left to do."""
        deployment = self.get()
        status = deployment.get("status") or {}
        conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
        return (
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and conditions.get("Ready") == "True"
            and conditions.get("Reconciling") == "False"
        )

    def wait_done(self, timeout: float = 40.0) -> None:
        wait_until(self.is_done, f"{self.namespace}/{self.name} to be done: {self.status()}", timeout, 0.1)

    def children(self, kind: str) -> list[dict[str, Any]]:
        """Those with its label, of one kind (``deployments``), by name."""
        selector = f"labelSelector=serving.dflash.io%2Fdeployment%3D{self.name}"
        items: list[dict[str, Any]] = self.cluster.api.get(f"{self._path(_GROUPS[kind], kind)}?{selector}")["items"]
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def names(self, kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.children(kind)]

    def states(self) -> list[str]:
        """The states of its revisions, oldest first."""
        revisions = sorted(self.children("controllerrevisions"), key=lambda item: int(item["revision"]))
        return [item["metadata"]["annotations"][STATE] for item in revisions]

    def pod_uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.children("pods")}

    def _path(self, group: str, *parts: str) -> str:
        return "/".join((group, "namespaces", self.namespace, *parts))
