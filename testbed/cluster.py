"""A Kubernetes cluster on this machine, for tests, the demo and the benchmarks.

The control plane is real and enforces RBAC; kwok simulates nodes and pods. Every server listens on 127.0.0.1, and every pod has its own
address in 127.<slot>.0.0/16.
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
# Collections emptied with a namespace, owners before what they own. The namespace controller itself waits 5 s before it begins.
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
    """kubectl or helm failed. `stderr` is its error output, `returncode` its exit status."""

    def __init__(self, answer: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{Path(answer.args[0]).name} {' '.join(answer.args[1:])}: exit {answer.returncode}\n{answer.stderr.strip()}")
        self.stderr, self.returncode = answer.stderr, answer.returncode


class Cluster:
    """One cluster. `with Cluster() as cluster:` starts and stops it; `start` and `stop` do the same explicitly.

    Every method blocks; from asyncio code call them with `asyncio.to_thread`.
    """

    def __init__(
        self, name: str | None = None, pools: Sequence[NodePool] = DEFAULT_POOLS, node_address: str = "", feature_gates: str = ""
    ) -> None:
        """`node_address`: where the pods of a real node (`testbed.real_node`) reach the API server. `feature_gates`: see ControlPlane."""
        self._desired_name = name
        self._feature_gates = feature_gates
        self._node_address = node_address
        self._pools = tuple(pools)
        self._workspace: Workspace | None = None
        self._api: AdminApi | None = None

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """Returns a cluster that is already running, such as one left by `keep`. Raises WorkspaceError if there is none of that name."""
        cluster = cls(name)
        cluster._workspace = Workspace.open(name)
        return cluster

    def start(self) -> Cluster:
        """Starts the cluster: API server ready, stages and nodes in place, nodes Ready. Takes about 3 s once the programs are built.

        It first removes what crashed runs left on this machine.
        """
        self._workspace = Workspace.claim(self._desired_name)
        try:
            self.control_plane.create()
            # kwok checks for new stages only every 5 s, but reads existing ones when it starts.
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
        """Ends every process of the cluster and deletes its directory. May be called again."""
        if self._workspace is not None:
            self._workspace.remove()
            self._workspace = self._api = None

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._workspace is not None and not self._workspace.kept:
            self.stop()

    def keep(self) -> None:
        """Keeps the cluster running after the `with` block and this process end, until `stop` or `python -m testbed down`."""
        self.workspace.keep()

    # Properties

    @property
    def workspace(self) -> Workspace:
        """Returns the directory of the cluster. Raises RuntimeError before `start`."""
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
        """Returns the cluster's servers, for outages."""
        return ControlPlane(self.workspace, self._node_address, self._feature_gates)

    @property
    def api(self) -> AdminApi:
        """Returns the API server as administrator, without kubectl."""
        if self._api is None:
            self._api = self.control_plane.api
        return self._api

    @property
    def server(self) -> str:
        """Returns the URL of the API server."""
        return self.api.server

    @property
    def admin_kubeconfig(self) -> Path:
        """Returns the kubeconfig of user kwok-admin, whom RBAC does not restrict (group system:masters)."""
        return self.control_plane.admin_kubeconfig

    @property
    def pod_network(self) -> str:
        """Returns the network of all its pod addresses; no other cluster of this user shares it."""
        return f"127.{self.workspace.slot}.0.0/16"

    # Requests

    def kubectl(self, *arguments: str, input: str | None = None, kubeconfig: Path | None = None, timeout: float = 60.0) -> str:
        """Returns the standard output of `kubectl`, as administrator or with another kubeconfig. Raises CommandError if it fails."""
        command = [str(binaries.path_of("kubectl")), *arguments]
        return _run(command, self._client_environment(kubeconfig or self.admin_kubeconfig), input, timeout)

    def helm(self, *arguments: str, input: str | None = None, timeout: float = 120.0) -> str:
        """Returns the standard output of `helm`, as administrator, with caches in the cluster's directory. Raises CommandError if it
        fails."""
        homes = {f"HELM_{kind}_HOME": str(self.directory / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        command = [str(binaries.path_of("helm")), *arguments]
        return _run(command, self._client_environment(self.admin_kubeconfig) | homes, input, timeout)

    def _client_environment(self, kubeconfig: Path) -> dict[str, str]:
        # Discovery is cached by address, and the next cluster may have the same one, so each cluster has its own cache.
        own = {"KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(self.directory / "kubectl-cache"), "KUBERC": "off"}
        return {**os.environ, **own}

    def get(self, *arguments: str) -> Any:
        """Returns `kubectl get ARGUMENTS -o json`, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply_yaml(self, manifests: str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]], namespace: str | None = None) -> str:
        """Applies YAML text, a file or folder, or one or several objects on the server side. Returns the output of kubectl."""
        arguments = ["apply", "--server-side", "--force-conflicts", *(["--namespace", namespace] if namespace else [])]
        if isinstance(manifests, Path):
            return self.kubectl(*arguments, "-f", str(manifests))
        if isinstance(manifests, Mapping):
            manifests = [manifests]
        text = manifests if isinstance(manifests, str) else yaml.safe_dump_all(manifests)
        return self.kubectl(*arguments, "-f", "-", input=text)

    def install_crds(self, source: Path) -> None:
        """Applies the CustomResourceDefinitions of a file or folder and waits until they are served."""
        self.apply_yaml(source)
        self.wait_for_crds()

    def wait_for_crds(self) -> None:
        """Waits until every CustomResourceDefinition is served (`kubectl wait` fails on one without a status)."""

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
        """Returns a kubeconfig of an existing ServiceAccount (`namespace` is its default), valid for 24 hours."""
        path = self.directory / f"{namespace}.{name}.kubeconfig"
        return write_service_account_kubeconfig(self.api, namespace, name, path)

    # Nodes

    def set_nodes(self, pools: Sequence[NodePool]) -> None:
        """Replaces all nodes by those of `pools` and waits until they are Ready. Pods on removed nodes are lost."""
        wanted = list(node_manifests(pools, self.workspace.slot))
        self.api.delete("/api/v1/nodes")
        for node in wanted:
            self.api.request("POST", "/api/v1/nodes", node)
        wait_until(lambda: self.ready_nodes() == {node["metadata"]["name"] for node in wanted}, "all nodes to be Ready")

    def ready_nodes(self) -> set[str]:
        """Returns the names of the Ready nodes."""
        return {
            node["metadata"]["name"]
            for node in self.api.get("/api/v1/nodes")["items"]
            if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"].get("conditions", ()))
        }

    def fail_node(self, name: str) -> None:
        """Fails a node until `recover_node`: it is NotReady. Its pods are not Ready, do not change, and do not end, even if deleted.

        The process that simulates the pods' endpoints is not affected.
        """
        for pod in self._pods_on(name):
            self.api.request("PATCH", _pod_path(pod), {"metadata": {"annotations": {FROZEN: "true"}}})
        self.api.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": {READY: "false"}}})
        wait_until(lambda: name not in self.ready_nodes(), f"node {name} to be NotReady")
        for pod in self._pods_on(name):  # as the node controller does for a silent node
            conditions = [{**c, "status": "False"} if c["type"] == "Ready" else c for c in pod["status"].get("conditions", ())]
            self.api.request("PATCH", f"{_pod_path(pod)}/status", {"status": {"conditions": conditions}})

    def recover_node(self, name: str) -> None:
        """Ends `fail_node`."""
        self.api.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": {READY: None}}})
        wait_until(lambda: name in self.ready_nodes(), f"node {name} to be Ready")
        for pod in self._pods_on(name):
            self.api.request("PATCH", _pod_path(pod), {"metadata": {"annotations": {FROZEN: None}}})

    def _pods_on(self, node: str) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]
        return pods

    # Namespaces

    def create_namespace(self, prefix: str = "test") -> str:
        """Creates a namespace and waits for its default ServiceAccount. Returns its name."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        self.api.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_for_service_account(name)
        return name

    def wait_for_service_account(self, namespace: str, name: str = "default") -> None:
        """Waits for a ServiceAccount, because pods that need it are refused before it exists."""
        wait_until(lambda: self._exists(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"), f"ServiceAccount {namespace}/{name}")

    def empty_namespace(self, name: str) -> None:
        """Deletes the workloads of a namespace, pods without their grace period, and waits until no pod is left."""
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
        """Empties a namespace and begins its deletion. Kubernetes needs about 5 s more; nothing waits for that."""
        self.api.delete(f"/api/v1/namespaces/{name}")
        self.empty_namespace(name)

    def reset(self) -> None:
        """Restores the state after `start` in a second or two: no workloads, only the first nodes, the standard stages.

        Definitions stay: CustomResourceDefinitions, and cluster roles that Helm did not create.
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
        """Returns a position in the audit log for `audit(since=...)`, after all requests answered so far."""
        self._settle_audit_log()
        return position(self.control_plane.audit_log)

    def audit(self, since: int = 0, *, user: str | None = None, verbs: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Returns requests answered since a mark, oldest first (audit.k8s.io/v1 events), filtered by user name and verb.

        `testbed.audit` has the verbs that write and the user name of a ServiceAccount.
        """
        self._settle_audit_log()
        return read_events(self.control_plane.audit_log, since, user=user, verbs=verbs)

    def _settle_audit_log(self) -> None:
        """Waits until the log is complete. Events are logged shortly after the answer, so it sends a recognizable request and waits for its
        event."""
        token = f"audit-{secrets.token_hex(8)}"
        if not self.api.is_ready():
            return
        start = self.control_plane.audit_log.stat().st_size
        self.api.get(f"/version?{token}")

        def is_logged() -> bool:
            with self.control_plane.audit_log.open("rb") as log:
                # The log was rotated in the meantime: begin again.
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
