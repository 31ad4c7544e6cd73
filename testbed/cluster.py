"""A Kubernetes cluster on this machine, for tests, the demo and the benchmarks.

The control plane is real and enforces RBAC; nodes and pods are played by kwok. Every server listens on 127.0.0.1 and every pod has an
address of its own in 127.<slot>.0.0/16.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from testbed import binaries
from testbed.api import AdminApi, ApiError
from testbed.audit import position, read_events
from testbed.control_plane import ControlPlane
from testbed.kubeconfig import write_service_account_kubeconfig
from testbed.nodes import DEFAULT_POOLS, NodePool, node_manifests
from testbed.stages import FROZEN, READY, standard_objects
from testbed.waiting import wait_until
from testbed.workspace import Workspace

_SYSTEM_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
# Collections emptied with a namespace, owners before what they own; the namespace controller itself waits 5 s before it begins.
_EMPTIED = (
    "/apis/serving.dflash.io/v1alpha1/namespaces/{}/dflashdeployments",
    "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets",
    "/apis/apps/v1/namespaces/{}/deployments",
    "/apis/apps/v1/namespaces/{}/statefulsets",
    "/apis/apps/v1/namespaces/{}/replicasets",
    "/apis/batch/v1/namespaces/{}/jobs",
    "/api/v1/namespaces/{}/pods",
)


class CommandError(RuntimeError):
    """kubectl or helm failed. `stderr` holds what it said, `returncode` its exit status."""

    def __init__(self, answer: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{Path(answer.args[0]).name} {' '.join(answer.args[1:])}: exit {answer.returncode}\n{answer.stderr.strip()}")
        self.stderr, self.returncode = answer.stderr, answer.returncode


class Cluster:
    """One cluster. `with Cluster() as cluster:` starts it and takes it down again; `start` and `stop` do the same by hand.

    Every method blocks; from asyncio code call them with `asyncio.to_thread`.
    """

    def __init__(self, name: str | None = None, pools: Sequence[NodePool] = DEFAULT_POOLS) -> None:
        self._desired_name = name
        self._pools = tuple(pools)
        self._workspace: Workspace | None = None
        self._api: AdminApi | None = None

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """A cluster that is already running, such as one left by `keep`. WorkspaceError when there is none of that name."""
        cluster = cls(name)
        cluster._workspace = Workspace.open(name)
        return cluster

    def start(self) -> Cluster:
        """Start it: API server ready, stages and nodes in place, nodes Ready. About 3 s once the programs are built.

        What crashed runs left on this machine is removed first.
        """
        self._workspace = Workspace.claim(self._desired_name)
        try:
            self.control_plane.create()
            # kwok looks for new stages every 5 s only, but reads those that exist when it starts.
            self.control_plane.process("kwok-controller").stop(signal.SIGKILL)
            self.apply_yaml(standard_objects())
            self.control_plane.start("kwok-controller")
            self.set_nodes(self._pools)
            self.wait_for_service_account("default")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process of the cluster and delete its directory. May be called again."""
        if self._workspace is not None:
            self._workspace.remove()
            self._workspace = self._api = None

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._workspace is not None and not self._workspace.kept:
            self.stop()

    def keep(self) -> None:
        """Leave it running, also after the `with` block and this process end, until `stop` or `python -m testbed down`."""
        self.workspace.keep()

    # What it is

    @property
    def workspace(self) -> Workspace:
        """Its directory. RuntimeError before `start`."""
        if self._workspace is None:
            raise RuntimeError("the cluster is not running")
        return self._workspace

    @property
    def name(self) -> str:
        return self.workspace.name

    @property
    def directory(self) -> Path:
        return self.workspace.directory

    @property
    def control_plane(self) -> ControlPlane:
        """Its servers, for outages."""
        return ControlPlane(self.workspace)

    @property
    def api(self) -> AdminApi:
        """The API server as administrator, without kubectl."""
        if self._api is None:
            self._api = self.control_plane.api
        return self._api

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self.api.server

    @property
    def admin_kubeconfig(self) -> Path:
        """Kubeconfig of user kwok-admin, whom RBAC does not hold (group system:masters)."""
        return self.control_plane.admin_kubeconfig

    @property
    def pod_network(self) -> str:
        """Network all its pod addresses come from; no other cluster of this user shares it."""
        return f"127.{self.workspace.slot}.0.0/16"

    # Talking to it

    def kubectl(self, *arguments: str, input: str | None = None, kubeconfig: Path | None = None, timeout: float = 60.0) -> str:
        """Standard output of `kubectl`, as administrator unless another kubeconfig is given. CommandError when it fails."""
        command = [str(binaries.path_of("kubectl")), *arguments]
        return _run(command, self._client_environment(kubeconfig or self.admin_kubeconfig), input, timeout)

    def helm(self, *arguments: str, input: str | None = None, timeout: float = 120.0) -> str:
        """Standard output of `helm`, as administrator, with its caches inside the cluster's directory. CommandError when it fails."""
        homes = {f"HELM_{kind}_HOME": str(self.directory / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        command = [str(binaries.path_of("helm")), *arguments]
        return _run(command, self._client_environment(self.admin_kubeconfig) | homes, input, timeout)

    def _client_environment(self, kubeconfig: Path) -> dict[str, str]:
        # Discovery is cached by address, and the next cluster may have this one's: each keeps a cache of its own.
        own = {"KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(self.directory / "kubectl-cache"), "KUBERC": "off"}
        return {**os.environ, **own}

    def get(self, *arguments: str) -> Any:
        """`kubectl get ARGUMENTS -o json`, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply_yaml(self, manifests: str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]], namespace: str | None = None) -> str:
        """Server-side apply of YAML text, a file or folder, one object or several. Returns what kubectl said."""
        arguments = ["apply", "--server-side", "--force-conflicts", *(["--namespace", namespace] if namespace else [])]
        if isinstance(manifests, Path):
            return self.kubectl(*arguments, "-f", str(manifests))
        if isinstance(manifests, Mapping):
            manifests = [manifests]
        text = manifests if isinstance(manifests, str) else yaml.safe_dump_all(manifests)
        return self.kubectl(*arguments, "-f", "-", input=text)

    def install_crds(self, source: Path) -> None:
        """Apply the CustomResourceDefinitions of a file or folder and wait until they are served."""
        self.apply_yaml(source)
        self.wait_for_crds()

    def wait_for_crds(self) -> None:
        """Wait until every CustomResourceDefinition is served (`kubectl wait` fails on one that has no status yet)."""

        def established() -> bool:
            found = self.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
            return all(
                any(
                    item["type"] == "Established" and item["status"] == "True" for item in (crd.get("status") or {}).get("conditions") or ()
                )
                for crd in found
            )

        wait_until(established, "the CustomResourceDefinitions to be established")

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig acting as an existing ServiceAccount (`namespace` its default), good for 24 hours."""
        path = self.directory / f"{namespace}.{name}.kubeconfig"
        return write_service_account_kubeconfig(self.api, namespace, name, path)

    # Nodes

    def set_nodes(self, pools: Sequence[NodePool]) -> None:
        """Replace all nodes by those of `pools` and wait until they are Ready. Pods on nodes that go are lost."""
        wanted = list(node_manifests(pools, self.workspace.slot))
        self.api.delete("/api/v1/nodes")
        for node in wanted:
            self.api.request("POST", "/api/v1/nodes", node)
        wait_until(lambda: self.ready_nodes() == {node["metadata"]["name"] for node in wanted}, "all nodes to be Ready")

    def ready_nodes(self) -> set[str]:
        """Names of the Ready nodes."""
        return {
            node["metadata"]["name"]
            for node in self.api.get("/api/v1/nodes")["items"]
            if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"].get("conditions", ()))
        }

    def fail_node(self, name: str) -> None:
        """Lose a node: it is NotReady, and its pods neither are Ready nor change nor end, however they are deleted, until it recovers.

        Whatever plays the pods' endpoints is not touched.
        """
        for pod in self._pods_on(name):
            self.api.request("PATCH", _pod_path(pod), {"metadata": {"annotations": {FROZEN: "true"}}})
        self.api.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": {READY: "false"}}})
        wait_until(lambda: name not in self.ready_nodes(), f"node {name} to be NotReady")
        for pod in self._pods_on(name):  # as the node controller does when it finds a node silent
            conditions = [{**c, "status": "False"} if c["type"] == "Ready" else c for c in pod["status"].get("conditions", ())]
            self.api.request("PATCH", f"{_pod_path(pod)}/status", {"status": {"conditions": conditions}})

    def recover_node(self, name: str) -> None:
        """Undo `fail_node`."""
        self.api.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": {READY: None}}})
        wait_until(lambda: name in self.ready_nodes(), f"node {name} to be Ready")
        for pod in self._pods_on(name):
            self.api.request("PATCH", _pod_path(pod), {"metadata": {"annotations": {FROZEN: None}}})

    def _pods_on(self, node: str) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
        return pods

    # Namespaces

    def create_namespace(self, prefix: str = "test") -> str:
        """A new namespace whose default ServiceAccount exists. Returns its name."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        self.api.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_for_service_account(name)
        return name

    def wait_for_service_account(self, namespace: str, name: str = "default") -> None:
        """Wait for a ServiceAccount; pods that need it are refused before."""
        wait_until(lambda: self._exists(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"), f"ServiceAccount {namespace}/{name}")

    def empty_namespace(self, name: str) -> None:
        """Delete what runs in a namespace, pods without their grace period, and wait until no pod is left."""
        for collection in _EMPTIED:
            self.api.delete(collection.format(name), gracePeriodSeconds=0, propagationPolicy="Background")
        pods = _EMPTIED[-1].format(name)

        def is_empty() -> bool:
            if not self.api.get(pods)["items"]:
                return True
            self.api.delete(pods, gracePeriodSeconds=0)
            return False

        wait_until(is_empty, f"namespace {name} to be empty")

    def delete_namespace(self, name: str) -> None:
        """Empty a namespace and begin its deletion; Kubernetes takes some 5 s more to finish it, which nobody waits for."""
        self.api.delete(f"/api/v1/namespaces/{name}")
        self.empty_namespace(name)

    def reset(self) -> None:
        """Back to the state after `start`, in a second or two: no workloads, only the first nodes, the standard stages.

        Definitions (CustomResourceDefinitions, cluster roles not made by Helm) stay.
        """
        self.kubectl("delete", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/managed-by=Helm", "--ignore-not-found")
        for item in self.api.get("/api/v1/namespaces")["items"]:
            name = item["metadata"]["name"]
            if name not in _SYSTEM_NAMESPACES:
                self.delete_namespace(name)
        self.empty_namespace("default")
        self.api.delete("/apis/kwok.x-k8s.io/v1alpha1/stages")
        self.apply_yaml(standard_objects())
        self.set_nodes(self._pools)

    def _exists(self, path: str) -> bool:
        try:
            self.api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    # Audit log

    def audit_mark(self) -> int:
        """A point in the audit log, for `audit(since=...)`: after everything answered so far."""
        self._settle_audit_log()
        return position(self.control_plane.audit_log)

    def audit(self, since: int = 0, *, user: str | None = None, verbs: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Requests answered since a mark, oldest first (audit.k8s.io/v1 events), filtered by user name and verb.

        See `testbed.audit` for the verbs that write and for a ServiceAccount's user name.
        """
        self._settle_audit_log()
        return read_events(self.control_plane.audit_log, since, user=user, verbs=verbs)

    def _settle_audit_log(self) -> None:
        """Events are logged a moment after the answer: make a request that can be recognised and wait for it to be logged."""
        token = f"audit-{secrets.token_hex(8)}"
        if not self.api.is_ready():
            return
        start = self.control_plane.audit_log.stat().st_size
        self.api.get(f"/version?{token}")

        def is_logged() -> bool:
            with self.control_plane.audit_log.open("rb") as log:
                # A log that was cut meanwhile begins anew.
                log.seek(start if start <= self.control_plane.audit_log.stat().st_size else 0)
                return token.encode() in log.read()

        wait_until(is_logged, "the audit log", interval=0.005)


def _pod_path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _run(command: list[str], environment: Mapping[str, str], text: str | None, timeout: float) -> str:
    answer = subprocess.run(command, env=dict(environment), input=text, capture_output=True, text=True, check=False, timeout=timeout)
    if answer.returncode != 0:
        raise CommandError(answer)
    return answer.stdout
