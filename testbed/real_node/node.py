"""A real node of a cluster: containerd and kubelet, on the first one kube-proxy and the cluster's DNS too, and its reboot."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from testbed import binaries
from testbed.cluster import Cluster
from testbed.nodes import GPU_RESOURCE
from testbed.real_node.isolation import POD_RANGE, node_address, node_cgroup, pod_range
from testbed.real_node.runtime import ContainerRuntime
from testbed.waiting import wait_until

DNS_ADDRESS = "10.96.0.10"
_MANIFESTS = Path(__file__).with_name("manifests")


class RealNode:
    """One node whose pods are containers. `gpus` are only claimed: the engines here are simulators.

    The cluster must have been made with `node_address=NODE_ADDRESS`, inside `isolation.run`. Nodes share one network, and so the first
    one's kube-proxy; `number` is 0 for the first.
    """

    def __init__(self, cluster: Cluster, number: int = 0, gpus: int = 8, product: str = "NVIDIA-B200") -> None:
        self.name = f"real-{number}"
        self._cluster = cluster
        self._is_first = number == 0
        self._address = node_address(number)
        self._gpus = gpus
        self._labels = {f"{GPU_RESOURCE}.product": product, f"{GPU_RESOURCE}.present": "true", f"{GPU_RESOURCE}.count": str(gpus)}
        self._directory = cluster.directory / "nodes" / self.name
        self._kubelet = cluster.workspace.process(f"kubelet-{self.name}")
        self._proxy = cluster.workspace.process("kube-proxy")
        self.runtime = ContainerRuntime(cluster.workspace, self.name, pod_range(number))

    def start(self, layout: Path) -> RealNode:
        """Starts everything with the images of an OCI layout; the node is Ready, and names are resolved, when it returns."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self.runtime.start()
        self.runtime.load(layout)
        self._start_agents()
        if self._is_first:
            self._cluster.apply_yaml(_MANIFESTS / "dns.yaml")
            self._wait_dns()
        return self

    def reboot(self) -> None:
        """Ends kubelet, proxy, runtime and every container at once, as a power failure does, and starts them again.

        The node is Ready when it returns; its pods may not be.
        """
        self._kill()
        self.runtime.start()
        self._start_agents()

    def stop(self) -> None:
        """Ends the node's processes and removes it from the cluster. Its containers end too."""
        self._kill()
        self._cluster.api.delete(f"/api/v1/nodes/{self.name}")

    def set_gpus(self, count: int) -> None:
        """Lets the node claim so many GPUs from now on."""
        capacity = {"status": {"capacity": {GPU_RESOURCE: str(count)}}}
        self._cluster.api.request("PATCH", f"/api/v1/nodes/{self.name}/status", capacity)

    def _kill(self) -> None:
        self._kubelet.stop(signal.SIGKILL)
        if self._is_first:
            self._proxy.stop(signal.SIGKILL)
        self.runtime.kill()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __enter__(self) -> RealNode:
        return self

    def _start_agents(self) -> None:
        programs = binaries.paths_of(("kubelet", "kube-proxy"))
        kubeconfig = str(self._cluster.admin_kubeconfig)
        kubelet = self._write("kubelet.yaml", self._kubelet_configuration())
        (self._directory / "resolv.conf").write_text("")
        root = self._directory / "kubelet"
        # Without any checkpoint of a device plugin the kubelet takes itself for a new node, and sets extended resources to 0.
        (root / "device-plugins").mkdir(parents=True, exist_ok=True)
        (root / "device-plugins" / "claimed").touch()
        command = [str(programs["kubelet"]), f"--config={kubelet}", f"--kubeconfig={kubeconfig}", f"--root-dir={root}"]
        command += [f"--hostname-override={self.name}", f"--node-ip={self._address}"]
        command += ["--node-labels=" + ",".join(f"{key}={value}" for key, value in self._labels.items())]
        self._kubelet.start(self.runtime.on_node(command), self._directory / "kubelet.log")
        if self._is_first:
            proxy = self._write("kube-proxy.yaml", self._proxy_configuration(kubeconfig))
            self._proxy.start([str(programs["kube-proxy"]), f"--config={proxy}"], self._directory / "kube-proxy.log")
        self._wait_ready()
        self.set_gpus(self._gpus)

    def _wait_ready(self) -> None:
        def is_ready() -> bool:
            if self._kubelet.pid() is None:
                lines = self._kubelet_log().splitlines()
                raise RuntimeError("\n".join([f"the kubelet ended: {lines[-1] if lines else 'it wrote no log'}", *lines]))
            return self.name in self._cluster.ready_nodes()

        try:
            wait_until(is_ready, f"node {self.name} to be Ready", 180)
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self._kubelet_log()}") from None

    def _kubelet_log(self) -> str:
        return "\n".join((self._directory / "kubelet.log").read_text(errors="replace").splitlines()[-10:])

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._address,
            "healthzBindAddress": self._address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._cluster.api.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node_cgroup(self.name)}",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
            "enforceNodeAllocatable": [],
            "evictionHard": {},
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "podLogsDir": str(self._directory / "pod-logs"),
            "resolvConf": str(self._directory / "resolv.conf"),
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 20,
            "imageGCHighThresholdPercent": 100,
            "registryPullQPS": 0,
        }

    def _proxy_configuration(self, kubeconfig: str) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": self._address,
            "clientConnection": {"kubeconfig": kubeconfig},
            "clusterCIDR": POD_RANGE,
            "conntrack": {"maxPerCore": 0, "min": 0},
            "hostnameOverride": self.name,
            "mode": "nftables",
        }

    def _write(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self._directory / name
        path.write_text(yaml.safe_dump(dict(content)))
        return path

    def _wait_dns(self) -> None:
        def is_available() -> bool:
            found = self._cluster.api.get("/apis/apps/v1/namespaces/kube-system/deployments/cluster-dns")
            return bool((found.get("status") or {}).get("availableReplicas"))

        wait_until(is_available, "the cluster's DNS", 180)
